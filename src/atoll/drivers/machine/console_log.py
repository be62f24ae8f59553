"""The log that a machine's console writes to: how far it may grow, and how one who reads it follows it.

The kernel holds whoever writes it to a place in the file, so that it stays small also while no agent runs: beyond that
place a console is mute, until an agent has given back the front of the log and named a later place. That limit is one
of all files that the writer has (see atoll.system.file_limits). So the log of a machine with disks begins behind the
end of the largest of them; what is before is a hole, and no part of the log: `console.offset` says so.

A log tells nobody when it grows, so it is looked at: often while somebody types or the guest writes, else rarely.
Effects: reads and makes console.log.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path

from atoll.system import clock, sparse

MOST = 8 << 20
"""What a log may hold, whatever becomes of its agent. An agent keeps it smaller."""
KEPT = 1 << 20
"""What stays of a log that has to make room."""
_READ_SIZE = 65536
_BUSY_S = 1.0
_QUICK_S = 0.005
_SLOW_S = 0.05


def place_before(path: Path) -> int:
    """The place in the console of the first byte of the file; below 0 where a hole comes before the first place."""
    try:
        with os.fdopen(_open(_offset_path(path), os.O_RDONLY), "rb") as file:
            return int(file.read(20))
    except (FileNotFoundError, ValueError):
        return 0


def note_place_before(path: Path, place: int) -> None:
    """Not synced: without it, places are counted anew."""
    new = path.with_name("console.offset.new")
    with os.fdopen(_open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as file:
        file.write(b"%d" % place)
    new.replace(_offset_path(path))


def limit_of(path: Path) -> int:
    """How far into its file a log may be written just now."""
    try:
        descriptor = _open(path, os.O_RDONLY)
    except FileNotFoundError:
        return MOST
    try:
        return sparse.first_kept(descriptor) + MOST
    finally:
        os.close(descriptor)


def begin_behind(path: Path, end: int) -> None:
    """Have a log that nobody writes to go on behind this place of its file, with its last bytes before it."""
    end = -(-end // KEPT) * KEPT
    if end == 0:
        return
    descriptor = _open(path, os.O_RDWR | os.O_CREAT)
    try:
        size = os.fstat(descriptor).st_size
        if size >= end:
            return
        start = max(sparse.first_kept(descriptor), size - KEPT)
        kept = os.pread(descriptor, KEPT, start)
        note_place_before(path, place_before(path) + size - end)
        os.ftruncate(descriptor, 0)
        os.ftruncate(descriptor, end)
        os.pwrite(descriptor, kept, end - len(kept))
    finally:
        os.close(descriptor)


def _offset_path(path: Path) -> Path:
    return path.with_name("console.offset")


def _open(path: Path, flags: int) -> int:
    # Never through a link: the machine's own process writes this file, and must not choose what we read.
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


class ConsoleLog:
    """What comes from now on. `end` when the machine has ended: what is there is read, and no more is waited for."""

    def __init__(self, path: Path) -> None:
        self.over = asyncio.Event()
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        self._at = os.lseek(self._file, 0, os.SEEK_END)
        self.stir()

    @property
    def closed(self) -> bool:
        return self._file < 0

    def check_open(self) -> None:
        if self.closed or self.over.is_set():
            raise ConnectionResetError("the console is closed")

    def stir(self) -> None:
        """Something is about to be written."""
        self._busy_at = clock.monotonic()

    def end(self) -> None:
        self.over.set()

    def close(self) -> None:
        self.end()
        if not self.closed:
            os.close(self._file)
            self._file = -1

    async def read(self) -> bytes:
        """The next piece; empty when there will be no more."""
        while not self.closed:
            over = self.over.is_set()
            if data := self._written():
                self.stir()
                return data
            if over:
                break
            busy = clock.monotonic() - self._busy_at < _BUSY_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_QUICK_S if busy else _SLOW_S):
                    await self.over.wait()
        return b""

    def _written(self) -> bytes:
        # A log that was cut short begins again where it ends now.
        self._at = min(self._at, os.fstat(self._file).st_size)
        data = os.pread(self._file, _READ_SIZE, self._at)
        self._at += len(data)
        return data
