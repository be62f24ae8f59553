"""SSH public keys as users write them: one line of an authorized_keys file, without options. Pure."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Annotated

from msgspec import Meta

from atoll.errors import Invalid

KINDS = (
    "ssh-ed25519",
    "ssh-rsa",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "sk-ssh-ed25519@openssh.com",
    "sk-ecdsa-sha2-nistp256@openssh.com",
)
_KIND = "|".join(re.escape(kind) for kind in KINDS)
KEY_PATTERN = rf"^({_KIND}) [A-Za-z0-9+/]{{40,6000}}={{0,2}}( [^\x00-\x1f\x7f]*)?$"
MAX_KEY = 8192
MAX_KEYS = 32

SshKey = Annotated[str, Meta(pattern=KEY_PATTERN, max_length=MAX_KEY, description="an SSH public key")]
SshKeys = Annotated[tuple[SshKey, ...], Meta(max_length=MAX_KEYS)]

_HINT = "give the content of a .pub file, such as ~/.ssh/id_ed25519.pub"


def check_ssh_keys(field: str, keys: tuple[str, ...]) -> tuple[str, ...]:
    if len(keys) > MAX_KEYS:
        raise Invalid(field, f"{len(keys)} keys", f"must be at most {MAX_KEYS}")
    for key in keys:
        check_ssh_key(field, key)
    return keys


def check_ssh_key(field: str, key: str) -> str:
    """One line: a kind that we know, a key of that very kind, and perhaps a comment."""
    if "PRIVATE KEY" in key:
        raise Invalid(field, "a private key", "must be the public one", hint=_HINT)
    shown = key[:40]
    if len(key) > MAX_KEY:
        raise Invalid(field, shown, f"is longer than {MAX_KEY} characters", hint=_HINT)
    if not re.fullmatch(KEY_PATTERN[1:-1], key):
        raise Invalid(
            field, shown, f"must be one line: {', '.join(KINDS[:3])} …, the key, a comment", hint=_HINT
        )
    kind, encoded = key.split(" ")[:2]
    try:
        blob = base64.b64decode(encoded, validate=True)
    except binascii.Error:
        raise Invalid(field, shown, "has a key that is not base64", hint=_HINT) from None
    if not blob.startswith(len(kind).to_bytes(4, "big") + kind.encode()):
        raise Invalid(field, shown, f"has a key that is not of kind {kind}", hint=_HINT)
    return key


def comment_of(key: str) -> str:
    """What its owner wrote behind the key."""
    return key.split(" ", 2)[2].strip() if key.count(" ") > 1 else ""


def kind_of(key: str) -> str:
    return key.split(" ", 1)[0]
