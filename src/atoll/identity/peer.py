"""From the certificate that a connection presented to the identity that calls.

Pure but for asking the revocations. The TLS handshake proved that the peer holds the key. Everything else is
checked here, on every request, because a connection can outlive its certificate.
"""

from __future__ import annotations

from datetime import datetime
from functools import lru_cache
from typing import Protocol

from msgspec import Struct

from atoll.errors import Invalid, Malformed, Unauthenticated
from atoll.identity import certificates
from atoll.identity.contents import Contents
from atoll.model.identity import Identity

_CACHED = 1024
_ASK = "ask an operator for one: atoll ca issue user"


class AsksRevocation(Protocol):
    def is_revoked(self, serial: int) -> bool: ...


class NothingRevoked:
    """For a CA that publishes no list."""

    def is_revoked(self, serial: int) -> bool:
        return False


class _Peer(Struct, frozen=True):
    identity: Identity
    serial: int
    not_before: datetime
    not_after: datetime


class PeerReader:
    """`ca_pem` holds the certificates that issue client certificates directly, intermediate ones included."""

    def __init__(self, ca_pem: bytes, revocations: AsksRevocation) -> None:
        self._issuers = certificates.all_from_pem(ca_pem)
        self._revocations = revocations
        self._read_cached = lru_cache(maxsize=_CACHED)(self._read)

    def identity(self, der: bytes | None, now: datetime) -> Identity:
        """Who calls, or Unauthenticated with the reason."""
        if not der:
            raise Unauthenticated("this call needs a client certificate, and none was presented", hint=_ASK)
        peer = self._read_cached(der)
        if now > peer.not_after:
            raise Unauthenticated(
                f"the certificate of {peer.identity.user} expired at {_show(peer.not_after)}",
                hint="atoll up renews the administrator's; atoll ca issue user makes a new one",
            )
        if now < peer.not_before:
            raise Unauthenticated(
                f"the certificate of {peer.identity.user} is not valid before {_show(peer.not_before)}",
                hint="check the clocks of this machine and of the CA's",
            )
        if self._revocations.is_revoked(peer.serial):
            raise Unauthenticated(f"the certificate of {peer.identity.user} was revoked", hint=_ASK)
        return peer.identity

    def _read(self, der: bytes) -> _Peer:
        try:
            certificate = certificates.from_der(der)
            if not any(certificates.issued_by(certificate, issuer) for issuer in self._issuers):
                raise Unauthenticated(
                    "the client certificate is of a CA that is not trusted here",
                    hint="the CA file of this server must hold the CA that issued it directly",
                )
            contents = Contents(certificate)
            self._check_usable(contents)
            identity = Identity(contents.subject, contents.groups, contents.methods)
        except Malformed as error:
            raise Unauthenticated(f"the client certificate is unusable: {error.brief}", hint=_ASK) from error
        except Invalid as error:
            raise Unauthenticated(
                f"the client certificate is unusable: its subject common name, as {error.brief}", hint=_ASK
            ) from error
        return _Peer(
            identity,
            certificate.serial_number,
            certificate.not_valid_before_utc,
            certificate.not_valid_after_utc,
        )

    def _check_usable(self, contents: Contents) -> None:
        if contents.is_ca:
            raise Unauthenticated("the client certificate is unusable: it is a CA's own", hint=_ASK)
        if not contents.for_clients:
            raise Unauthenticated(
                f"the certificate of {contents.subject[:64]!r} is for servers only, and cannot call",
                hint="programs that serve and call need: atoll ca issue service",
            )


def _show(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S}Z"
