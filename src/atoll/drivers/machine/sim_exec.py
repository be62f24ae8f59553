"""Commands in simulated guests: a few that a shell and busybox have too. Deterministic; no process, no clock.

    /bin/busybox true|false|cat|env|pwd|id -un|echo …|yes|sleep N
    /bin/sh -c PART[; PART]…      where PART is: echo WORD [>&2], exit N, kill -N $$, stty size, or one of the above

`sleep` and `yes` go on until a signal ends them; `cat` until the end of its input.
"""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import AsyncIterator

from atoll.drivers.machine.base import Output
from atoll.errors import Conflict
from atoll.model.command import NOT_FOUND, SIGNALLED, Command, Size

_QUEUE = 4
"""Pieces of input or output that are under way: a simulated guest waits as a real one does."""


class _Exit(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class SimProcess:
    """One command. `ended` is told when it has."""

    def __init__(self, machine: str, command: Command) -> None:
        self._machine = machine
        self._command = command
        self._input: asyncio.Queue[bytes] = asyncio.Queue(_QUEUE)
        self._output: asyncio.Queue[Output | int] = asyncio.Queue(_QUEUE)
        self._size = command.terminal or Size()
        self._stopped = False
        self._signalled: int | None = None
        self._task = asyncio.ensure_future(self._run())

    @property
    def running(self) -> bool:
        return not self._task.done()

    async def read(self) -> Output | int:
        if self._output.empty() and self._task.done():
            return self._last()
        piece = asyncio.ensure_future(self._output.get())
        try:
            await asyncio.wait({piece, self._task}, return_when=asyncio.FIRST_COMPLETED)
            return piece.result() if piece.done() else self._last()
        finally:
            piece.cancel()

    def _last(self) -> int:
        if self._stopped:
            raise Conflict(f"machine {self._machine}: it has stopped, and its commands with it")
        if self._signalled is not None:
            return SIGNALLED + self._signalled
        return self._task.result()

    async def write(self, data: bytes) -> None:
        putting = asyncio.ensure_future(self._input.put(data))
        try:
            await asyncio.wait({putting, self._task}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            putting.cancel()

    async def end_input(self) -> None:
        await self.write(b"")

    async def resize(self, size: Size) -> None:
        self._size = size

    async def send_signal(self, number: int) -> None:
        if self.running:
            self._signalled = number
            self._task.cancel()

    async def close(self) -> None:
        await self.send_signal(signal.SIGHUP)

    def stop(self) -> None:
        """Its machine has ended."""
        if self.running:
            self._stopped = True
            self._task.cancel()

    async def _run(self) -> int:
        try:
            argv = self._command.argv
            if argv[:2] == ("/bin/sh", "-c") and len(argv) > 2:
                status = 0
                for part in argv[2].split(";"):
                    status = await self._part(part.strip())
                return status
            return await self._program(argv)
        except _Exit as end:
            return end.status

    async def _part(self, part: str) -> int:
        if found := re.fullmatch(r"exit ([0-9]+)", part):
            raise _Exit(int(found[1]))
        if found := re.fullmatch(r"kill -([0-9]+) \$\$", part):
            raise _Exit(SIGNALLED + int(found[1]))
        if found := re.fullmatch(r"echo (.*?)( >&2)?", part):
            await self._say(f"{found[1]}\n".encode(), 2 if found[2] else 1)
            return 0
        return await self._program(tuple(part.split()))

    async def _program(self, argv: tuple[str, ...]) -> int:
        name, *words = argv[1:] if argv[0] == "/bin/busybox" and len(argv) > 1 else argv
        match name:
            case "true" | "false":
                return int(name == "false")
            case "echo":
                await self._say(" ".join(words).encode() + b"\n")
            case "env":
                await self._say("".join(f"{k}={v}\n" for k, v in self._command.env.items()).encode())
            case "pwd":
                await self._say(f"{self._command.cwd or '/root'}\n".encode())
            case "id":
                await self._say(f"{self._command.user or 'root'}\n".encode())
            case "stty":
                await self._say(f"{self._size.rows} {self._size.columns}\n".encode())
            case "sleep":
                await asyncio.Event().wait()
            case "yes":
                while True:
                    await self._say(b"y\n" * 4096)
            case "cat":
                async for data in self._come():
                    await self._say(data)
            case _:
                await self._say(f"{argv[0]}: not found\n".encode(), 2)
                return NOT_FOUND
        return 0

    async def _come(self) -> AsyncIterator[bytes]:
        while self._command.input and (data := await self._input.get()):
            yield data

    async def _say(self, data: bytes, stream: int = 1) -> None:
        on_terminal = self._command.terminal is not None
        data = data.replace(b"\n", b"\r\n") if on_terminal else data
        await self._output.put(Output(1 if on_terminal else stream, data))
