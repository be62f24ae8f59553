"""The console of a container: what it writes is followed in console.log, what is typed goes to its terminal.

LXC offers one too (lxc-console), which puts a second terminal in between that changes line ends, and keeps
some keys for itself. So the terminal's own end, which the monitor holds, is borrowed to write to.
Effects: reads console.log, writes to a terminal.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path

_PAUSE_S = 0.01
_READ_SIZE = 65536
# A terminal that says that it takes something takes at least so much.
_WRITE_SIZE = 256


class LogConsole:
    """`terminal` opens the end to write to: it is another after a reset. `end` when the machine has ended."""

    def __init__(self, log: Path, terminal: Callable[[], int]) -> None:
        self._terminal = terminal
        self._over = asyncio.Event()
        self._log = os.open(log, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        self._at = os.lseek(self._log, 0, os.SEEK_END)

    @property
    def closed(self) -> bool:
        return self._log < 0

    def end(self) -> None:
        self._over.set()

    async def read(self) -> bytes:
        while not self.closed:
            over = self._over.is_set()
            if data := self._written():
                return data
            if over:
                break
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PAUSE_S):
                    await self._over.wait()
        return b""

    async def write(self, data: bytes) -> None:
        if self.closed or self._over.is_set():
            raise ConnectionResetError("the console is closed")
        try:
            terminal = self._terminal()
        except OSError as error:
            raise ConnectionResetError("the console is closed") from error
        try:
            while data:
                await _writable(terminal)
                data = data[os.write(terminal, data[:_WRITE_SIZE]) :]
        except OSError as error:
            raise ConnectionResetError("the console is closed") from error
        finally:
            os.close(terminal)

    async def close(self) -> None:
        self.end()
        if not self.closed:
            os.close(self._log)
            self._log = -1

    def _written(self) -> bytes:
        # A log that was cut short begins again where it ends now.
        self._at = min(self._at, os.fstat(self._log).st_size)
        data = os.pread(self._log, _READ_SIZE, self._at)
        self._at += len(data)
        return data


async def _writable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    ready = loop.create_future()

    def tell() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_writer(descriptor, tell)
    try:
        await ready
    finally:
        loop.remove_writer(descriptor)
