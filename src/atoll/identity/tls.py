"""TLS contexts for servers and clients. Reads key and certificate files; standard library only.

A server asks for a client certificate and does not insist: `/healthz` needs none, and a caller without one
gets an answer that says so. A certificate of another CA, or an expired one, fails the handshake. Revocation,
and expiry on connections that stay open, are asked on every request: see revocations.py and peer.py.
"""

from __future__ import annotations

import os
import ssl
from pathlib import Path

from atoll.errors import HostFailure, Unauthenticated

_Stamp = tuple[tuple[int, int, int], ...]


class _SaysWhy(ssl.SSLObject):
    """The server's end of a handshake, which tells a client that its certificate is refused.

    Event loops drop a connection when a handshake fails, and with it the alert that is still to be sent.
    """

    _refusal: ssl.SSLCertVerificationError | None = None

    def do_handshake(self) -> None:
        if self._refusal is not None:
            raise self._refusal
        try:
            super().do_handshake()
        except ssl.SSLCertVerificationError as refusal:
            # The loop sends what there is, the alert, and comes back when the client has hung up.
            self._refusal = refusal
            raise ssl.SSLWantReadError from None


def server_context(cert_path: Path, key_path: Path, ca_path: Path) -> ssl.SSLContext:
    """`ca_path` holds the CAs whose client certificates are taken."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_OPTIONAL
    context.sslobject_class = _SaysWhy
    # A resumed session would skip the check of the client certificate.
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    try:
        context.load_verify_locations(cafile=ca_path)
        context.load_cert_chain(cert_path, key_path)
    except (OSError, ssl.SSLError) as error:
        raise HostFailure(
            f"loading the server's certificate {cert_path}: {_reason(error)}",
            hint="issue one with: atoll ca issue server",
        ) from error
    return context


def client_context(
    ca_path: Path, cert_path: Path | None = None, key_path: Path | None = None
) -> ssl.SSLContext:
    """Trusts this CA only, and checks the server's name or IP address. `/healthz` needs no certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_verify_locations(cafile=ca_path)
        if cert_path is not None:
            context.load_cert_chain(cert_path, key_path)
    except (OSError, ssl.SSLError) as error:
        raise Unauthenticated(
            f"loading the client certificate {cert_path or ca_path}: {_reason(error)}",
            hint="atoll up makes one for the administrator; atoll ca issue user makes one for somebody else",
        ) from error
    return context


def memory_client_context(ca_path: Path, cert_pem: bytes, key_pem: bytes) -> ssl.SSLContext:
    """The same for a certificate and key that are in no file. OpenSSL reads them from a file in memory."""
    descriptor = os.memfd_create("credential", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, cert_pem + b"\n" + key_pem)
        return client_context(ca_path, Path(f"/proc/self/fd/{descriptor}"))
    finally:
        os.close(descriptor)


class ServerCertificate:
    """Lets a running server take up a renewed certificate: new connections get it, open ones stay."""

    def __init__(self, context: ssl.SSLContext, cert_path: Path, key_path: Path) -> None:
        self._context = context
        self._cert_path = cert_path
        self._key_path = key_path
        self._stamp = self._stat()

    def reload_if_changed(self) -> bool:
        """True when a new one was taken up. HostFailure when that is unusable: the old one serves on."""
        try:
            stamp = self._stat()
            if stamp == self._stamp:
                return False
            # First into a context that nobody uses: a half-loaded pair would leave ours without a key.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self._cert_path, self._key_path)
            self._context.load_cert_chain(self._cert_path, self._key_path)
        except (OSError, ssl.SSLError) as error:
            raise HostFailure(
                f"reloading the server's certificate {self._cert_path}: {_reason(error)}",
                hint="the old one stays in use until both files are good",
            ) from error
        self._stamp = stamp
        return True

    def _stat(self) -> _Stamp:
        found = (self._cert_path.stat(), self._key_path.stat())
        return tuple((file.st_mtime_ns, file.st_size, file.st_ino) for file in found)


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return f"not a usable certificate and key ({error.reason or 'unreadable'})".lower()
    return (error.strerror or str(error)).lower()
