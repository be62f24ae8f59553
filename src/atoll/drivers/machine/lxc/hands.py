"""Commands in containers. Starts entrance.py, which enters one, and has its streams and its end.

What comes from the container is bytes of pipes or of a terminal, which nobody here has to understand. A terminal is
one of the container's own: that it is one is looked at, since it is opened where files are the guest's.
Effects: processes, pipes, terminals.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import fcntl
import os
import signal
import socket
import struct
import subprocess
import sys
import termios
from collections.abc import Sequence
from pathlib import Path

from atoll.drivers.machine.base import Machine, Output
from atoll.drivers.machine.lxc import config
from atoll.errors import Conflict, TimedOut
from atoll.model.command import Command, Size
from atoll.system import aside, cgroups, pids, pipes, reaper
from atoll.system.pids import Pid

ENTER_TIMEOUT_S = 10.0
ENTRANCE = Path(__file__).with_name("entrance.py")
READ_SIZE = 256 << 10
LAST_MOMENT_S = 0.2
_DEVPTS = 0x1CD1
_KILLED = 128 + signal.SIGKILL
_PACKET = 1024
_END_OF_FILE = b"\x04"

_libc = ctypes.CDLL(None, use_errno=True)


def request_of(command: Command, init: int, label: str, groups: Sequence[str]) -> bytes:
    """What entrance.py is told. Pure."""
    size = command.terminal
    fields = [
        command.user,
        command.cwd,
        str(size.rows if size else 0),
        str(size.columns if size else 0),
        str(init),
        label,
        " ".join(groups),
        " ".join(str(number) for number in config.dropped_numbers()),
        " ".join(config.DENIED_CALLS),
        str(len(command.argv)),
        *command.argv,
        *(f"{name}={value}" for name, value in command.env.items()),
    ]
    return b"".join(field.encode() + b"\0" for field in fields)


def label_of(text: str) -> str:
    """The AppArmor profile in what the kernel says of a process; none where that is unconfined. Pure."""
    name = text.strip("\0\n ").rpartition(" (")[0] or text.strip("\0\n ")
    return "" if name in ("", "unconfined") else name


async def enter(machine: Machine, init: Pid, command: Command) -> LxcProcess:
    """Run a command in the container with this first process."""
    starting = asyncio.ensure_future(aside.run(_start, machine, init, command))
    try:
        opened = await asyncio.shield(starting)
    except asyncio.CancelledError:
        # Nobody waits for it any more: what it opens is closed when it is there, and that is the command's end.
        starting.add_done_callback(_close_opened)
        raise
    process = LxcProcess(machine, init, opened)
    try:
        await process.entered()
    except BaseException:
        await process.close()
        raise
    return process


class _Opened:
    """Our ends. None where there is none."""

    def __init__(self, control: socket.socket) -> None:
        self.control = control
        self.stdin: int | None = None
        self.outputs: dict[int, int] = {}
        """The stream of each descriptor."""

    def close(self) -> None:
        self.control.close()
        for descriptor in {*self.outputs, self.stdin} - {None}:
            assert descriptor is not None
            with contextlib.suppress(OSError):
                os.close(descriptor)


def _close_opened(starting: asyncio.Future[_Opened]) -> None:
    if not starting.cancelled() and starting.exception() is None:
        starting.result().close()


def _start(machine: Machine, init: Pid, command: Command) -> _Opened:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    opened = _Opened(ours)
    with contextlib.ExitStack() as stack:
        stack.enter_context(theirs)
        failed = stack.enter_context(contextlib.ExitStack())
        failed.callback(opened.close)
        container = stack.enter_context(pids.opened(init))
        if container is None:
            raise _not_running(machine)
        streams: list[int] = []
        if command.terminal is None:
            for number in range(3):
                reader, writer = os.pipe2(os.O_CLOEXEC)
                mine, its = (writer, reader) if number == 0 else (reader, writer)
                stack.callback(os.close, its)
                # The container's root is its owner; who runs the command opens it again by name, if need be.
                os.fchown(its, machine.uid, machine.uid)
                os.set_blocking(mine, False)
                pipes.widen(mine)
                streams.append(its)
                if number:
                    opened.outputs[mine] = number
                elif command.input:
                    opened.stdin = mine
                else:
                    os.close(mine)
        numbers = (theirs.fileno(), container, *streams)
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", str(ENTRANCE), *map(str, numbers)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={},
            pass_fds=numbers,
            start_new_session=True,
        )
        reaper.take(process)
        groups = [str(path) for path in cgroups.entrances(config.keeper_group(machine))]
        ours.send(request_of(command, init.pid, label_of(_label(init)), groups))
        ours.setblocking(False)
        failed.pop_all()
    return opened


class LxcProcess:
    """A command, by our ends of its streams."""

    def __init__(self, machine: Machine, init: Pid, opened: _Opened) -> None:
        self._machine = machine
        self._init = init
        self._opened = opened
        self._status: int | None = None
        self._closed = False

    async def entered(self) -> None:
        """It is in the container, and about to become the command; or HostFailure."""
        try:
            async with asyncio.timeout(ENTER_TIMEOUT_S):
                packet = await self._packet()
                if packet[:1] == b"T":
                    packet = await self._packet()
        except TimeoutError:
            raise TimedOut(
                f"machine {self._machine.name}: running a command in it: it did not begin in {ENTER_TIMEOUT_S:g} s",
                hint="the host may be overloaded; try again",
            ) from None
        if packet[:1] != b"R":
            why = packet[1:].decode(errors="replace") or "it ended at once"
            if not pids.alive(self._init):
                raise _not_running(self._machine)
            raise Conflict(f"machine {self._machine.name}: running a command in it: {why}")

    async def read(self) -> Output | int:
        while True:
            if self._closed:
                raise ConnectionResetError("the command was let go of")
            for descriptor, stream in list(self._opened.outputs.items()):
                if data := self._take(descriptor):
                    return Output(stream, data)
            if self._status is not None:
                return await self._last()
            ready = await _any_readable([*self._opened.outputs, self._opened.control.fileno()])
            if self._opened.control.fileno() in ready and ready.isdisjoint(self._opened.outputs):
                packet = await self._packet()
                # What it wrote before its end is there by now; who still holds its streams is not waited for.
                self._status = struct.unpack("!i", packet[1:5])[0] if packet[:1] == b"E" else _KILLED

    async def write(self, data: bytes) -> None:
        if self._opened.stdin is not None:
            await pipes.write_all(self._opened.stdin, data)

    async def end_input(self) -> None:
        descriptor = self._opened.stdin
        if descriptor is None:
            return
        if descriptor in self._opened.outputs:
            await self.write(_END_OF_FILE)
        else:
            self._opened.stdin = None
            os.close(descriptor)

    async def resize(self, size: Size) -> None:
        if self._opened.stdin in self._opened.outputs:
            assert self._opened.stdin is not None
            wanted = struct.pack("4H", size.rows, size.columns, 0, 0)
            with contextlib.suppress(OSError):
                fcntl.ioctl(self._opened.stdin, termios.TIOCSWINSZ, wanted)

    async def send_signal(self, number: int) -> None:
        if not self._closed and self._status is None:
            with contextlib.suppress(OSError):
                self._opened.control.send(bytes((number,)))

    async def close(self) -> None:
        """Its watcher sees that we have gone, and ends it."""
        if not self._closed:
            self._closed = True
            self._opened.close()

    async def _last(self) -> int:
        assert self._status is not None
        # A machine that ends kills its commands first, and is gone a moment later.
        if self._status == _KILLED and await pids.wait_gone(self._init, LAST_MOMENT_S):
            raise Conflict(f"machine {self._machine.name}: it has stopped, and its commands with it")
        return self._status

    def _take(self, descriptor: int) -> bytes:
        try:
            data = os.read(descriptor, READ_SIZE)
        except BlockingIOError:
            return b""
        except OSError as error:
            if error.errno != errno.EIO:  # the last who had the terminal has gone
                raise
            data = b""
        if not data:
            self._opened.outputs.pop(descriptor)
            if descriptor != self._opened.stdin:
                os.close(descriptor)
        return data

    async def _packet(self) -> bytes:
        """The next word of the watcher, or of what enters; empty when both have gone."""
        while True:
            try:
                data, given, _, _ = socket.recv_fds(self._opened.control, _PACKET, 1)
            except BlockingIOError:
                await _any_readable([self._opened.control.fileno()])
                continue
            except ConnectionError:
                return b""
            for descriptor in given:
                self._use_terminal(descriptor)
            return data

    def _use_terminal(self, descriptor: int) -> None:
        """It was opened in the container: only what is a terminal for sure is ever read from."""
        if self._opened.outputs or not is_terminal(descriptor):
            os.close(descriptor)
            raise Conflict(f"machine {self._machine.name}: running a command in it: its /dev/ptmx is none")
        os.set_blocking(descriptor, False)
        self._opened.outputs[descriptor] = 1
        self._opened.stdin = descriptor


def is_terminal(descriptor: int) -> bool:
    """Whether it is one side of a terminal of the kernel's own, whatever the name that it was opened by."""
    held = ctypes.create_string_buffer(256)
    if _libc.fstatfs(descriptor, held) != 0 or struct.unpack_from("l", held)[0] != _DEVPTS:
        return False
    try:
        fcntl.ioctl(descriptor, termios.TIOCGWINSZ, b"\0" * 8)
    except OSError:
        return False
    return True


async def _any_readable(descriptors: list[int]) -> set[int]:
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    found: set[int] = set()

    def tell(descriptor: int) -> None:
        found.add(descriptor)
        loop.remove_reader(descriptor)
        ready.set()

    for descriptor in descriptors:
        loop.add_reader(descriptor, tell, descriptor)
    try:
        await ready.wait()
    finally:
        for descriptor in descriptors:
            loop.remove_reader(descriptor)
    return found


def _label(init: Pid) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{init.pid}/attr/current").read_text(errors="replace")
    return ""


def _not_running(machine: Machine) -> Conflict:
    return Conflict(
        f"machine {machine.name}: running a command in it: it is not running", hint="start it first"
    )
