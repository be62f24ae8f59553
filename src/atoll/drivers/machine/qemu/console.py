"""The serial line of a QEMU: it writes to console.log and to nothing else; what is typed comes through a pipe.

A socket for both would be the ordinary way. But when whoever listens there is slow, QEMU holds the guest
up, and writes to its log twice. So nobody listens: the log is followed, and who wants to type hands in a pipe.

Effects: reads console.log, writes to a pipe, talks to a monitor.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path

from atoll.drivers.machine.qemu.argv import CONSOLE, LOG_SET
from atoll.drivers.machine.qemu.monitor import Monitor
from atoll.system import clock

_READ_SIZE = 65536
_BUSY_S = 1.0
_QUICK_S = 0.005
_SLOW_S = 0.05


async def open_line(monitor: Monitor) -> int:
    """The end of a pipe: what is written there is typed. It takes the place of any that was opened before."""
    theirs, ours = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        number = await monitor.add_file(theirs, "what is typed")
        ends = {"in": f"/dev/fdset/{number}", "out": f"/dev/fdset/{LOG_SET}", "append": True}
        backend = {"type": "file", "data": ends}
        await monitor.execute("chardev-change", arguments={"id": CONSOLE, "backend": backend})
        await monitor.execute("remove-fd", arguments={"fdset-id": number})
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    return ours


class LogConsole:
    """`line` is a pipe to type into. `end` when the machine has ended: the log tells nobody."""

    def __init__(self, log: Path, line: int) -> None:
        self._line = line
        self._over = asyncio.Event()
        self._log = os.open(log, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        self._at = os.lseek(self._log, 0, os.SEEK_END)
        self._busy_at = clock.monotonic()

    @property
    def closed(self) -> bool:
        return self._log < 0

    def end(self) -> None:
        self._over.set()

    async def read(self) -> bytes:
        while not self.closed:
            over = self._over.is_set()
            if data := self._written():
                self._busy_at = clock.monotonic()
                return data
            if over:
                break
            busy = clock.monotonic() - self._busy_at < _BUSY_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_QUICK_S if busy else _SLOW_S):
                    await self._over.wait()
        return b""

    async def write(self, data: bytes) -> None:
        while data:
            if self.closed or self._over.is_set():
                raise ConnectionResetError("the console is closed")
            self._busy_at = clock.monotonic()
            try:
                data = data[os.write(self._line, data) :]
            except BlockingIOError:
                await self._writable()

    async def close(self) -> None:
        self.end()
        if not self.closed:
            asyncio.get_running_loop().remove_writer(self._line)
            os.close(self._log)
            os.close(self._line)
            self._log = -1

    async def _writable(self) -> None:
        """Returns when the guest has taken something, or the console has ended."""
        loop, ready = asyncio.get_running_loop(), asyncio.Event()
        loop.add_writer(self._line, ready.set)
        over = asyncio.ensure_future(self._over.wait())
        over.add_done_callback(lambda _: ready.set())
        try:
            await ready.wait()
        finally:
            over.cancel()
            if not self.closed:
                loop.remove_writer(self._line)

    def _written(self) -> bytes:
        # A log that was cut short begins again where it ends now.
        self._at = min(self._at, os.fstat(self._log).st_size)
        data = os.pread(self._log, _READ_SIZE, self._at)
        self._at += len(data)
        return data
