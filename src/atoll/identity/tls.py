"""TLS contexts for servers and clients. Reads key and certificate files; standard library only.

A server asks for a client certificate and does not insist: `/healthz` needs none, and a caller without one
gets an answer that says so. A certificate of another CA, or an expired one, fails the handshake. Revocation,
and expiry on connections that stay open, are asked on every request: see revocations.py and peer.py.
Every CA of a bundle is trusted by itself, intermediate ones too; other intermediate CAs may be sent by the peer.
"""

from __future__ import annotations

import contextlib
import os
import ssl
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from atoll.errors import AtollError, HostFailure, Unauthenticated
from atoll.identity import validity
from atoll.identity.validity import Validity

_LEAVE_CRITICAL_TO_US = 0x10
"""OpenSSL's X509_V_FLAG_IGNORE_CRITICAL, which the ssl module has no name for. OpenSSL cannot be told of extensions of
ours; whatever else it would have refused for that, `peer.py` and `trust.py` refuse."""

_Stamp = tuple[tuple[int, int, int], ...]

Learn = Callable[[Sequence[bytes]], None]
"""Is told the chain of a client whose handshake was a success: certificates in DER, the leaf first."""


class _ServerEnd(ssl.SSLObject):
    """The server's end of a handshake: tells a client that its certificate is refused, and `learn` its chain.

    Event loops drop a connection when a handshake fails, and with it the alert that is still to be sent.
    """

    learn: Learn | None = None
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
        if self.learn is not None:
            self.learn(_verified_chain(self))


def _verified_chain(end: ssl.SSLObject) -> list[bytes]:
    """Python has this as a method of its own from 3.13 on; before, the object below has it."""
    public = getattr(end, "get_verified_chain", None)
    if public is not None:
        return list(public() or ())
    found = end._sslobj.get_verified_chain() or ()  # type: ignore[attr-defined]
    return [ssl.PEM_cert_to_DER_cert(each.public_bytes()) for each in found]


def server_context(
    cert_path: Path, key_path: Path, ca_path: Path, learn: Learn | None = None
) -> ssl.SSLContext:
    """`ca_path` holds the CAs whose client certificates are taken."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_OPTIONAL
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | ssl.VerifyFlags(_LEAVE_CRITICAL_TO_US)
    context.sslobject_class = type(
        "_Learning", (_ServerEnd,), {"learn": staticmethod(learn) if learn else None}
    )
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
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
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


class CurrentTls:
    """A client's context that follows its files: made anew when they have changed and are good."""

    def __init__(self, make: Callable[[], ssl.SSLContext], *paths: Path) -> None:
        """`make` reads those files. What goes wrong the first time is raised; later the old one stays."""
        self._make = make
        self._paths = paths
        self._stamp = self._look()
        self._context = make()

    def __call__(self) -> ssl.SSLContext:
        stamp = self._look()
        if stamp != self._stamp:
            with contextlib.suppress(AtollError):
                self._context, self._stamp = self._make(), stamp
        return self._context

    def _look(self) -> _Stamp | None:
        try:
            return _stat(self._paths)
        except OSError:
            return None


def memory_client_context(ca_path: Path, cert_pem: bytes, key_pem: bytes) -> ssl.SSLContext:
    """The same for a certificate and key that are in no file."""
    with _in_memory(Pair(cert_pem, key_pem)) as path:
        return client_context(ca_path, path)


class Pair(Struct, frozen=True):
    """A certificate, with those of its CAs if it has any, and its key."""

    cert_pem: bytes
    key_pem: bytes

    def __repr__(self) -> str:
        return "Pair(…)"

    @property
    def validity(self) -> Validity:
        return validity.of_pem(self.cert_pem)

    def check(self) -> None:
        """HostFailure where OpenSSL could not serve with it: they may not belong together."""
        self.load_into(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))

    def load_into(self, context: ssl.SSLContext) -> None:
        try:
            with _in_memory(self) as path:
                context.load_cert_chain(path, password="")
        except (OSError, ssl.SSLError) as error:
            raise HostFailure(_reason(error)) from error


@contextlib.contextmanager
def _in_memory(pair: Pair) -> Iterator[Path]:
    """OpenSSL reads from paths only: this one is that of a file in memory."""
    descriptor = os.memfd_create("credential", os.MFD_CLOEXEC)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(pair.cert_pem + b"\n" + pair.key_pem)
        yield Path(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


class ServerCertificate:
    """Lets a running server take up a renewed certificate: new connections get it, open ones stay."""

    def __init__(self, context: ssl.SSLContext, cert_path: Path, key_path: Path) -> None:
        self._context = context
        self.cert_path = cert_path
        self._key_path = key_path
        self._stamp: _Stamp | None = None
        """Of the files, when they were last read and good."""
        self.pair = self._read(self._stat())
        self.take_up(self.pair)

    @property
    def validity(self) -> Validity:
        """Of the certificate that is served with now."""
        return self.pair.validity

    def reload_if_changed(self) -> bool:
        """True when a new one was taken up. HostFailure when that is unusable: the old one serves on."""
        pair = self.read_if_changed()
        if pair is None:
            return False
        self.take_up(pair)
        return True

    def read_if_changed(self) -> Pair | None:
        """What is new on disk and good. Touches the disk, and nothing that serves."""
        stamp = self._stat()
        return None if stamp == self._stamp else self._read(stamp)

    def take_up(self, pair: Pair) -> None:
        """Serve with it from now on. For the thread that makes connections: they must not see half of it."""
        pair.load_into(self._context)
        self.pair = pair

    def _read(self, stamp: _Stamp) -> Pair:
        """Both files once: what was checked is what is taken up."""
        try:
            pair = Pair(self.cert_path.read_bytes(), self._key_path.read_bytes())
            pair.check()
        except OSError as error:
            raise self._unusable(_reason(error)) from error
        except HostFailure as error:
            raise self._unusable(error.brief) from error
        self._stamp = stamp
        return pair

    def _stat(self) -> _Stamp:
        try:
            return _stat((self.cert_path, self._key_path))
        except OSError as error:
            raise self._unusable(_reason(error)) from error

    def _unusable(self, why: str) -> HostFailure:
        return HostFailure(
            f"reloading the server's certificate {self.cert_path}: {why}",
            hint="the old one stays in use until both files are good",
        )


def _stat(paths: Sequence[Path]) -> _Stamp:
    found = (path.stat() for path in paths)
    return tuple((file.st_mtime_ns, file.st_size, file.st_ino) for file in found)


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return f"not a usable certificate and key ({error.reason or 'unreadable'})".lower()
    return (error.strerror or str(error)).lower()
