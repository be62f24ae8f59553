"""Fingerprints of CAs, which people compare before they trust one. Pure; without `cryptography`."""

from __future__ import annotations

import hashlib
import re
import ssl

from atoll.errors import Invalid, Malformed

_HEX = re.compile(r"[0-9a-f]{64}")


def of_pem(pem: bytes) -> bytes:
    """SHA-256 of the first certificate in these bytes."""
    try:
        text = pem.decode("ascii")
        end = text.index(ssl.PEM_FOOTER) + len(ssl.PEM_FOOTER)
        der = ssl.PEM_cert_to_DER_cert(text[text.index(ssl.PEM_HEADER) : end])
    except ValueError:  # and what is not base64, and not ASCII
        raise Malformed("reading a certificate: not a PEM certificate") from None
    return hashlib.sha256(der).digest()


def show(fingerprint: bytes) -> str:
    """As `atoll ca show` and `openssl x509 -fingerprint` have it: SHA256:AB:CD:…"""
    return f"SHA256:{fingerprint.hex(':').upper()}"


def parse(text: str) -> bytes:
    """As people write it: with or without SHA256 before it and colons in it, in any case."""
    plain = re.sub(r"^sha-?256[:= ]?", "", text.strip().lower()).replace(":", "").replace(" ", "")
    if not _HEX.fullmatch(plain):
        raise Invalid(
            "fingerprint", text, "is not a SHA-256 fingerprint", hint="atoll ca show has the CA's own"
        )
    return bytes.fromhex(plain)
