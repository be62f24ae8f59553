"""CAs as organisations have them: roots, intermediate ones, any kind of key, with lists or without."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from atoll.identity import extensions

DAY = timedelta(days=1)
KEYS = {
    "rsa": lambda: rsa.generate_private_key(65537, 2048),
    "ec": lambda: ec.generate_private_key(ec.SECP384R1()),
    "ed25519": ed25519.Ed25519PrivateKey.generate,
}
PKINIT = x509.ObjectIdentifier("1.3.6.1.5.2.3.4")
_SERIALS = itertools.count(1000)


def name(common_name: str, *more: tuple[x509.ObjectIdentifier, str]) -> x509.Name:
    attributes = [x509.NameAttribute(oid, value) for oid, value in more]
    return x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def digest(key: object) -> hashes.SHA256 | None:
    return None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()


class Leaf:
    """A certificate and its key; `sent` are the CAs that its holder sends along."""

    def __init__(self, certificate: x509.Certificate, key: object, sent: Sequence[OrgCa] = ()) -> None:
        self.certificate = certificate
        self.key = key
        self.sent = sent

    @property
    def der(self) -> bytes:
        return self.certificate.public_bytes(Encoding.DER)

    @property
    def serial(self) -> int:
        return self.certificate.serial_number

    def write(self, directory: Path, file_name: str) -> tuple[Path, Path]:
        cert, key = directory / f"{file_name}.pem", directory / f"{file_name}.key"
        chain = [self.certificate, *(ca.certificate for ca in self.sent)]
        cert.write_bytes(b"".join(each.public_bytes(Encoding.PEM) for each in chain))
        key.touch(0o600)
        key.write_bytes(self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return cert, key


class OrgCa:
    """One CA; with a parent it is an intermediate one."""

    def __init__(
        self,
        subject: str | x509.Name,
        parent: OrgCa | None = None,
        *,
        key: object = None,
        kind: str = "ec",
        now: datetime | None = None,
        days: float = 365,
        serial: int | None = None,
        signs_lists: bool = True,
    ) -> None:
        self.now = now or datetime.now(UTC)
        self.key = key or KEYS[kind]()
        self.subject = name(subject) if isinstance(subject, str) else subject
        signer = parent or self
        builder = self._builder(self.subject, signer.subject, self.key.public_key(), days, serial)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        builder = builder.add_extension(
            key_usage(digital_signature=True, key_cert_sign=True, crl_sign=signs_lists), critical=True
        )
        self.certificate = builder.sign(signer.key, digest(signer.key))

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)

    def issue(
        self,
        subject: str | x509.Name,
        *,
        groups: bytes | Sequence[str] | None = None,
        methods: Sequence[str] | None = None,
        usages: Sequence[x509.ObjectIdentifier] | None = (ExtendedKeyUsageOID.CLIENT_AUTH,),
        names: Sequence[x509.GeneralName] = (),
        kind: str = "ec",
        days: float = 1,
        serial: int | None = None,
        sent: Sequence[OrgCa] = (),
    ) -> Leaf:
        key = KEYS[kind]()
        subject = name(subject) if isinstance(subject, str) else subject
        builder = self._builder(subject, self.subject, key.public_key(), days, serial)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        if usages is not None:
            builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        if groups is not None:
            value = groups if isinstance(groups, bytes) else extensions.encode_groups(groups)
            builder = builder.add_extension(
                x509.UnrecognizedExtension(x509.ObjectIdentifier(extensions.GROUPS_OID), value),
                critical=False,
            )
        if methods is not None:
            value = extensions.encode_methods(methods)
            builder = builder.add_extension(
                x509.UnrecognizedExtension(x509.ObjectIdentifier(extensions.METHODS_OID), value),
                critical=False,
            )
        return Leaf(builder.sign(self.key, digest(self.key)), key, sent)

    def crl(
        self,
        *serials: int,
        number: int | None = 1,
        days: float = 7,
        more: Sequence[tuple[x509.ExtensionType, bool]] = (),
        encoding: Encoding = Encoding.PEM,
    ) -> bytes:
        start = (self.now - timedelta(minutes=5)).replace(microsecond=0)
        builder = x509.CertificateRevocationListBuilder(
            issuer_name=self.subject, last_update=start, next_update=start + days * DAY
        )
        if number is not None:
            builder = builder.add_extension(x509.CRLNumber(number), critical=False)
        for extension, critical in more:
            builder = builder.add_extension(extension, critical=critical)
        for serial in serials:
            builder = builder.add_revoked_certificate(x509.RevokedCertificateBuilder(serial, start).build())
        return builder.sign(self.key, digest(self.key)).public_bytes(encoding)

    def _builder(
        self, subject: x509.Name, issuer: x509.Name, public_key: object, days: float, serial: int | None
    ) -> x509.CertificateBuilder:
        start = (self.now - timedelta(minutes=5)).replace(microsecond=0)
        return x509.CertificateBuilder(
            issuer_name=issuer,
            subject_name=subject,
            public_key=public_key,
            serial_number=serial if serial is not None else next(_SERIALS),
            not_valid_before=start,
            not_valid_after=start + days * DAY,
        )


def key_usage(**wanted: bool) -> x509.KeyUsage:
    every = (
        *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment"),
        *("key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
    )
    return x509.KeyUsage(**dict.fromkeys(every, False) | wanted)
