"""The history of a node: what happened to its VMs, on disk, across restarts, within a size and an age.

Whoever changes a VM does not wait for it: entries go to a writer of its own in the order in which they came. Effects:
appends to a file through the writer; turned over when it is large or a week old. Old parts go by their age.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import msgspec

from atoll.api.observing import HistoryQuery
from atoll.errors import HostFailure
from atoll.model.event import EventKind
from atoll.model.history import HistoryEntry, entry_of
from atoll.model.vm import VM
from atoll.serving.line_reading import last_of
from atoll.system.line_log import Ages, LineLog
from atoll.system.writer import Writer

log = logging.getLogger(__name__)

LIMIT_BYTES = 4 << 20
KEPT = 7
"""So many parts beside the one that is written to: 32 MiB in all."""
TURN_OVER_S = 7 * 86_400.0
KEEP_S = 30 * 86_400.0
GATHER_S = 0.2
"""What happened so short before a crash of the agent may not be in its history; it is in the records of VMs."""
AT_ONCE = 32
"""Entries that are written together: a part may be larger than it should be by so many."""
MOST_WAITING = 10_000
"""Entries for a disk that does not keep up. More of them are counted, and lost."""
MOST_AHEAD = 1_000
"""Entries for a reader that does not keep up: its stream ends."""

_decode = msgspec.json.Decoder(HistoryEntry).decode


class EventLog:
    """`note` is told of every change of a VM; `keep` writes what was noted."""

    def __init__(
        self,
        path: Path,
        writer: Writer,
        now: Callable[[], datetime],
        known: Iterable[VM] = (),
        limit_bytes: int = LIMIT_BYTES,
    ) -> None:
        self._lines = LineLog(path, limit_bytes, KEPT, Ages(TURN_OVER_S, KEEP_S, _moment_of))
        self._writer = writer
        self._now = now
        self._known = {vm.instance_id: vm for vm in known}
        self._waiting: deque[HistoryEntry] = deque()
        self._lost = 0
        self._news = asyncio.Event()
        self._writing = asyncio.Lock()
        self._readers: set[asyncio.Queue[HistoryEntry | None]] = set()

    def note(self, kind: EventKind, vm: VM) -> None:
        entry = entry_of(kind, self._known.get(vm.instance_id), vm, self._now())
        if kind is EventKind.DESTROYED:
            self._known.pop(vm.instance_id, None)
        else:
            self._known[vm.instance_id] = vm
        if entry is None:
            return
        for reader in tuple(self._readers):
            self._hand(reader, entry)
        if len(self._waiting) < MOST_WAITING:
            self._waiting.append(entry)
            self._news.set()
        else:
            self._lost += 1

    async def keep(self) -> None:
        """For ever: write what was noted."""
        while True:
            await self._news.wait()
            # Several are written at once: the disk has more urgent work.
            await asyncio.sleep(GATHER_S)
            self._news.clear()
            await self.settle()

    async def settle(self) -> None:
        """Write all that was noted so far."""
        async with self._writing:
            while self._waiting:
                batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), AT_ONCE))]
                lines = [self._writer.append(self._lines, msgspec.json.encode(entry)) for entry in batch]
                for done in await asyncio.gather(*lines, return_exceptions=True):
                    self._count(done)
        if self._lost:
            log.error("the history of events: %d entries are lost: the disk takes no more", self._lost)
            self._lost = 0

    def _count(self, done: BaseException | None) -> None:
        """A history that cannot be written does not stop the node; that is logged."""
        if isinstance(done, HostFailure):
            self._lost += 1
        elif done is not None:
            raise done

    async def read(self, query: HistoryQuery) -> AsyncGenerator[HistoryEntry, None]:
        """The last ones that are asked for, the oldest first; then each that comes, for those who follow."""
        coming: asyncio.Queue[HistoryEntry | None] = asyncio.Queue(MOST_AHEAD + 1)
        if query.follow:
            self._readers.add(coming)
        try:
            await self.settle()
            kept = await last_of(
                self._lines, self._writer, _decode, lambda one: matches(one, query), query.limit
            )
            for entry in kept:
                yield entry
            # What came while these were read is among them.
            seen = set(kept[-MOST_AHEAD:])
            while query.follow and (new := await coming.get()) is not None:
                if new not in seen and matches(new, query):
                    yield new
        finally:
            self._readers.discard(coming)

    def _hand(self, reader: asyncio.Queue[HistoryEntry | None], entry: HistoryEntry) -> None:
        if reader.qsize() < MOST_AHEAD:
            reader.put_nowait(entry)
        else:
            # It is told of what it has, and then that it missed something: its stream ends.
            self._readers.discard(reader)
            reader.put_nowait(None)


def matches(entry: HistoryEntry, query: HistoryQuery) -> bool:
    """Whether an entry is one of those that are asked for. Pure."""
    return (query.target is None or query.target in (entry.ip, entry.name)) and (
        query.since is None or entry.at >= query.since
    )


def _moment_of(line: bytes) -> float | None:
    with suppress(msgspec.MsgspecError):
        return _decode(line).at.timestamp()
    return None
