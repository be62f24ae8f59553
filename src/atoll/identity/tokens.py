"""The text of an invitation: what somebody on another machine needs to get a certificate, in one word. Pure.

    atoll1_<base64url of: MessagePack of a Token, then four bytes of its SHA-256>

It carries a secret that is good once. The check bytes tell of a word that was cut or mistyped; they protect nothing.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from atoll.api import reaching
from atoll.errors import AtollError, Malformed

PREFIX = "atoll1_"
MAX_TOKEN = 2048
MAX_ADDRESSES = 16
_CHECK_BYTES = 4
_TEXT = re.compile(r"[A-Za-z0-9_-]+")


class Token(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    addresses: Annotated[
        tuple[Annotated[str, Meta(max_length=280)], ...], Meta(min_length=1, max_length=MAX_ADDRESSES)
    ]
    """Where the API is, HOST:PORT; the first that is the right one is asked."""
    fingerprint: Annotated[bytes, Meta(min_length=32, max_length=32)]
    """SHA-256 of the certificate of the CA, in DER."""
    id: Annotated[bytes, Meta(min_length=8, max_length=8)]
    secret: Annotated[bytes, Meta(min_length=24, max_length=24)]

    def __repr__(self) -> str:
        return f"Token({self.addresses!r}, {self.id.hex()!r})"


def write(token: Token) -> str:
    packed = msgspec.msgpack.encode(token)
    return PREFIX + base64.urlsafe_b64encode(packed + _check(packed)).decode().rstrip("=")


def read(text: str) -> Token:
    """What a word says, or Malformed. No error quotes it: it may be somebody's secret."""
    word = "".join(text.split())
    if not word.startswith(PREFIX):
        raise Malformed(f"the token does not begin with {PREFIX}", hint="atoll remote invite prints one")
    body = word.removeprefix(PREFIX)
    if len(word) > MAX_TOKEN or not _TEXT.fullmatch(body):
        raise _broken()
    try:
        data = base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))
    except (binascii.Error, ValueError):
        raise _broken() from None
    packed, check = data[:-_CHECK_BYTES], data[-_CHECK_BYTES:]
    if check != _check(packed):
        raise _broken()
    try:
        token = msgspec.msgpack.decode(packed, type=Token)
        for address in token.addresses:
            reaching.parse("address", address, 1)
    except (msgspec.MsgspecError, AtollError):
        raise Malformed("the token is of a version that is not known here", hint="update atoll") from None
    return token


def looks_like_one(text: str) -> bool:
    """For commands that take a token or something else."""
    return text.startswith(PREFIX)


def _broken() -> Malformed:
    return Malformed("the token is not whole", hint="copy all of it, in one line")


def _check(packed: bytes) -> bytes:
    return hashlib.sha256(packed).digest()[:_CHECK_BYTES]
