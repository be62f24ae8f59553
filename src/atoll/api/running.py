"""Commands in guests, for programs: `Running` follows one, `run` waits for its end. Effects: a WebSocket.

with Client(addresses, tls) as client:
    done = run(client, "web", Command(("uname", "-r")))
    print(done.status, done.stdout)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType

import msgspec
from msgspec import Struct, structs

from atoll.api.client import Client
from atoll.api.codec import decoder, encode
from atoll.api.hands import (
    FIRST_WINDOW,
    MOST_DATA,
    STDERR,
    STDIN,
    STDOUT,
    VM_EXEC,
    WINDOW,
    Control,
    Told,
    unframe,
)
from atoll.errors import AtollError, TooLarge, Unreachable, from_wire
from atoll.model.command import Command, Size

_STDIN = bytes((STDIN,))
MOST_OUTPUT = 64 << 20
"""Bytes that `run` keeps of each stream where it is not told otherwise."""


class Finished(Struct, frozen=True):
    """A command that has ended. `timed_out`: its time was over, and the status is 124."""

    status: int
    stdout: bytes
    stderr: bytes
    timed_out: bool = False


class Window:
    """What may be sent of standard input. Pure."""

    def __init__(self) -> None:
        self.room = FIRST_WINDOW
        self._most = FIRST_WINDOW // 8

    def pieces(self, data: bytes) -> list[bytes]:
        """Data, which is at most the room that there is, in pieces for one frame each."""
        assert len(data) <= self.room
        self.room -= len(data)
        return [data[start : start + self._most] for start in range(0, len(data), self._most)]

    def taken(self, size: int) -> None:
        self.room = min(WINDOW, self.room + max(0, size))
        # Only a service that takes large frames gives so much room.
        if self.room > FIRST_WINDOW:
            self._most = MOST_DATA


def told_of(message: str) -> Told:
    """What the service says beside the bytes. An error of the command is raised."""
    try:
        told: Told = decoder(Told).decode(message)
    except msgspec.MsgspecError as error:
        raise Unreachable(f"the service sent what is not understood: {error}") from None
    if told.ended is not None and told.ended.error is not None:
        problem = told.ended.error
        raise from_wire(problem.code, problem.brief, problem.hint, problem.details)
    return told


class Running:
    """A command that runs, as seen by one thread. Closed before its end, it is ended."""

    def __init__(self, client: Client, vm: str, command: Command) -> None:
        self._socket = client.connect(VM_EXEC, {"vm": vm})
        self._window = Window()
        self.status: int | None = None
        """Its exit status, once it has ended."""
        self.timed_out = False
        self._put(command)

    def __enter__(self) -> Running:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    @property
    def room(self) -> int:
        """How many bytes of standard input can be written now."""
        return 0 if self._socket.unsent > WINDOW else self._window.room

    def write(self, data: bytes) -> None:
        """To its standard input: no more than there is room for."""
        for piece in self._window.pieces(data):
            self._socket.put_bytes(_STDIN, piece)

    def end_input(self) -> None:
        self._put(Control(end_of_input=True))

    def resize(self, size: Size) -> None:
        self._put(Control(resize=size))

    def send_signal(self, number: int) -> None:
        self._put(Control(signal=number))

    def step(
        self, others: Mapping[int, int] | None = None, timeout_s: float | None = None, *, hear: bool = True
    ) -> tuple[list[tuple[int, bytes]], set[int]]:
        """Wait for something to happen: what it wrote, with the streams, and those of the descriptors that are ready.

        `others` are descriptors with the events of poll(2) to wait for; without `hear`, the command waits.
        """
        messages, ready = self._socket.step(others, timeout_s, hear=hear)
        wrote: list[tuple[int, bytes]] = []
        for message in messages:
            if isinstance(message, bytes):
                wrote.append(unframe(message, (STDOUT, STDERR)))
                continue
            try:
                told = told_of(message)
            except AtollError:
                if not wrote:
                    raise
                self._socket.push_back(message)
                break
            self._window.taken(told.taken)
            if told.ended is not None:
                self.status, self.timed_out = told.ended.status, told.ended.timed_out
        return wrote, ready

    def _put(self, message: Struct) -> None:
        self._socket.put(encode(message).decode())


def run(
    client: Client,
    vm: str,
    command: Command,
    stdin: bytes = b"",
    *,
    most_bytes: int = MOST_OUTPUT,
    on_output: Callable[[int, bytes], None] | None = None,
) -> Finished:
    """Run a command to its end, with all that it wrote; TooLarge when that is more than `most_bytes`.

    With `on_output` nothing is kept: it is called with each piece and its stream.
    """
    kept = {STDOUT: bytearray(), STDERR: bytearray()}
    with Running(client, vm, structs.replace(command, input=True)) as running:
        unsent, ended = memoryview(stdin), False
        while running.status is None:
            if unsent and (room := running.room):
                running.write(bytes(unsent[:room]))
                unsent = unsent[room:]
            if not unsent and not ended:
                running.end_input()
                ended = True
            wrote, _ = running.step()
            for stream, data in wrote:
                if on_output is not None:
                    on_output(stream, data)
                    continue
                kept[stream] += data
                if len(kept[stream]) > most_bytes:
                    raise TooLarge(
                        f"vm exec: it wrote more than {most_bytes} bytes", hint="write it to a file"
                    )
        return Finished(running.status, bytes(kept[STDOUT]), bytes(kept[STDERR]), running.timed_out)
