"""The writer: everything that must be on disk before somebody is told, in one thread, in order, together.

What is given while the disk is busy gathers, and goes to the disk as one group: so many callers wait about as long
as one (group commit). An await that returns means on disk. Writes of a group are made in the order in which they
were given; one who needs a write on disk before the next one begins awaits it. `run` is a boundary: what was given
before it is on disk before it runs, and what comes after it waits for it.

A caller that is cancelled while it waits for its turn to give has given nothing. Afterwards, its write happens all
the same, in its place. Effects: files, in a thread of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from atoll.errors import HostFailure
from atoll.system import files
from atoll.system.line_log import LineLog
from atoll.system.spares import Spares

T = TypeVar("T")

WAITING = 256
"""So many can be given and not yet done; more callers wait for their turn."""
TOGETHER = 64
"""So many are in a group at most: each has an open file."""


@dataclass(frozen=True, slots=True)
class _Line:
    log: LineLog
    data: bytes


@dataclass(frozen=True, slots=True)
class _Run:
    function: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class _Given:
    """Something to do, and who waits for it."""

    work: files.Write | _Line | _Run
    future: asyncio.Future[Any]


_Settled = tuple[_Given, Any, BaseException | None]


class Writer:
    """For one event loop. Its thread starts with the first write, and ends with `close`.

    With `spares` what is there already can be replaced on a full disk too.
    """

    def __init__(self, spares: Spares | None = None) -> None:
        self._spares = spares
        self._turns = asyncio.Semaphore(WAITING)
        self._queue: queue.SimpleQueue[_Given | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False

    async def write(self, path: Path, data: bytes, mode: int = 0o600) -> None:
        """As `files.write_durably`."""
        await self._give(files.Write(path, data, mode))

    async def append(self, log: LineLog, line: bytes) -> None:
        """A line at the end of a log: on disk, whole, or not there."""
        await self._give(_Line(log, line))

    async def run(self, function: Callable[..., T], *args: Any) -> T:
        """Other short work on the disk, in its turn, such as a rename. Everybody waits for it: nothing long."""
        result: T = await self._give(_Run(lambda: function(*args)))
        return result

    async def close(self) -> None:
        """Finish what was given. What comes later is refused."""
        self._closed = True
        if self._thread is not None:
            self._queue.put(None)
            await asyncio.get_running_loop().run_in_executor(None, self._thread.join)
            self._thread = None

    async def _give(self, work: files.Write | _Line | _Run) -> Any:
        await self._turns.acquire()
        if self._closed:
            self._turns.release()
            raise HostFailure("writing: the agent is ending", hint="try again when it is back")
        loop = asyncio.get_running_loop()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, args=(loop,), name="writer", daemon=True)
            self._thread.start()
        future = loop.create_future()
        self._queue.put(_Given(work, future))
        return await future

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        """The thread: groups, one after the other, until there will be no more."""
        over = False
        while not over:
            given, over = self._gather()
            for group in _groups(given):
                settled = self._written(group) if not isinstance(group[0].work, _Run) else [_ran(group[0])]
                with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                    loop.call_soon_threadsafe(self._settle, settled)

    def _written(self, group: Sequence[_Given]) -> list[_Settled]:
        """Files and lines, each kind of them together."""
        try:
            settled = [*_lines_written(group), *_files_written(group, self._spares)]
            if self._spares is not None:
                # In place of one that was used. What it replaced has made room for it.
                self._spares.fill(1)
            return settled
        except Exception as error:  # none that the disk makes: those belong to one of them
            return [(given, None, error) for given in group]

    def _gather(self) -> tuple[list[_Given], bool]:
        """The next, with those that are there already; and whether they are the last."""
        given: list[_Given] = []
        one = self._queue.get()
        while one is not None:
            given.append(one)
            if len(given) == TOGETHER or self._queue.empty():
                return given, False
            one = self._queue.get()
        return given, True

    def _settle(self, settled: Sequence[_Settled]) -> None:
        """In the loop: tell those who wait."""
        for given, result, error in settled:
            self._turns.release()
            if given.future.done():
                continue  # cancelled
            if error is None:
                given.future.set_result(result)
            else:
                given.future.set_exception(error)


def _groups(given: Sequence[_Given]) -> Iterator[list[_Given]]:
    """What goes to the disk together; what is to be run is alone."""
    together: list[_Given] = []
    for one in given:
        if isinstance(one.work, _Run):
            if together:
                yield together
            yield [one]
            together = []
        else:
            together.append(one)
    if together:
        yield together


def _ran(given: _Given) -> _Settled:
    assert isinstance(given.work, _Run)
    try:
        return given, given.work.function(), None
    except Exception as error:
        return given, None, error


def _files_written(group: Sequence[_Given], spares: Spares | None) -> list[_Settled]:
    given = [one for one in group if isinstance(one.work, files.Write)]
    failures = files.write_together([one.work for one in given if isinstance(one.work, files.Write)], spares)
    return [(one, None, failure) for one, failure in zip(given, failures, strict=True)]


def _lines_written(group: Sequence[_Given]) -> list[_Settled]:
    settled: list[_Settled] = []
    logs = dict.fromkeys(one.work.log for one in group if isinstance(one.work, _Line))
    for log in logs:
        given = [one for one in group if isinstance(one.work, _Line) and one.work.log is log]
        failures = log.append([one.work.data for one in given if isinstance(one.work, _Line)])
        settled += [(one, None, failure) for one, failure in zip(given, failures, strict=True)]
    return settled
