"""What is in a certificate, for people. Pure."""

from __future__ import annotations

from datetime import datetime

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from msgspec import Struct

from atoll.identity import certificates
from atoll.identity.claims import Kind
from atoll.identity.contents import Contents, issuer
from atoll.identity.index import format_serial


class Description(Struct, frozen=True):
    kind: Kind
    subject: str
    issuer: str
    serial: str
    names: tuple[str, ...]
    groups: tuple[str, ...]
    methods: tuple[str, ...]
    """Granted over everything, whoever owns it."""
    limit: tuple[str, ...] | None
    """The only methods that it is good for; null: no limit."""
    not_before: datetime
    not_after: datetime
    key: str
    sha256: str
    """Fingerprint of the whole certificate, as `openssl x509 -fingerprint -sha256` gives it."""

    def state(self, now: datetime) -> str:
        if now > self.not_after:
            return "expired"
        return "valid" if now >= self.not_before else "not yet valid"


def describe(pem: bytes) -> tuple[Description, ...]:
    """Every certificate in these bytes, of whatever issuer."""
    return tuple(_describe(certificate) for certificate in certificates.all_from_pem(pem))


def _describe(certificate: x509.Certificate) -> Description:
    contents = Contents(certificate)
    return Description(
        kind=contents.kind,
        subject=contents.subject,
        issuer=issuer(certificate),
        serial=format_serial(certificate.serial_number),
        names=contents.names,
        groups=tuple(sorted(contents.groups)),
        methods=tuple(sorted(contents.methods)),
        limit=None if contents.limit is None else tuple(sorted(contents.limit)),
        not_before=certificate.not_valid_before_utc,
        not_after=certificate.not_valid_after_utc,
        key=certificates.describe_key(certificate),
        sha256=certificate.fingerprint(hashes.SHA256()).hex(":").upper(),
    )
