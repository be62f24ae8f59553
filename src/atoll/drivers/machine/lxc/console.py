"""The console of a container: what it writes is followed in console.log, what is typed goes to its terminal.

LXC offers one too (lxc-console), which puts a second terminal in between that changes line ends, and keeps
some keys for itself. So the terminal's own end, which the monitor holds, is borrowed to write to.
Effects: reads console.log, writes to a terminal.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

from atoll.drivers.machine.console_log import ConsoleLog

# A terminal that says that it takes something takes at least so much.
_WRITE_SIZE = 256


class LogConsole:
    """`terminal` opens the end to write to: it is another after a reset. `end` when the machine has ended."""

    def __init__(self, log: Path, terminal: Callable[[], int]) -> None:
        self._terminal = terminal
        self._log = ConsoleLog(log)
        self.read = self._log.read
        self.end = self._log.end

    @property
    def closed(self) -> bool:
        return self._log.closed

    async def write(self, data: bytes) -> None:
        self._log.check_open()
        self._log.stir()
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
        self._log.close()


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
