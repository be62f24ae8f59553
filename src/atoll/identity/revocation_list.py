"""Certificate revocation lists: making our own, reading those of any CA. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from msgspec import Struct

from atoll.errors import Malformed
from atoll.identity import certificates
from atoll.identity.certificates import BACKDATE, UNREADABLE, Key, signature_hash
from atoll.identity.index import RevokedRecord
from atoll.identity.trust import Ca

_PEM = re.compile(rb"-----BEGIN X509 CRL-----.+?-----END X509 CRL-----", re.DOTALL)


class BadList(Malformed):
    """Not a revocation list, or not one of this CA."""


class RevocationList(Struct, frozen=True):
    number: int
    """0 where the CA does not count its lists."""
    serials: frozenset[int]
    last_update: datetime
    next_update: datetime | None = None
    """From then on there is a newer list, and this one says nothing of what has been revoked since."""

    def is_newer_than(self, other: RevocationList) -> bool:
        return (self.number, self.last_update) >= (other.number, other.last_update)


def worth_listing(revoked: Mapping[str, RevokedRecord], now: datetime) -> dict[str, RevokedRecord]:
    """What has expired is refused for that. A margin for servers whose clock is behind."""
    return {serial: record for serial, record in revoked.items() if record.not_after > now - BACKDATE}


def make(
    ca: x509.Certificate, key: Key, revoked: Mapping[str, RevokedRecord], *, number: int, now: datetime
) -> bytes:
    moment = now.replace(microsecond=0)
    builder = x509.CertificateRevocationListBuilder(
        issuer_name=ca.subject,
        last_update=moment - BACKDATE,
        # It is replaced when something is revoked, not by the calendar; nobody waits for a next one.
        next_update=max(ca.not_valid_after_utc, moment),
    )
    builder = builder.add_extension(x509.CRLNumber(number), critical=False)
    builder = builder.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False
    )
    for serial, record in worth_listing(revoked, now).items():
        entry = x509.RevokedCertificateBuilder(int(serial, 16), record.revoked_at.replace(microsecond=0))
        builder = builder.add_revoked_certificate(entry.build())
    return builder.sign(key, signature_hash(key)).public_bytes(Encoding.PEM)


def read(pem: bytes, ca: x509.Certificate) -> RevocationList:
    """The first list in these bytes, if this CA signed it."""
    found = _load(pem)[0]
    if not _is_signed_by(found, ca):
        raise BadList("reading a revocation list: not signed by the CA")
    return _read(found)


def read_all(data: bytes, cas: Sequence[Ca]) -> dict[bytes, RevocationList]:
    """The lists in these bytes, PEM or DER, by the id of their issuer, which must be one of these CAs."""
    lists: dict[bytes, RevocationList] = {}
    for found in _load(data):
        issuer = next((ca for ca in cas if _is_signed_by(found, ca.certificate)), None)
        if issuer is None:
            raise BadList(
                f"the revocation list of {_issuer(found)!r} is not signed by a CA that is trusted here"
            )
        each = _read(found)
        if issuer.issuer_id not in lists or each.is_newer_than(lists[issuer.issuer_id]):
            lists[issuer.issuer_id] = each
    return lists


def _load(data: bytes) -> list[x509.CertificateRevocationList]:
    try:
        if b"-----BEGIN" not in data:
            return [x509.load_der_x509_crl(data)]
        found = [x509.load_pem_x509_crl(pem) for pem in _PEM.findall(data)]
    except UNREADABLE as error:
        raise BadList("reading a revocation list: not a PEM or DER revocation list") from error
    if not found:
        raise BadList("reading a revocation list: not a PEM or DER revocation list")
    return found


def _is_signed_by(found: x509.CertificateRevocationList, ca: x509.Certificate) -> bool:
    try:
        return found.issuer == ca.subject and found.is_signature_valid(certificates.public_key(ca))
    except UNREADABLE as error:
        raise BadList("reading a revocation list: its issuer or signature is malformed") from error


def _issuer(found: x509.CertificateRevocationList) -> str:
    return found.issuer.rfc4514_string()[:80]


def _read(found: x509.CertificateRevocationList) -> RevocationList:
    try:
        number = 0
        for extension in found.extensions:
            if isinstance(extension.value, x509.CRLNumber):
                number = extension.value.crl_number
            elif extension.critical:
                # A delta, a part, or a list for others: to take it for a whole one would let revoked ones in.
                raise BadList(
                    f"the revocation list of {_issuer(found)!r} is not a complete one of its CA's own"
                )
        return RevocationList(
            number,
            frozenset(entry.serial_number for entry in found),
            found.last_update_utc,
            found.next_update_utc,
        )
    except UNREADABLE as error:
        raise BadList("reading a revocation list: its entries are malformed") from error
