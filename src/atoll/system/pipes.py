"""Pipes to other processes, without waiting for them in the event loop. Effects: writes; opens pipes of processes."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import stat
from pathlib import Path

from atoll.system import pids
from atoll.system.pids import Pid

SIZE = 256 << 10
"""What a pipe holds: the more, the less often both sides wait for each other."""


def widen(descriptor: int) -> None:
    """Have a pipe hold more than it does by itself."""
    with contextlib.suppress(OSError):  # not for everybody, and not without end
        fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, SIZE)


async def write_all(descriptor: int, data: bytes) -> None:
    """All of it, as fast as the other side takes it. One that takes no more is fine."""
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:
            await _writable(descriptor)
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.EIO, errno.EBADF):
                raise
            return


def inlet(process: Pid) -> int | None:
    """The pipe that a process reads and its parent writes, opened to write there too. None when there is no such.

    Only the pipe that the parent holds: whatever else the process has made its standard input is not meant.
    """
    try:
        of_parent = _pipes(_parent(process))
        copy = pids.copy_descriptor(process, 0)
    except OSError:
        return None
    try:
        seen = os.fstat(copy)
        if (seen.st_dev, seen.st_ino) not in of_parent:
            return None
        opened = os.open(f"/proc/self/fd/{copy}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    finally:
        os.close(copy)
    widen(opened)
    return opened


def _parent(process: Pid) -> int:
    return int(Path(f"/proc/{process.pid}/stat").read_text().rpartition(") ")[2].split()[1])


def _pipes(pid: int) -> set[tuple[int, int]]:
    """Those that a process has open, as device and number."""
    found = set()
    for held in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # it has just been closed
            seen = held.stat()
            if stat.S_ISFIFO(seen.st_mode):
                found.add((seen.st_dev, seen.st_ino))
    return found


async def _writable(descriptor: int) -> None:
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_writer(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_writer(descriptor)
