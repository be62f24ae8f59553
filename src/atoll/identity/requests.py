"""Certificate requests (PKCS #10): somebody who made a key asks for a certificate of it. Pure but for randomness.

A request proves that its sender has the key, and nothing else: who they are is for the CA to say.
"""

from __future__ import annotations

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from atoll.api.joining import MAX_REQUEST
from atoll.errors import Denied, Invalid
from atoll.identity.certificates import UNREADABLE, Key, PublicKey, signature_hash

MIN_RSA_BITS = 2048
_CURVES = (ec.SECP256R1, ec.SECP384R1, ec.SECP521R1)


def make(key: Key, name: str) -> bytes:
    """In PEM. The name is for people who look at it."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    request = x509.CertificateSigningRequestBuilder(subject).sign(key, signature_hash(key))
    return request.public_bytes(Encoding.PEM)


def public_key(pem: bytes) -> PublicKey:
    """The key that a request is for, whose holder signed it."""
    if len(pem) > MAX_REQUEST:
        raise Invalid("certificate request", f"{len(pem)} bytes", f"is longer than {MAX_REQUEST}")
    try:
        request = x509.load_pem_x509_csr(pem)
        sound, key = request.is_signature_valid, request.public_key()
    except UNREADABLE as error:
        raise Invalid("certificate request", f"{len(pem)} bytes", "is not one in PEM") from error
    if not sound:
        raise Denied("certificate request: it is not signed by the key that it is for")
    if not isinstance(key, PublicKey) or not _is_strong(key):
        raise Denied(
            "certificate request: its key is too weak, or of an unknown kind",
            hint="ECDSA with P-256, Ed25519, and RSA from 2048 bits on are taken",
        )
    return key


def _is_strong(key: PublicKey) -> bool:
    if isinstance(key, rsa.RSAPublicKey):
        return key.key_size >= MIN_RSA_BITS
    return not isinstance(key, ec.EllipticCurvePublicKey) or isinstance(key.curve, _CURVES)
