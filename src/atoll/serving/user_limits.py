"""How much of a service one user may have: calls in a second, and calls that are open at once. Pure: knows no clock."""

from __future__ import annotations

import math
from collections import Counter
from typing import Annotated

from msgspec import Meta, Struct

from atoll.errors import TooMany

Many = Annotated[int, Meta(ge=1, le=1_000_000)]

_REMEMBERED = 1024
_ROUNDING_S = 1e-6
_OPEN_AGAIN_S = 5
"""Nobody knows when a call ends that is open; this is soon enough to ask again."""


class UserLimits(Struct, frozen=True, forbid_unknown_fields=True):
    """What one user may have of the API at once. Operators of the node are not limited."""

    calls_per_s: Many = 100
    """Calls in a second, for as long as one likes; twice as many in one moment."""
    streams: Many = 64
    """Consoles, screens, logs, uploads and streams of events that are open."""
    launches: Many = 16
    """Creates, starts and reboots of VMs that are under way."""


class Pace:
    """So many a second from each user, and `burst` of them in one moment."""

    def __init__(self, per_s: float, burst: int) -> None:
        self._each_s = 1 / per_s
        self._ahead_s = (burst - 1) / per_s
        self._paid_until: dict[str, float] = {}
        """When all that each user did so far would be done at an even pace."""

    def wait_s(self, user: str, now_s: float) -> float:
        """0: it counts, and goes ahead. Else how long until one more may."""
        until = max(self._paid_until.get(user, 0.0), now_s)
        wait_s = until - now_s - self._ahead_s
        if wait_s > _ROUNDING_S:
            return wait_s
        if len(self._paid_until) >= _REMEMBERED:
            self._paid_until = {who: at for who, at in self._paid_until.items() if at > now_s}
        self._paid_until[user] = until + self._each_s
        return 0.0


class Shares:
    """What each user has open, by kind."""

    def __init__(self) -> None:
        self._open: Counter[tuple[str, str]] = Counter()

    def enter(self, user: str, kind: str, most: int | None) -> None:
        """One more, or TooMany. Whoever entered leaves."""
        mine = self._open[user, kind]
        if most is not None and mine >= most:
            raise TooMany(
                f"{user} has {mine} {kind} open, and may have {most}",
                retry_after_s=_OPEN_AGAIN_S,
                hint=f"end one of them, or ask an operator for more: user_limits.{kind} of the node",
            )
        self._open[user, kind] = mine + 1

    def leave(self, user: str, kind: str) -> None:
        self._open[user, kind] -= 1
        if not self._open[user, kind]:
            del self._open[user, kind]


def too_fast(user: str, per_s: int, wait_s: float) -> TooMany:
    return TooMany(
        f"{user} calls more than {per_s} times a second",
        retry_after_s=math.ceil(wait_s),
        hint="wait a moment, or ask an operator for more: user_limits.calls_per_s of the node",
    )
