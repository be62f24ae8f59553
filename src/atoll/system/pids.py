"""Processes by their number, safe against its reuse. Reads /proc, signals processes, watches them in a loop.

The end of a process is seen through a pidfd, which works for processes that are not our children, in any
event loop, and without a thread or a signal handler.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import os
import signal
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec import Struct

_PIDFD_GETFD = 438
_ASKING_S = 5.0

_libc = ctypes.CDLL(None, use_errno=True)


class Pid(Struct, frozen=True):
    """A process, safe against reuse of its number: `started` is in clock ticks since boot."""

    pid: int
    started: int


def identify(pid: int) -> Pid | None:
    """The process that has this number now, if any."""
    seen = _state_and_start(pid)
    return None if seen is None else Pid(pid, seen[1])


def alive(p: Pid) -> bool:
    """Whether it still runs. One that ended and waits to be collected does not."""
    seen = _state_and_start(p.pid)
    return seen is not None and seen[1] == p.started and seen[0] not in "ZX"


def send_signal(p: Pid, sig: signal.Signals | int) -> None:
    """Signal exactly this process. Gone is fine."""
    handle = _open(p)
    if handle is None:
        return
    try:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, sig)
    finally:
        os.close(handle)


def signal_group(p: Pid, sig: signal.Signals | int) -> None:
    """Signal the process group that exactly this process leads. Gone is fine."""
    with opened(p) as handle:
        if handle is not None:
            # While we hold on to it, its number is nobody else's.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(p.pid, sig)


async def wait_gone(p: Pid, timeout_s: float) -> bool:
    """Whether it is gone within the time given. It need not be our child."""
    gone = asyncio.Event()
    cancel = on_gone(p, gone.set)
    try:
        async with asyncio.timeout(timeout_s):
            await gone.wait()
    except TimeoutError:
        return False
    finally:
        cancel()
    return True


def on_gone(p: Pid, callback: Callable[[], None]) -> Callable[[], None]:
    """Call back once, from the running loop, when the process has ended. Returns how to cancel that."""
    loop = asyncio.get_running_loop()
    handle = _open(p)
    if handle is None:
        return loop.call_soon(callback).cancel
    return watch(loop, handle, callback)


def listener_of(path: Path) -> Pid | None:
    """The process that listens at a socket in the file system; None: nobody does, or nobody whom we can see."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(_ASKING_S)
        asking.connect(os.fspath(path))
        told = asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return identify(struct.unpack("3i", told)[0])
    return None


def variable(pid: int, name: str) -> str | None:
    """A variable of the environment that a process was started with; None: it has none, or is gone."""
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    begin = f"{name}=".encode()
    return next((word.removeprefix(begin).decode() for word in words if word.startswith(begin)), None)


def end_first(pid: int) -> None:
    """When its cgroup, or the host, is out of memory, it is ended before all others. Gone is fine."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        Path(f"/proc/{pid}/oom_score_adj").write_text("1000")


def children(p: Pid) -> tuple[Pid, ...]:
    """The processes that it started, and whose end it would hear of."""
    try:
        numbers = Path(f"/proc/{p.pid}/task/{p.pid}/children").read_text().split()
    except OSError:
        return ()
    return tuple(child for number in numbers if (child := identify(int(number))) is not None)


def copy_descriptor(p: Pid, number: int) -> int:
    """An open file of exactly this process, opened here too. OSError when there is none of that number."""
    handle = _open(p)
    if handle is None:
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
    try:
        copy: int = _libc.syscall(ctypes.c_long(_PIDFD_GETFD), handle, number, 0)
        if copy < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return copy
    finally:
        os.close(handle)


@contextlib.contextmanager
def opened(p: Pid) -> Iterator[int | None]:
    """A descriptor of exactly this process, for handing it to the kernel; None when it has gone."""
    handle = _open(p)
    try:
        yield handle
    finally:
        if handle is not None:
            os.close(handle)


def watch(loop: asyncio.AbstractEventLoop, handle: int, callback: Callable[[], None]) -> Callable[[], None]:
    """Call back once when the process of a pidfd, which is closed then, has ended. Returns how to cancel."""
    watching = True

    def cancel() -> None:
        nonlocal watching
        if watching:
            watching = False
            loop.remove_reader(handle)
            os.close(handle)

    def fire() -> None:
        cancel()
        callback()

    loop.add_reader(handle, fire)
    return cancel


def _open(p: Pid) -> int | None:
    try:
        handle = os.pidfd_open(p.pid)
    except ProcessLookupError:
        return None
    # Opened first, compared second: if it is still the same now, it was the same when it was opened.
    if alive(p):
        return handle
    os.close(handle)
    return None


def _state_and_start(pid: int) -> tuple[str, int] | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name, in parentheses, may hold blanks and parentheses of its own.
    fields = text.rpartition(")")[2].split()
    return fields[0], int(fields[19])


def having_open(descriptor: int) -> list[str]:
    """Other processes that have the same file open: their names with their numbers."""
    wanted, found = os.fstat(descriptor), []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just gone
            if int(process.name) != os.getpid() and any(
                os.path.samestat(wanted, opened.stat()) for opened in (process / "fd").iterdir()
            ):
                found.append(f"{(process / 'comm').read_text().strip()} (process {process.name})")
    return found
