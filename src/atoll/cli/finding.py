"""What `atoll doctor` finds. Pure values."""

from __future__ import annotations

from msgspec import Struct

OK, WARN, FAIL = "ok", "warning", "failure"
"""A failure is what `atoll up` would fail by."""


class Finding(Struct, frozen=True):
    check: str
    result: str
    found: str
    remedy: str = ""
    """What to type."""
    why: str = ""
    """Why it matters."""
