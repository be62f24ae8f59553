"""Background work of a service: every piece has a name, and none of it ends in silence.

Work that goes on for ever is begun again when it ends, however it ended, after a pause that grows; work that must get
to its end, when it fails; any other work that fails is logged. Effects: tasks of the running loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from msgspec import Struct

from atoll.errors import AtollError

log = logging.getLogger(__name__)

CANCEL_AGAIN_S = 1.0


class Pauses(Struct, frozen=True):
    """How long to wait before failed work is begun again."""

    first_s: float = 0.1
    longest_s: float = 30.0
    forgotten_after_s: float = 60.0
    """Work that went on for so long before it failed is begun again as if it were the first time."""

    def after(self, failures: int) -> float:
        return float(min(self.first_s * 2.0 ** min(failures - 1, 30), self.longest_s))


class Supervisor:
    """Used as a context: what it began is cancelled, and waited for, at the end of the block."""

    def __init__(self, pauses: Pauses | None = None) -> None:
        self._pauses = pauses or Pauses()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self.failures: Counter[str] = Counter()
        """How often work failed, by its name."""

    async def __aenter__(self) -> Supervisor:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def running(self) -> list[str]:
        """Names of the work that is under way."""
        return sorted(task.get_name() for task in self._tasks)

    def keep(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Work that goes on for ever."""
        if not self._closed:
            self._begin(name, self._keep(name, work))

    def finish(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Work that ends by itself, and is begun again until it ended without a failure."""
        if not self._closed:
            self._begin(name, self._keep(name, work, until_done=True))

    def begin(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Work that ends by itself."""
        if self._closed:
            work.close()
        else:
            # Cancelled before it could begin, it would never be closed.
            self._begin(name, self._once(name, work)).add_done_callback(lambda _: work.close())

    def later(self, delay_s: float, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Work that ends by itself, begun after a while."""

        async def wait() -> None:
            await asyncio.sleep(delay_s)
            await work()

        self.begin(name, wait())

    async def close(self) -> None:
        """End all of it. Work that is begun from now on does not run."""
        self._closed = True
        while self._tasks:
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            # Again after a while: a cancellation can get lost in work that was just about to go on.
            await asyncio.wait(tasks, timeout=CANCEL_AGAIN_S)

    def _begin(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _keep(
        self, name: str, work: Callable[[], Awaitable[None]], *, until_done: bool = False
    ) -> None:
        loop, in_a_row = asyncio.get_running_loop(), 0
        while True:
            began = loop.time()
            try:
                await work()
                if until_done:
                    return
                log.error("%s ended, which it never should", name)
            except Exception as error:
                _report(name, error)
            self.failures[name] += 1
            in_a_row = 1 if loop.time() - began > self._pauses.forgotten_after_s else in_a_row + 1
            await asyncio.sleep(self._pauses.after(in_a_row))

    async def _once(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:
            self.failures[name] += 1
            _report(name, error)


def _report(name: str, error: Exception) -> None:
    """What was foreseen in one line; what was not, with the way to it."""
    foreseen = isinstance(error, AtollError | OSError)
    log.error("%s failed: %s", name, error or type(error).__name__, exc_info=not foreseen)
