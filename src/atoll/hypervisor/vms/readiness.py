"""How far each VM has come since it was started: a board that servers write to and waiters watch.

No effects of its own; lives in the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping


class Board:
    """Stages by VM. `begin` starts the clock; a stage is reached once and keeps its first time."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began: dict[str, float] = {}
        self._stages: dict[str, dict[str, float]] = {}
        self._changed: dict[str, asyncio.Event] = {}

    def begin(self, ip: str, at: float) -> None:
        self._began[ip] = at
        self._stages[ip] = {}
        self.wake(ip)

    def resume(self, ip: str, stages: Mapping[str, float]) -> None:
        """Go on with a VM that another agent began; the clock goes on from the last stage it noted."""
        self.begin(ip, self._clock() - max(stages.values(), default=0.0))
        self._stages[ip].update(stages)

    def forget(self, ip: str) -> None:
        self._began.pop(ip, None)
        self._stages.pop(ip, None)
        self.wake(ip)

    def reach(self, ip: str, stage: str) -> bool:
        """Note a stage; whether it was new. A VM that nobody began is none of ours."""
        stages = self._stages.get(ip)
        if stages is None or stage in stages:
            return False
        stages[stage] = round(self._clock() - self._began[ip], 6)
        self.wake(ip)
        return True

    def stages(self, ip: str) -> dict[str, float]:
        return dict(self._stages.get(ip, {}))

    def wake(self, ip: str) -> None:
        """Let waiters look again: something happened that is no stage."""
        if event := self._changed.pop(ip, None):
            event.set()

    async def changed(self, ip: str, timeout_s: float) -> None:
        """Until something is noted for this VM, or the time is up."""
        event = self._changed.setdefault(ip, asyncio.Event())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await event.wait()
