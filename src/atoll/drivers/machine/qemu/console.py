"""The serial line of a QEMU: it writes to console.log and to nothing else; what is typed comes through a pipe.

A socket for both would be the ordinary way. But when whoever listens there is slow, QEMU holds the guest
up, and writes to its log twice. So nobody listens: the log is followed, and who wants to type hands in a pipe.

Effects: reads console.log, writes to a pipe, talks to a monitor.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from atoll.drivers.machine.console_log import ConsoleLog
from atoll.drivers.machine.qemu.argv import CONSOLE, LOG_SET
from atoll.drivers.machine.qemu.monitor import Monitor


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
        self._log = ConsoleLog(log)
        self.read = self._log.read
        self.end = self._log.end

    @property
    def closed(self) -> bool:
        return self._log.closed

    async def write(self, data: bytes) -> None:
        while data:
            self._log.check_open()
            self._log.stir()
            try:
                data = data[os.write(self._line, data) :]
            except BlockingIOError:
                await self._writable()

    async def close(self) -> None:
        if not self.closed:
            asyncio.get_running_loop().remove_writer(self._line)
            os.close(self._line)
        self._log.close()

    async def _writable(self) -> None:
        """Returns when the guest has taken something, or the console has ended."""
        loop, ready = asyncio.get_running_loop(), asyncio.Event()
        loop.add_writer(self._line, ready.set)
        over = asyncio.ensure_future(self._log.over.wait())
        over.add_done_callback(lambda _: ready.set())
        try:
            await ready.wait()
        finally:
            over.cancel()
            if not self.closed:
                loop.remove_writer(self._line)
