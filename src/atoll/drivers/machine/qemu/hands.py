"""Commands in guests that have our agent, over a virtio port: one connection, many commands. Effects: a socket.

QEMU drops what is under way when a connection ends, and the guest ends the commands of one that has gone: so they end
with their agent. A guest that is reset says nothing of it; its monitor does, and then all of them are over.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import deque

from atoll.drivers.machine.base import Machine, Output
from atoll.drivers.machine.qemu import record
from atoll.drivers.machine.qemu.hands_message import (
    CREDIT,
    MOST,
    NONCE,
    WINDOW,
    Frame,
    Kind,
    Reader,
    frame,
    hello,
    start,
)
from atoll.errors import AtollError, Conflict, HostFailure, TimedOut
from atoll.model.command import Command, Size
from atoll.system import files

GREETING_S = 30.0
"""For a guest that has only begun to boot."""
CLOSING_S = 4.0
_READ_SIZE = 64 << 10
_SESSIONS = 65_535


class QemuProcess:
    """One command: a session of its machine's port."""

    def __init__(self, port: Port, session: int, command: Command) -> None:
        self._port = port
        self._session = session
        self._command = command
        self._come: deque[Output] = deque()
        self._size = 0
        self._unthanked = 0
        self._room = WINDOW
        self._stirred = asyncio.Event()
        self._status: int | None = None
        self._failure: AtollError | None = None
        self._closed = False

    async def read(self) -> Output | int:
        while True:
            if self._come:
                piece = self._come.popleft()
                await self._thank(len(piece.data))
                return piece
            if self._failure is not None:
                raise self._failure
            if self._status is not None:
                return self._status
            await self._stir()

    async def write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest and not self._over:
            if not self._room:
                await self._stir()
                continue
            piece = bytes(rest[: min(self._room, MOST)])
            self._room -= len(piece)
            rest = rest[len(piece) :]
            await self._port.send(frame(Kind.INPUT, self._session, piece))

    async def end_input(self) -> None:
        if not self._over:
            await self._port.send(frame(Kind.END_INPUT, self._session))

    async def resize(self, size: Size) -> None:
        if not self._over:
            both = size.rows << 16 | size.columns
            await self._port.send(frame(Kind.RESIZE, self._session, both.to_bytes(4, "big")))

    async def send_signal(self, number: int) -> None:
        if not self._over:
            await self._port.send(frame(Kind.SIGNAL, self._session, number.to_bytes(4, "big")))

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if not self._over:
            await self._port.send(frame(Kind.HANG_UP, self._session))
            # Its session is free when the guest says so; one that never does is the port's to forget.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSING_S):
                    while not self._over:
                        await self._stir()
        self._port.forget(self._session)

    @property
    def _over(self) -> bool:
        return self._status is not None or self._failure is not None

    def hear(self, said: Frame) -> None:
        """A frame of this session."""
        match said.kind:
            case Kind.OUTPUT | Kind.ERRORS:
                self._size += len(said.data)
                if self._size > CREDIT:
                    raise HostFailure("its guest agent sends more than it may")
                if self._closed:
                    self._size -= len(said.data)
                elif said.data:
                    self._come.append(Output(1 if said.kind == Kind.OUTPUT else 2, said.data))
            case Kind.TAKEN:
                self._room = min(WINDOW, self._room + said.number)
            case Kind.EXIT:
                self._status = min(said.number, 255)
        self._stirred.set()

    def fail(self, failure: AtollError) -> None:
        if not self._over:
            self._failure = failure
        self._stirred.set()

    async def _stir(self) -> None:
        self._stirred.clear()
        await self._stirred.wait()

    async def _thank(self, size: int) -> None:
        """Have the guest send as much again; not for every piece."""
        self._size -= size
        self._unthanked += size
        if self._unthanked >= CREDIT // 4 and not self._over:
            given, self._unthanked = self._unthanked, 0
            await self._port.send(frame(Kind.CREDIT, self._session, given.to_bytes(4, "big")))


class Port:
    """The connection to one guest's agent."""

    def __init__(self, machine: Machine, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._machine = machine
        self._reader = reader
        self._writer = writer
        self._nonce = secrets.token_bytes(NONCE)
        self._frames = Reader(self._nonce)
        self._sessions: dict[int, QemuProcess] = {}
        self._last = 0
        self._sending = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self.closed = False

    async def greet(self) -> None:
        """Returns when the guest has answered."""
        try:
            async with asyncio.timeout(GREETING_S):
                await self.send(hello(self._nonce))
                while not self._frames.greeted:
                    data = await self._reader.read(_READ_SIZE)
                    if not data:
                        raise self._stopped()
                    self._dispatch(self._frames.feed(data))
        except TimeoutError:
            raise TimedOut(
                f"machine {self._machine.name}: its guest agent did not answer in {GREETING_S:g} s",
                hint="is it still booting? see: atoll vm log",
            ) from None
        except OSError as error:
            raise self._stopped() from error
        self._task = asyncio.create_task(self._run(), name=f"hands {self._machine.name}")

    async def begin(self, command: Command) -> QemuProcess:
        session = self._free()
        process = self._sessions[session] = QemuProcess(self, session, command)
        try:
            await self.send(start(session, command))
        except BaseException:
            self.forget(session)
            raise
        return process

    async def send(self, data: bytes) -> None:
        """Whole frames, one after the other. A guest that takes nothing makes its senders wait."""
        if self.closed:
            return
        try:
            async with self._sending:
                self._writer.write(data)
                await self._writer.drain()
        except OSError:
            self.end(self._stopped())

    def forget(self, session: int) -> None:
        self._sessions.pop(session, None)

    def end(self, why: AtollError) -> None:
        """No more of it: all commands are over."""
        if self.closed:
            return
        self.closed = True
        self._writer.close()
        if self._task is not None:
            self._task.cancel()
        for process in tuple(self._sessions.values()):
            process.fail(why)

    def reset(self) -> None:
        """Its guest begins anew, or its agent has ended."""
        self.end(
            Conflict(f"machine {self._machine.name}: its guest agent has ended, and its commands with it")
        )

    def stop(self) -> None:
        """Its machine has ended."""
        self.end(self._stopped())

    async def close(self) -> None:
        self.stop()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    def _free(self) -> int:
        for _ in range(_SESSIONS):
            self._last = self._last % _SESSIONS + 1
            if self._last not in self._sessions:
                return self._last
        raise HostFailure(f"machine {self._machine.name}: it runs too many commands")

    async def _run(self) -> None:
        try:
            while data := await self._reader.read(_READ_SIZE):
                self._dispatch(self._frames.feed(data))
        except HostFailure as error:
            self.end(HostFailure(f"machine {self._machine.name}: {error.brief}"))
        except OSError:
            pass
        self.end(self._stopped())

    def _dispatch(self, frames: list[Frame]) -> None:
        for said in frames:
            process = self._sessions.get(said.session)
            if process is not None:
                process.hear(said)

    def _stopped(self) -> Conflict:
        return Conflict(f"machine {self._machine.name}: it has stopped, and its commands with it")


async def connect(machine: Machine) -> Port:
    """A port whose guest has answered. Conflict when the machine has none."""
    try:
        reader, writer = await files.connect_unix(record.hands_path(machine))
    except OSError as error:
        raise Conflict(
            f"machine {machine.name}: running a command in it: it was started without a port for that",
            hint="stop it and start it again",
        ) from error
    port = Port(machine, reader, writer)
    try:
        await port.greet()
    except BaseException:
        await port.close()
        raise
    return port
