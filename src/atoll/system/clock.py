"""What time it is. Reads the host's clocks."""

from __future__ import annotations

import time
from datetime import UTC, datetime


def now() -> datetime:
    """The time of day, in UTC, to the microsecond."""
    return datetime.now(UTC)


def monotonic() -> float:
    """Seconds that only ever grow, for measuring how long something took."""
    return time.monotonic()


def now_ns() -> int:
    """The time of day in nanoseconds since 1970."""
    return time.time_ns()
