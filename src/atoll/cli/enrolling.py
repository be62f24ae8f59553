"""Coming to trust a cloud elsewhere, and to a certificate of it. Effects: asks that cloud.

Whoever answers is believed nothing: it shows the certificate of a CA, whose fingerprint we know or the user compares.
From then on it has to prove itself by that CA, and only then it is told a secret.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from atoll.api.client import Client
from atoll.api.hypervisor import HEALTH, PORT
from atoll.api.joining import CA_SHOW, INVITATION_REDEEM, Joined, Redeem
from atoll.api.reaching import Address, parse, show
from atoll.errors import AtollError, Denied, NotFound, Unauthenticated, Unreachable
from atoll.identity import certificates, fingerprints, requests, tls
from atoll.identity.contents import Contents
from atoll.identity.tls import Pair
from atoll.identity.tokens import Token

TIMEOUT_S = 15.0


class Ca(Struct, frozen=True):
    """The CA that somebody at these addresses says is theirs."""

    pem: bytes
    addresses: tuple[Address, ...]
    """Where it was found first."""

    @property
    def fingerprint(self) -> bytes:
        return fingerprints.of_pem(self.pem)


def addresses_of(texts: Sequence[str]) -> tuple[Address, ...]:
    return tuple(parse("address", text, PORT) for text in texts)


def find_ca(addresses: Sequence[Address], wanted: bytes | None) -> Ca:
    """The CA with this fingerprint; without one, that of the first address that answers."""
    failures: list[AtollError] = []
    for address in addresses:
        try:
            pem = _shown_ca(address)
        except AtollError as error:
            failures.append(error)
            continue
        found = fingerprints.of_pem(pem)
        if wanted is None or found == wanted:
            return Ca(pem, (address, *(other for other in addresses if other != address)))
        failures.append(_another(address, found, wanted))
    # An address that is somebody else's says more than one that does not answer.
    raise next((error for error in failures if isinstance(error, Unauthenticated)), failures[0])


def _shown_ca(address: Address) -> bytes:
    anybody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anybody.check_hostname = False
    anybody.verify_mode = ssl.CERT_NONE
    with Client([address], anybody, timeout_s=TIMEOUT_S) as client:
        try:
            return client.call(CA_SHOW).certificate.encode()
        except (NotFound, msgspec.MsgspecError):
            raise Unreachable(
                f"{show(address)}: whoever answers there shows no CA",
                hint="it may be another service, or a cloud of an earlier version: update that",
            ) from None
        except Unreachable as error:
            raise Unreachable(
                error.brief, hint="is that machine up, and its cloud served to others (atoll up --listen)?"
            ) from None


def _another(address: Address, found: bytes, wanted: bytes) -> Unauthenticated:
    return Unauthenticated(
        f"{show(address)}: the CA there is not the one that was named: its fingerprint is"
        f" {fingerprints.show(found)}, and not {fingerprints.show(wanted)}",
        hint="somebody may be in between, or the cloud was made anew: ask its operator (atoll ca show)",
    )


def check_proves_itself(ca: Ca, ca_path: Path) -> None:
    """Whoever answers has a certificate of this CA, for the address that we call it by."""
    with _client(ca, ca_path) as client:
        _proven(ca, lambda: client.call(HEALTH))


def redeem(token: Token, ca: Ca, ca_path: Path, request: bytes) -> Joined:
    """The certificate that the token promises. The secret is sent to nobody but who has proven to be that cloud."""
    body = Redeem(token.id.hex(), token.secret.hex(), request.decode())
    with _client(ca, ca_path) as client:
        _proven(ca, lambda: client.call(HEALTH))
        return client.call(INVITATION_REDEEM, body=body)


def _client(ca: Ca, ca_path: Path) -> Client:
    return Client(ca.addresses, tls.client_context(ca_path), timeout_s=TIMEOUT_S)


def _proven(ca: Ca, call: Callable[[], object]) -> None:
    try:
        call()
    except Unauthenticated as error:
        raise Unauthenticated(
            f"{error.brief}: whoever answers has no certificate of that CA for {show(ca.addresses[0])}",
            hint="use an address that the cloud's certificate names: those of atoll up --listen and --known-as",
        ) from None


def check_certificate(pem: bytes, key_pem: bytes, ca_pem: bytes) -> None:
    """A certificate that we can call with: for our key, of the CA that we trust."""
    leaf = certificates.from_pem(pem)
    contents = Contents(leaf)
    if certificates.public_key(leaf) != certificates.key_from_pem(key_pem).public_key():
        raise Denied(
            f"the certificate of {contents.subject or 'nobody'} is for another key than the one that was made here",
            hint="have the request that atoll remote add wrote signed",
        )
    if not any(certificates.issued_by(leaf, ca) for ca in certificates.all_from_pem(ca_pem)):
        raise Denied(
            f"the certificate of {contents.subject or 'nobody'} is not of the CA that is trusted for this remote",
            hint="have it signed by the CA of that cloud",
        )
    if not contents.for_clients:
        raise Denied(
            f"the certificate of {contents.subject or 'nobody'} is a server's",
            hint="atoll ca sign makes one for a user",
        )
    Pair(pem, key_pem).check()


def make_request(name: str) -> tuple[bytes, bytes]:
    """A new key, and a request for its certificate."""
    key = certificates.make_key()
    return certificates.key_to_pem(key), requests.make(key, name)
