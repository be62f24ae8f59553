"""A vault: how a service keeps small secrets on disk. Encrypted, under a key of its own that only root reads.

AES-256-GCM. What is sealed says in its encryption what it is of: a copy of it opens for nobody else. Effects: reads
the key's file, and makes it when it is first needed. Not for the event loop.
"""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from atoll.errors import HostFailure
from atoll.system import files
from atoll.system.failures import failing

KEY_BYTES = 32
_NONCE_BYTES = 12
_HEADER = b"atoll sealed 1\n"


class Vault:
    """The key is read for each use, and in memory only as long as that takes."""

    def __init__(self, key_path: Path) -> None:
        self._key_path = key_path

    def seal(self, secret: bytes, of: str) -> bytes:
        """For a file. `of` names what the secret belongs to."""
        if not self._key_path.exists():
            files.write_once(self._key_path, secrets.token_bytes(KEY_BYTES))
        return seal(self._key(), secret, of)

    def open(self, sealed: bytes, of: str) -> bytes:
        """What was sealed for this. HostFailure when it is of something else, was changed, or the key is another."""
        return open_sealed(self._key(), sealed, of)

    def _key(self) -> bytes:
        with failing(f"reading the key {self._key_path}"):
            status = self._key_path.stat()
            key = files.read_limited(self._key_path, KEY_BYTES)
        if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
            raise HostFailure(
                f"the key {self._key_path} is not for root alone",
                hint=f"chown root {self._key_path} and chmod 600 {self._key_path}; others may have read it",
            )
        if len(key) != KEY_BYTES:
            raise HostFailure(f"the key {self._key_path} is not {KEY_BYTES} bytes long", hint="restore it")
        return key


def seal(key: bytes, secret: bytes, of: str) -> bytes:
    """Pure but for the nonce, which is random: a key is good for some four thousand million secrets."""
    nonce = secrets.token_bytes(_NONCE_BYTES)
    return _HEADER + nonce + AESGCM(key).encrypt(nonce, secret, _HEADER + of.encode())


def open_sealed(key: bytes, sealed: bytes, of: str) -> bytes:
    """Pure. HostFailure unless it is all as it was sealed, with this key, for this."""
    nonce, content = sealed[len(_HEADER) :][:_NONCE_BYTES], sealed[len(_HEADER) + _NONCE_BYTES :]
    if not sealed.startswith(_HEADER) or len(nonce) != _NONCE_BYTES:
        raise HostFailure("it is not a sealed secret")
    try:
        return AESGCM(key).decrypt(nonce, content, _HEADER + of.encode())
    except InvalidTag:
        raise HostFailure("it was changed, or sealed for something else or with another key") from None
