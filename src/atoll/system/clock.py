"""What time it is. Reads the host's clocks."""

from __future__ import annotations

import time
from datetime import UTC, datetime

_TIME_ERROR = 5
_TIMEX_BYTES = 512
"""More than struct timex has, on any machine."""


def now() -> datetime:
    """The time of day, in UTC, to the microsecond."""
    return datetime.now(UTC)


def monotonic() -> float:
    """Seconds that only ever grow, for measuring how long something took."""
    return time.monotonic()


def now_ns() -> int:
    """The time of day in nanoseconds since 1970."""
    return time.time_ns()


def is_synchronised() -> bool | None:
    """Whether something keeps the host's clock in step with the world, as the kernel was told. None: not known."""
    # Here, because commands have the time from this module, and wait for what it imports.
    import ctypes

    timex = ctypes.create_string_buffer(_TIMEX_BYTES)
    # With no mode set it only reads.
    state = ctypes.CDLL(None, use_errno=True).adjtimex(timex)
    return None if state < 0 else state != _TIME_ERROR
