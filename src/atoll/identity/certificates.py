"""Making X.509 certificates and keys. Pure but for randomness; the time is passed in."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from atoll.errors import Conflict, Invalid, Malformed
from atoll.identity import extensions
from atoll.identity.claims import Claims, Kind, as_ip, check_ca_name

CA_LIFETIME = timedelta(days=3650)
SERVER_LIFETIME = timedelta(days=30)
SERVICE_LIFETIME = timedelta(days=30)
USER_LIFETIME = timedelta(hours=24)
ADMIN_LIFETIME = timedelta(days=7)
MAX_LEAF_LIFETIME = timedelta(days=397)
BACKDATE = timedelta(minutes=5)
"""Clocks of machines differ: a fresh certificate must not be from the future for a peer."""

GROUPS = x509.ObjectIdentifier(extensions.GROUPS_OID)
METHODS = x509.ObjectIdentifier(extensions.METHODS_OID)
LIMIT = x509.ObjectIdentifier(extensions.LIMIT_OID)

UNREADABLE = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.InvalidVersion,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)
"""What the library raises over bytes from outside."""

Key = ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey
PublicKey = ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey | rsa.RSAPublicKey

_USAGES = {
    Kind.SERVER: (ExtendedKeyUsageOID.SERVER_AUTH,),
    Kind.USER: (ExtendedKeyUsageOID.CLIENT_AUTH,),
    Kind.SERVICE: (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH),
}


class KeyKind(StrEnum):
    P256 = "p256"
    ED25519 = "ed25519"


def make_key(kind: KeyKind = KeyKind.P256) -> Key:
    if kind is KeyKind.ED25519:
        return ed25519.Ed25519PrivateKey.generate()
    return ec.generate_private_key(ec.SECP256R1())


def issue_ca(name: str, key: Key, *, serial: int, now: datetime, lifetime: timedelta) -> x509.Certificate:
    """A self-signed CA that signs leaves only."""
    check_ca_name("CA name", name)
    subject = _common_name(name)
    builder = _builder(subject, subject, key.public_key(), serial, now, now + lifetime)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_key_usage(signs_certificates=True), critical=True)
    return builder.sign(key, signature_hash(key))


def issue(
    claims: Claims,
    public_key: PublicKey,
    ca: x509.Certificate,
    ca_key: Key,
    *,
    serial: int,
    now: datetime,
    lifetime: timedelta,
) -> x509.Certificate:
    """A leaf that states these claims, and never outlives its CA."""
    check_leaf_lifetime(lifetime)
    if now >= ca.not_valid_after_utc:
        ended = f"{ca.not_valid_after_utc:%Y-%m-%d %H:%M}Z"
        raise Conflict(
            f"issuing a certificate for {claims.subject}: the CA expired at {ended}",
            hint="make a new CA and issue all certificates again",
        )
    not_after = min(now + lifetime, ca.not_valid_after_utc)
    builder = _builder(_common_name(claims.subject), ca.subject, public_key, serial, now, not_after)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_key_usage(signs_certificates=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage(_USAGES[claims.kind]), critical=False)
    builder = builder.add_extension(_authority_key(ca), critical=False)
    if claims.names:
        names = [_general_name(name) for name in claims.names]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    if claims.groups:
        groups = x509.UnrecognizedExtension(GROUPS, extensions.encode_groups(claims.groups))
        builder = builder.add_extension(groups, critical=False)
    if claims.methods:
        methods = x509.UnrecognizedExtension(METHODS, extensions.encode_methods(claims.methods))
        builder = builder.add_extension(methods, critical=False)
    if claims.limit is not None:
        limit = x509.UnrecognizedExtension(LIMIT, extensions.encode_limit(claims.limit))
        # Critical: a reader that does not know it would otherwise let its holder do everything.
        builder = builder.add_extension(limit, critical=True)
    return builder.sign(ca_key, signature_hash(ca_key))


def check_leaf_lifetime(lifetime: timedelta) -> None:
    if not timedelta(0) < lifetime <= MAX_LEAF_LIFETIME:
        raise Invalid(
            "lifetime", str(lifetime), f"must be more than 0 and at most {MAX_LEAF_LIFETIME.days} days"
        )


def signature_hash(key: Key) -> hashes.SHA256 | None:
    """What goes with a signature by this key; Ed25519 brings its own."""
    return None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()


def key_to_pem(key: Key) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def key_from_pem(pem: bytes) -> Key:
    try:
        key = load_pem_private_key(pem, password=None)
    except UNREADABLE as error:
        raise Malformed("reading a private key: not an unencrypted PEM key") from error
    if not isinstance(key, Key):
        raise Malformed("reading a private key: neither ECDSA nor Ed25519")
    return key


def to_pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.PEM)


def from_pem(pem: bytes) -> x509.Certificate:
    """The first certificate in these bytes."""
    return all_from_pem(pem)[0]


def all_from_pem(pem: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem)
    except UNREADABLE as error:
        raise Malformed("reading a certificate: not a PEM certificate") from error


def from_der(der: bytes) -> x509.Certificate:
    try:
        return x509.load_der_x509_certificate(der)
    except UNREADABLE as error:
        raise Malformed("reading a certificate: not a DER certificate") from error


def public_key(certificate: x509.Certificate) -> PublicKey:
    try:
        key = certificate.public_key()
    except UNREADABLE as error:
        raise Malformed("reading a certificate: its key is of an unknown kind") from error
    if not isinstance(key, PublicKey):
        raise Malformed("reading a certificate: its key is neither ECDSA, Ed25519 nor RSA")
    return key


def describe_key(certificate: x509.Certificate) -> str:
    """The kind of key in a certificate of any issuer."""
    try:
        key = certificate.public_key()
    except UNREADABLE:
        return "unknown"
    if isinstance(key, ec.EllipticCurvePublicKey):
        return key.curve.name
    return type(key).__name__.removesuffix("PublicKey").lstrip("_").lower()


def issued_by(certificate: x509.Certificate, ca: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(ca)
    except (InvalidSignature, *UNREADABLE):
        return False
    return True


def _common_name(value: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, value)])


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    public_key: PublicKey,
    serial: int,
    now: datetime,
    not_after: datetime,
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder(
        subject_name=subject,
        issuer_name=issuer,
        public_key=public_key,
        serial_number=serial,
        not_valid_before=now.replace(microsecond=0) - BACKDATE,
        not_valid_after=not_after.replace(microsecond=0),
    )
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _authority_key(ca: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    identifier = ca.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier)


def _general_name(name: str) -> x509.GeneralName:
    address = as_ip(name)
    return x509.IPAddress(address) if address else x509.DNSName(name)
