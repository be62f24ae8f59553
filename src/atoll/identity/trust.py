"""The CAs that a service trusts, and the way from a certificate up to one of them. Pure.

A bundle holds roots and intermediate CAs, in any order. Each of them is trusted by itself: a bundle with an
intermediate CA alone trusts what that one issues, and nothing else of its root.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import islice

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from msgspec import Struct

from atoll.errors import Malformed
from atoll.identity import certificates, contents

MAX_DEPTH = 8
_MAX_WAYS = 32


class Ca(Struct, frozen=True, eq=False):
    """A CA. Two certificates of one name and key are the same issuer: its revocation list holds for both."""

    certificate: x509.Certificate
    name: str
    """Its common name; where it has none, its whole subject."""
    issuer_id: bytes
    """What tells issuers apart: the subject and the key."""
    not_understood: str = ""
    """A critical extension of it that nobody here enforces: what it issued is not taken."""


class Link(Struct, frozen=True, eq=False):
    """One certificate of a chain: who issued it, and under which number."""

    issuer: Ca
    serial: int


class Chain(Struct, frozen=True, eq=False):
    links: tuple[Link, ...]
    """From the leaf upwards, as far as the bundle knows."""
    not_before: datetime
    not_after: datetime
    """When the leaf and all CAs up to the first trusted one hold."""


def read_cas(pem: bytes) -> tuple[Ca, ...]:
    """The CAs in a bundle. What is not a CA's certificate does not belong there."""
    found = {certificate: as_ca(certificate) for certificate in certificates.all_from_pem(pem)}
    return tuple(found.values())


def as_ca(certificate: x509.Certificate) -> Ca:
    name = contents.subject(certificate) or certificate.subject.rfc4514_string()
    found = contents.Contents(certificate)
    says_ca = found.says_ca
    if not says_ca and (says_ca is False or not _is_self_signed(certificate)):
        raise Malformed(
            f"the certificate of {name[:64]!r} is not a CA's",
            hint="a bundle of CAs holds roots and intermediate CAs only",
        )
    key = certificates.public_key(certificate)
    spki = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    # The name's length goes first, so that no other name and key make the same bytes.
    subject = certificate.subject.public_bytes()
    issuer_id = hashlib.sha256(len(subject).to_bytes(4, "big") + subject + spki).digest()
    return Ca(certificate, name, issuer_id, found.not_understood)


def find_chain(
    leaf: x509.Certificate, trusted: Sequence[Ca], intermediates: Sequence[Ca] = ()
) -> Chain | None:
    """The way up to a trusted CA that holds longest. `intermediates` are not trusted by themselves."""
    anchors = frozenset(ca.certificate for ca in trusted)
    ways = islice(_ways(leaf, trusted, intermediates, anchors, MAX_DEPTH), _MAX_WAYS)
    chains = [_chain(leaf, links, anchors) for links in ways]
    return max(chains, key=lambda chain: chain.not_after, default=None)


def _ways(
    certificate: x509.Certificate,
    trusted: Sequence[Ca],
    intermediates: Sequence[Ca],
    anchors: frozenset[x509.Certificate],
    depth: int,
) -> Iterator[tuple[Link, ...]]:
    if depth == 0:
        return
    for ca in _issuers(certificate, (*trusted, *intermediates)):
        link, is_anchor = Link(ca, certificate.serial_number), ca.certificate in anchors
        above = False
        if not _is_self_signed(ca.certificate):
            for rest in _ways(ca.certificate, trusted, intermediates, anchors, depth - 1):
                above = True
                yield (link, *rest)
        if is_anchor and not above:
            yield (link,)


def _issuers(certificate: x509.Certificate, cas: Iterable[Ca]) -> Iterator[Ca]:
    for ca in cas:
        if (
            ca.certificate != certificate
            and not ca.not_understood
            and certificates.issued_by(certificate, ca.certificate)
        ):
            yield ca


def _is_self_signed(certificate: x509.Certificate) -> bool:
    return certificates.issued_by(certificate, certificate)


def _chain(leaf: x509.Certificate, links: tuple[Link, ...], anchors: frozenset[x509.Certificate]) -> Chain:
    holding = [leaf]
    for link in links:
        holding.append(link.issuer.certificate)
        if link.issuer.certificate in anchors:
            break
    return Chain(
        links,
        max(certificate.not_valid_before_utc for certificate in holding),
        min(certificate.not_valid_after_utc for certificate in holding),
    )
