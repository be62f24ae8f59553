"""The terminal of a container: one connection to the engine, into console.log and to whoever has it open.

Effects: appends to console.log, bytes to and from the engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path

from atoll.drivers.machine.console_log import MOST
from atoll.drivers.machine.docker.engine import Engine, Stream
from atoll.errors import AtollError

_READ_SIZE = 65536


class TerminalConsole:
    """What one who has it open reads and writes. Ends with the machine."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._unread: asyncio.Queue[bytes] = asyncio.Queue()
        self.closed = False

    def show(self, data: bytes) -> None:
        """Nothing is the end."""
        self._unread.put_nowait(data)

    async def read(self) -> bytes:
        if self.closed and self._unread.empty():
            return b""
        data = await self._unread.get()
        self.closed = self.closed or not data
        return data

    async def write(self, data: bytes) -> None:
        if self.closed:
            raise ConnectionResetError("the console is closed")
        await self._terminal.write(data)

    async def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.show(b"")


class Terminal:
    """Connected from before the container starts until it ends; again after a reset."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._stream: Stream | None = None
        self._pump: asyncio.Task[None] | None = None
        self.console: TerminalConsole | None = None

    @property
    def is_connected(self) -> bool:
        return self._stream is not None

    async def connect(self, engine: Engine, container: str) -> None:
        """Take what is written from now on."""
        await self._disconnect()
        self._open_log()
        stream = self._stream = await engine.attach(container)
        self._pump = asyncio.create_task(self._copy(stream), name=f"terminal {container}")

    async def catch_up(self, engine: Engine, container: str) -> None:
        """First add what was written while there was nobody to read it."""
        log = self._open_log()
        with contextlib.suppress(AtollError):  # better an incomplete log than no machine
            self._keep(await engine.logs(container, log.stat().st_mtime))

    def open(self) -> TerminalConsole:
        self.console = TerminalConsole(self)
        return self.console

    async def write(self, data: bytes) -> None:
        if self._stream is None:
            raise ConnectionResetError("the console is closed")
        writer = self._stream[1]
        writer.write(data)
        await writer.drain()

    async def finish(self) -> None:
        """The machine has ended: take what is still to come."""
        if self._pump is not None:
            await asyncio.wait({self._pump}, timeout=1)
        await self.close()

    async def close(self) -> None:
        await self._disconnect()
        if self.console is not None:
            await self.console.close()

    async def _disconnect(self) -> None:
        pump, self._pump = self._pump, None
        stream, self._stream = self._stream, None
        if pump is not None:
            pump.cancel()
            await asyncio.wait({pump})
        if stream is not None:
            stream[1].close()
            with contextlib.suppress(OSError):
                await stream[1].wait_closed()

    async def _copy(self, stream: Stream) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await stream[0].read(_READ_SIZE):
                self._keep(data)
                if self.console is not None and not self.console.closed:
                    self.console.show(data)

    def _open_log(self) -> Path:
        if not self._log.exists():
            self._keep(b"")
        return self._log

    def _keep(self, data: bytes) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        with contextlib.suppress(OSError):  # a full disk must not cut the console off
            descriptor = os.open(self._log, flags, 0o600)
            with os.fdopen(descriptor, "ab") as log:
                # We are its only writer. Until its front is given back there is no room for more.
                if os.fstat(descriptor).st_blocks * 512 + len(data) <= MOST:
                    log.write(data)
