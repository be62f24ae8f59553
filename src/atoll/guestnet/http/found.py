"""What a guest's request is answered with. Pure values."""

from __future__ import annotations

from msgspec import Struct

TEXT = "text/plain"


class Found(Struct, frozen=True):
    """What a path holds, as an answer."""

    status: int
    content_type: str
    body: bytes
    headers: dict[str, str] = {}
