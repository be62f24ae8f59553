"""Session tokens of the metadata service (IMDSv2). Pure but for the key, which is random and never leaves it.

A token is its own proof: when it ends, and a seal over that and the VM that it is for. Nothing is kept, so
nobody can fill our memory with tokens. They end with the agent; clients ask for another one.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
import struct
from collections.abc import Mapping

from atoll.guestnet.http.found import TEXT, Found

TTL_HEADER = "X-aws-ec2-metadata-token-ttl-seconds"
TOKEN_HEADER = "X-aws-ec2-metadata-token"  # noqa: S105 - the name of a header
FORWARDED_HEADER = "X-Forwarded-For"
MAX_TTL_S = 21600

_SEAL_BYTES = 32
_MAX_LENGTH = 64

BAD_TTL = Found(400, TEXT, f"{TTL_HEADER} must be from 1 to {MAX_TTL_S}\n".encode())
FORWARDED = Found(403, TEXT, b"tokens are not given through proxies\n")
UNAUTHORIZED = Found(401, TEXT, b"a valid token is needed\n")


class Tokens:
    """Gives tokens and knows them again. Times are seconds of a clock that never goes back."""

    def __init__(self, key: bytes | None = None) -> None:
        self._key = key or secrets.token_bytes(32)

    def give(self, headers: Mapping[str, str], holder: str, now_s: float) -> Found:
        """The answer to a request for a token."""
        # A proxy that is open to the outside adds this header, and would hand the token out.
        if FORWARDED_HEADER in headers:
            return FORWARDED
        ttl = headers.get(TTL_HEADER, "")
        if not re.fullmatch(r"[0-9]{1,5}", ttl, re.ASCII) or not 1 <= int(ttl) <= MAX_TTL_S:
            return BAD_TTL
        return Found(200, TEXT, self.make(holder, now_s + int(ttl)).encode(), {TTL_HEADER: str(int(ttl))})

    def make(self, holder: str, until_s: float) -> str:
        end = struct.pack(">d", until_s)
        return base64.urlsafe_b64encode(end + self._seal(holder, end)).decode()

    def admits(self, headers: Mapping[str, str], holder: str, now_s: float, *, required: bool) -> bool:
        """A token must be good where there is one; it need not be there unless it is required."""
        token = headers.get(TOKEN_HEADER)
        return not required if token is None else self.holds(token, holder, now_s)

    def holds(self, token: str, holder: str, now_s: float) -> bool:
        if len(token) > _MAX_LENGTH or not token.isascii():
            return False
        try:
            raw = base64.b64decode(token, altchars=b"-_", validate=True)
        except binascii.Error:
            return False
        end, seal = raw[:8], raw[8:]
        if len(seal) != _SEAL_BYTES or not hmac.compare_digest(seal, self._seal(holder, end)):
            return False
        (until_s,) = struct.unpack(">d", end)
        return bool(now_s < until_s)

    def _seal(self, holder: str, end: bytes) -> bytes:
        return hmac.digest(self._key, end + holder.encode(), hashlib.sha256)
