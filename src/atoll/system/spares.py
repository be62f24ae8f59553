"""Files that have their place on disk already: with one of them a record is replaced where no byte is free.

What one does to make room, such as to stop a VM or to destroy one, is written down first. Makes files in a directory of
its own; they are given out to become others, by a rename. For one thread at a time.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

COUNT = 16
SIZE = 16 << 10
"""Of each. A record is hardly ever larger."""


class Spares:
    """None are given out before `fill`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._ready: list[Path] = []

    def take(self, size: int) -> Path | None:
        """A file that so much can be written into. None when there is none, or none so large."""
        return self._ready.pop() if self._ready and size <= SIZE else None

    def fill(self, most: int = COUNT) -> None:
        """Make those that are missing, or so many of them. Where there is no room for that, later."""
        if len(self._ready) == COUNT:
            return
        with contextlib.suppress(OSError):
            self._directory.mkdir(0o700, exist_ok=True)
            wanted = (self._directory / str(number) for number in range(COUNT))
            for path in [path for path in wanted if path not in self._ready][:most]:
                _make(path)
                self._ready.append(path)


def _make(path: Path) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        # One that an agent was killed with is cut to what it wrote.
        if os.fstat(descriptor).st_size != SIZE:
            os.pwrite(descriptor, bytes(SIZE), 0)
            os.fsync(descriptor)
        if os.fstat(descriptor).st_size != SIZE:
            raise OSError("there is room for a part of it only")
    finally:
        os.close(descriptor)
