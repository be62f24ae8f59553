"""A role's long-lived credential, which the creator of a VM hands over: its Hypervisor renews short-lived ones with it.

Pure. It is a secret: whatever prints it shows nothing of it, and no error quotes it.
"""

from __future__ import annotations

import re
from typing import Annotated

from msgspec import Meta, Struct

from atoll.errors import Invalid

FIELD = "role_credential"
MAX_CERTIFICATES = 32 << 10
MAX_KEY = 4 << 10
MAX_PEM = 64 << 10

_BASE64 = r"[A-Za-z0-9+/=\s]+"
_CERTIFICATES = re.compile(rf"(?:-----BEGIN CERTIFICATE-----{_BASE64}-----END CERTIFICATE-----\s*)+")
_KEY = re.compile(rf"-----BEGIN ((?:RSA |EC )?PRIVATE KEY)-----{_BASE64}-----END \1-----")
_BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]{1,40})-----.*?-----END \1-----", re.DOTALL)
_ENCRYPTED = ("ENCRYPTED PRIVATE KEY", "Proc-Type: 4,ENCRYPTED")

CertificatePem = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=MAX_CERTIFICATES,
        description="PEM: the certificate, then those of its CAs if its issuer needs them",
        extra_json_schema={"writeOnly": True},
    ),
]
KeyPem = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=MAX_KEY,
        description="PEM: the private key of the certificate, not encrypted",
        extra_json_schema={"writeOnly": True},
    ),
]


class LongLivedCredential(Struct, frozen=True, forbid_unknown_fields=True):
    """A client certificate of a role and its private key. Never given back by any call."""

    certificate: CertificatePem
    key: KeyPem

    def __post_init__(self) -> None:
        if len(self.certificate) > MAX_CERTIFICATES or not _CERTIFICATES.fullmatch(self.certificate.strip()):
            raise refused(
                "certificate", self.certificate, f"must be PEM, at most {MAX_CERTIFICATES} characters"
            )
        if any(mark in self.key for mark in _ENCRYPTED):
            raise refused(
                "key",
                self.key,
                "is encrypted, and nobody is there to type its password",
                hint="decrypt it first: openssl pkey -in KEY",
            )
        if len(self.key) > MAX_KEY or not _KEY.fullmatch(self.key.strip()):
            raise refused("key", self.key, f"must be one private key in PEM, at most {MAX_KEY} characters")

    def __repr__(self) -> str:
        return "LongLivedCredential(…)"


def refused(part: str, secret: str, why: str, *, hint: str = "") -> Invalid:
    """The error over one part of it, which tells its length and no more."""
    return Invalid(f"{FIELD}.{part}", f"{len(secret)} characters", why, hint=hint)


def from_pem(text: str) -> LongLivedCredential:
    """The credential in a file that holds certificates and a private key, in any order, and maybe more."""
    blocks = [(found.group(1), found.group(0)) for found in _BLOCK.finditer(text)]
    certificates = [block for label, block in blocks if label == "CERTIFICATE"]
    keys = [block for label, block in blocks if label.endswith("PRIVATE KEY")]
    if not certificates:
        raise refused("certificate", text, "there is none in it", hint="give a file with certificate and key")
    if len(keys) != 1:
        many = f"there are {len(keys)} private keys in it" if keys else "there is no private key in it"
        raise refused("key", text, many, hint="give a file with the certificate and its key, both in PEM")
    return LongLivedCredential("\n".join(certificates) + "\n", keys[0] + "\n")
