"""What callers did wrong, in the log: a short line of each kind from each source, then a number. Writes log lines."""

from __future__ import annotations

import asyncio
import logging

from atoll.system import clock
from atoll.system.folding import Folding

WINDOW_S = 60.0
SOURCES = 64
"""Kept apart at a time. More of them than that share their lines."""
_APART = " from "


class Complaints:
    """Folds them. To be used within a running loop, which tells the numbers in the end."""

    def __init__(self, log: logging.Logger, window_s: float = WINDOW_S) -> None:
        self._log = log
        self._window_s = window_s
        self._folding = Folding(1, window_s, SOURCES)
        self._timer: asyncio.TimerHandle | None = None

    def about(self, source: str, what: str) -> None:
        now = clock.monotonic()
        self._tell_numbers(now)
        kind = self._folding.tell(f"{what}{_APART}{source}", now)
        if kind is not None:
            self._log.warning("%s", kind if _APART in kind else f"{what}{_APART}{kind}")
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._window_s, self._on_timer)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _on_timer(self) -> None:
        self._timer = None
        self._tell_numbers(clock.monotonic())

    def _tell_numbers(self, now: float) -> None:
        for kind, count in self._folding.over(now):
            self._log.warning("%s, and %d more like it", kind, count)
