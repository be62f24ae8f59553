"""Commands in containers of an engine, by its own API. Effects: requests to the engine; signals to processes.

An engine has no way to signal a command, so that is done by its number on this host, which the engine tells.
Standard input goes past the engine where it can: on its way through there are two relays, which copy it by 32 KiB.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections import deque
from pathlib import Path

from atoll.drivers.machine.base import HANG_UP_S, Machine, Output
from atoll.drivers.machine.docker import parse
from atoll.drivers.machine.docker.config import exec_config, exec_start
from atoll.drivers.machine.docker.engine import Engine, Stream
from atoll.errors import AtollError, Conflict, HostFailure
from atoll.model.command import Command, Size
from atoll.system import cgroups, pids, pipes

_READ_SIZE = 256 << 10
_PAUSES_S = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
"""How long to wait for the engine to know what it has done; each after the one before."""
_END_OF_FILE = b"\x04"


async def begin(engine: Engine, container: str, machine: Machine, command: Command) -> DockerProcess:
    """Run a command in a container."""
    number = await engine.create_exec(container, exec_config(command))
    stream = await engine.start_exec(number, exec_start(command))
    process = DockerProcess(engine, container, machine, command, number, stream)
    if command.terminal is not None:
        process.size_soon(command.terminal)
    elif command.input:
        await process.open_inlet()
    else:
        await process.end_input()
    return process


def end_monitors(group: str) -> None:
    """End what Podman watches commands with, in the group of a container that has ended.

    It stays for five minutes, in case somebody asks how the command ended; nobody can any more.
    """
    for process in filter(None, map(pids.identify, cgroups.members(group))):
        with contextlib.suppress(OSError):
            if parse.is_command_monitor(Path(f"/proc/{process.pid}/cmdline").read_bytes()):
                pids.send_signal(process, signal.SIGKILL)


class DockerProcess:
    def __init__(
        self,
        engine: Engine,
        container: str,
        machine: Machine,
        command: Command,
        number: str,
        stream: Stream,
    ) -> None:
        self._engine = engine
        self._container = container
        self._machine = machine
        self._on_terminal = command.terminal is not None
        self._number = number
        self._reader, self._writer = stream
        self._frames = parse.Frames()
        self._come: deque[Output] = deque()
        self._status: int | None = None
        self._complaint: Output | None = None
        """What may be the engine's own word that it could not run the command, held back until that is known."""
        self._begun = False
        self._sizing: asyncio.Task[None] | None = None
        self._inlet: int | None = None
        """Where its standard input is written to; none: to the engine."""
        self._input_ended = False
        self._closed = False

    async def read(self) -> Output | int:
        with contextlib.suppress(ConnectionError):
            while piece := await self._next():
                if not self._begun and piece.data.startswith(parse.COMPLAINT):
                    self._begun, self._complaint = True, piece
                    continue
                self._begun = True
                return piece
        if self._status is None:
            self._status = await self._ended()
        said, self._complaint = self._complaint, None
        if said is None:
            return self._status
        refused = parse.status_of(said.data, self._status)
        self._status = refused or self._status
        return Output(2, said.data) if refused else said

    def size_soon(self, size: Size) -> None:
        """Engines of before 1.42 give a terminal its size only once the command has begun."""
        self._sizing = asyncio.ensure_future(self._size(size))

    async def _size(self, size: Size) -> None:
        for pause_s in _PAUSES_S:
            await asyncio.sleep(pause_s)
            with contextlib.suppress(AtollError):
                await self._engine.resize_exec(self._number, size.rows, size.columns)
                return

    async def open_inlet(self) -> None:
        """Before anything is written: what goes by the engine could come later than what does not."""
        process = await self._process()
        if process is not None:
            self._inlet = await asyncio.to_thread(pipes.inlet, process)

    async def write(self, data: bytes) -> None:
        if self._inlet is not None:
            await pipes.write_all(self._inlet, data)
            return
        with contextlib.suppress(ConnectionError):
            self._writer.write(data)
            await self._writer.drain()

    async def end_input(self) -> None:
        if self._input_ended:
            return
        if self._on_terminal:
            await self.write(_END_OF_FILE)
            return
        self._input_ended = True
        self._close_inlet()
        with contextlib.suppress(OSError):
            self._writer.write_eof()

    async def resize(self, size: Size) -> None:
        if self._on_terminal:
            self._stop_sizing()
            with contextlib.suppress(AtollError):
                await self._engine.resize_exec(self._number, size.rows, size.columns)

    async def send_signal(self, number: int) -> None:
        process = await self._process()
        if process is not None:
            pids.signal_group(process, number)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._stop_sizing()
        self._close_inlet()
        try:
            process = await self._process() if self._status is None else None
            if process is not None:
                pids.signal_group(process, signal.SIGHUP)
                if not await pids.wait_gone(process, HANG_UP_S):
                    pids.signal_group(process, signal.SIGKILL)
        finally:
            self._writer.close()
            with contextlib.suppress(OSError):
                await self._writer.wait_closed()

    def _close_inlet(self) -> None:
        if self._inlet is not None:
            os.close(self._inlet)
            self._inlet = None

    def _stop_sizing(self) -> None:
        if self._sizing is not None:
            self._sizing.cancel()

    async def _next(self) -> Output | None:
        """The next piece; nothing at the end."""
        if self._on_terminal:
            data = await self._reader.read(_READ_SIZE)
            return Output(1, data) if data else None
        while not self._come and (data := await self._reader.read(_READ_SIZE)):
            self._come.extend(Output(*piece) for piece in self._frames.feed(data))
        return self._come.popleft() if self._come else None

    async def _process(self) -> pids.Pid | None:
        """The command as a process of this host; None when it has ended."""
        for pause_s in _PAUSES_S:
            await asyncio.sleep(pause_s)
            try:
                seen = await self._engine.inspect_exec(self._number)
            except AtollError:
                return None
            if seen.pid:
                return pids.identify(seen.pid) if seen.running else None
            if not seen.running and seen.status is not None:
                return None
        return None

    async def _ended(self) -> int:
        """Its status, which the engine may know a moment after its streams have ended."""
        for pause_s in _PAUSES_S:
            await asyncio.sleep(pause_s)
            try:
                seen = await self._engine.inspect_exec(self._number)
                if seen.running or seen.status is None:
                    continue
                if seen.status == 128 + signal.SIGKILL:
                    await self._check_running()
                return seen.status
            except Conflict:
                raise
            except AtollError:
                break
        await self._check_running()
        raise HostFailure(f"machine {self._machine.name}: how its command ended is not known")

    async def _check_running(self) -> None:
        seen = await self._engine.inspect(self._container)
        if seen is None or not seen.state.running:
            raise Conflict(f"machine {self._machine.name}: it has stopped, and its commands with it")
