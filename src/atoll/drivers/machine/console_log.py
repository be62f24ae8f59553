"""The log that a machine's console writes to, followed by one who reads it. Reads console.log.

A log tells nobody when it grows, so it is looked at: often while somebody types or the guest writes, else rarely.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path

from atoll.system import clock

_READ_SIZE = 65536
_BUSY_S = 1.0
_QUICK_S = 0.005
_SLOW_S = 0.05


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
