"""What a role's long-lived credential must be, before a node takes it. Pure.

Whether its issuer takes it, only the issuer can say: that needs the issuer, and creating a VM does not.
"""

from __future__ import annotations

from datetime import datetime

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from atoll.errors import Invalid, Malformed
from atoll.identity import certificates
from atoll.identity.certificates import UNREADABLE, PublicKey
from atoll.identity.contents import Contents
from atoll.identity.roles import subject_of
from atoll.model.long_lived import LongLivedCredential, refused

_PROBE = b"this key belongs to that certificate"


def check(credential: LongLivedCredential, role: str, now: datetime) -> datetime:
    """When it ends; or Invalid, which says what is wrong with it and nothing that is in it."""
    try:
        leaf = certificates.all_from_pem(credential.certificate.encode())[0]
        contents = Contents(leaf)
        public = certificates.public_key(leaf)
        usable = contents.for_clients and not contents.is_ca
    except Malformed as error:
        raise _wrong_certificate(credential, f"is unusable: {error.brief}") from None
    if not usable:
        raise _wrong_certificate(
            credential, "is not a client's", hint="its issuer takes those of clients only"
        )
    if contents.subject not in (role, subject_of(role)):
        raise _wrong_certificate(
            credential,
            f"is not that of role {role}",
            hint=f"the common name of its subject must be {role} or {subject_of(role)}",
        )
    if not _signs(credential.key, public):
        raise refused(
            "key",
            credential.key,
            "does not belong to the certificate",
            hint="the certificate of the role comes first, those of its CAs after it",
        )
    if now >= leaf.not_valid_after_utc:
        raise _wrong_certificate(
            credential, f"ended at {show(leaf.not_valid_after_utc)}", hint="get another one"
        )
    if now < leaf.not_valid_before_utc:
        raise _wrong_certificate(
            credential, f"begins at {show(leaf.not_valid_before_utc)}", hint="check the clocks"
        )
    return leaf.not_valid_after_utc


def show(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%SZ}"


def _wrong_certificate(credential: LongLivedCredential, why: str, *, hint: str = "") -> Invalid:
    return refused("certificate", credential.certificate, why, hint=hint)


def _signs(key_pem: str, public: PublicKey) -> bool:
    """Whether the certificate's key verifies what this key signs: they belong together, and the key works."""
    try:
        # The library's own validation of an RSA key holds the whole process up for 0.3 s; a signature shows more.
        key = load_pem_private_key(key_pem.encode(), None, unsafe_skip_rsa_key_validation=True)
        if isinstance(key, rsa.RSAPrivateKey) and isinstance(public, rsa.RSAPublicKey):
            scheme, digest = padding.PKCS1v15(), hashes.SHA256()
            public.verify(key.sign(_PROBE, scheme, digest), _PROBE, scheme, digest)
        elif isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(public, ec.EllipticCurvePublicKey):
            ecdsa = ec.ECDSA(hashes.SHA256())
            public.verify(key.sign(_PROBE, ecdsa), _PROBE, ecdsa)
        elif isinstance(key, ed25519.Ed25519PrivateKey) and isinstance(public, ed25519.Ed25519PublicKey):
            public.verify(key.sign(_PROBE), _PROBE)
        else:
            return False
    except (InvalidSignature, *UNREADABLE):
        return False
    return True
