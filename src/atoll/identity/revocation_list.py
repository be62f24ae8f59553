"""The certificate revocation list: making and reading it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from msgspec import Struct

from atoll.errors import Malformed
from atoll.identity.certificates import BACKDATE, UNREADABLE, Key, signature_hash
from atoll.identity.index import RevokedRecord


class BadList(Malformed):
    """Not a revocation list, or not one of this CA."""


class RevocationList(Struct, frozen=True):
    number: int
    serials: frozenset[int]


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
    """The list, if this CA signed it."""
    try:
        found = x509.load_pem_x509_crl(pem)
        ours = found.issuer == ca.subject and found.is_signature_valid(ca.public_key())  # type: ignore[arg-type]
    except UNREADABLE as error:
        raise BadList("reading a revocation list: not a PEM revocation list") from error
    if not ours:
        raise BadList("reading a revocation list: not signed by the CA")
    try:
        number = found.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
        return RevocationList(number, frozenset(entry.serial_number for entry in found))
    except x509.ExtensionNotFound:
        return RevocationList(0, frozenset(entry.serial_number for entry in found))
    except UNREADABLE as error:
        raise BadList("reading a revocation list: its entries are malformed") from error
