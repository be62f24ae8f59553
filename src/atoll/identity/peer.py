"""From the certificate that a connection presented to the identity that calls.

Pure but for asking the revocations. The TLS handshake proved that the peer holds the key. Everything else is
checked here, on every request, because a connection can outlive its certificate.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from typing import Protocol

from cryptography.hazmat.primitives.serialization import Encoding
from msgspec import Struct

from atoll.errors import Invalid, Malformed, Unauthenticated
from atoll.identity import certificates
from atoll.identity.contents import Contents
from atoll.identity.trust import Ca, Chain, as_ca, find_chain
from atoll.model.identity import Identity

_CACHED = 1024
_INTERMEDIATES = 64
"""CAs that clients sent, and that are kept."""
_ASK = "ask an operator for one: atoll ca issue user"


class AsksRevocation(Protocol):
    def refusal(self, issuer: Ca, serial: int, now: datetime) -> str | None:
        """What is wrong with a certificate of this issuer, as the end of a sentence about it; or None."""
        ...


class NothingRevoked:
    """For CAs that publish no list."""

    def refusal(self, issuer: Ca, serial: int, now: datetime) -> str | None:
        return None


class _Peer(Struct, frozen=True):
    identity: Identity
    chain: Chain


class PeerReader:
    """Knows callers by what `cas` issued, directly or through intermediate CAs that clients send."""

    def __init__(self, cas: Sequence[Ca], revocations: AsksRevocation) -> None:
        self._cas = tuple(cas)
        self._known = frozenset(ca.certificate.public_bytes(Encoding.DER) for ca in cas)
        self._sent: OrderedDict[bytes, Ca] = OrderedDict()
        self._revocations = revocations
        self._read_cached = lru_cache(maxsize=_CACHED)(self._read)

    def learn(self, chain: Sequence[bytes]) -> None:
        """A chain that a TLS handshake has verified, the leaf first.

        Handlers are shown the leaf alone, so intermediate CAs that only the client has are kept from here.
        """
        for der in chain[1:]:
            if der in self._known:
                continue
            if der in self._sent:
                self._sent.move_to_end(der)
                continue
            with suppress(Malformed):
                self._sent[der] = as_ca(certificates.from_der(der))
                if len(self._sent) > _INTERMEDIATES:
                    self._sent.popitem(last=False)

    def identity(self, der: bytes | None, now: datetime) -> Identity:
        """Who calls, or Unauthenticated with the reason."""
        if not der:
            raise Unauthenticated("this call needs a client certificate, and none was presented", hint=_ASK)
        peer = self._read_cached(der)
        chain = peer.chain
        if now > chain.not_after:
            raise Unauthenticated(
                f"the certificate of {peer.identity.user} expired at {_show(chain.not_after)},"
                f" and it is {_show(now)} here",
                hint="renew it with: atoll ca renew FILE, on the machine of its CA; or set the clocks, if one is wrong",
            )
        if now < chain.not_before:
            raise Unauthenticated(
                f"the certificate of {peer.identity.user} is not valid before {_show(chain.not_before)},"
                f" and it is {_show(now)} here",
                hint="check the clocks of this machine and of the CA's",
            )
        for depth, link in enumerate(chain.links):
            reason = self._revocations.refusal(link.issuer, link.serial, now)
            if reason is not None:
                user, below = peer.identity.user, chain.links[depth - 1].issuer.name
                whose = user if depth == 0 else f"CA {below}, which issued that of {user},"
                raise Unauthenticated(f"the certificate of {whose} {reason}", hint=_ASK)
        return peer.identity

    def _read(self, der: bytes) -> _Peer:
        try:
            certificate = certificates.from_der(der)
            contents = Contents(certificate)
            self._check_usable(contents)
            chain = find_chain(certificate, self._cas, tuple(self._sent.values()))
            if chain is None:
                raise Unauthenticated(
                    "the client certificate is of a CA that is not trusted here",
                    hint="the CA file of this server must hold its root, or the CA that issued it directly",
                )
            identity = Identity(contents.subject, contents.groups, contents.methods, contents.limit)
        except Malformed as error:
            raise Unauthenticated(f"the client certificate is unusable: {error.brief}", hint=_ASK) from error
        except Invalid as error:
            raise Unauthenticated(
                f"the client certificate is unusable: its subject common name, as {error.brief}", hint=_ASK
            ) from error
        return _Peer(identity, chain)

    def _check_usable(self, contents: Contents) -> None:
        if unknown := contents.not_understood:
            raise Unauthenticated(
                f"the client certificate is unusable: its extension {unknown} is critical and not understood here",
                hint="this node may be too old for it; ask for another one: atoll ca issue user",
            )
        if contents.is_ca:
            raise Unauthenticated("the client certificate is unusable: it is a CA's own", hint=_ASK)
        if not contents.for_clients:
            raise Unauthenticated(
                f"the certificate of {contents.subject[:64]!r} is for servers only, and cannot call",
                hint="programs that serve and call need: atoll ca issue service",
            )


def _show(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S}Z"
