"""TCP connections from the node to guests, for callers of the API. Effects: TCP; bytes both ways.

What is in memory of a connection is a few pieces: whoever reads slowly makes the other side wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket as sockets

from atoll.api.codec import decode_body, problem_of
from atoll.api.forwards import End
from atoll.api.route import ByteSocket
from atoll.api.server import KEEP_ALIVE
from atoll.errors import AtollError, Conflict
from atoll.hypervisor.hands.places import Places
from atoll.hypervisor.launch.machines import Machines
from atoll.model.lifecycle import how_to_run
from atoll.model.vm import VM, VmState
from atoll.system.beside import until_one_ends

PER_VM = 64
PER_USER = 128
CHUNK = 32 << 10


class Forwards:
    def __init__(self, machines: Machines) -> None:
        self._machines = machines
        self.places = Places("vm forward", "connections that are open", PER_VM, PER_USER)

    def check(self, vm: VM) -> None:
        if vm.state is not VmState.RUNNING:
            raise Conflict(f"vm forward: VM {vm.name} is {vm.state}", hint=how_to_run(vm))

    async def connect(self, vm: VM, port: int) -> sockets.socket:
        """To a port of its guest; Conflict when that does not answer."""
        wire = await self._machines.connect(vm, port)
        for level, option, value in KEEP_ALIVE:
            wire.setsockopt(level, option, value)
        return wire


async def carry(wire: sockets.socket, socket: ByteSocket) -> None:
    """Everything both ways, until both sides have said that no more comes, or one of them has gone."""
    reader, writer = await asyncio.open_connection(sock=wire)
    ended = asyncio.Event()
    try:
        await until_one_ends(_to_guest(socket, writer, ended), _from_guest(reader, socket, ended))
    finally:
        writer.transport.abort()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def refuse(socket: ByteSocket, error: AtollError) -> None:
    """The last word of a connection that there is none of."""
    with contextlib.suppress(ConnectionError):
        await socket.tell(End(problem_of(error)))


async def _to_guest(socket: ByteSocket, writer: asyncio.StreamWriter, ended: asyncio.Event) -> None:
    """Until the caller has gone."""
    while (message := await socket.message()) != b"":
        if isinstance(message, bytes):
            writer.write(message)
            await writer.drain()
        else:
            decode_body(End, message.encode("utf-8", "surrogatepass"))
            writer.write_eof()
            ended.set()


async def _from_guest(reader: asyncio.StreamReader, socket: ByteSocket, ended: asyncio.Event) -> None:
    while data := await reader.read(CHUNK):
        await socket.send(data)
    await socket.tell(End())
    # The caller may go on: TCP is closed one way at a time.
    await ended.wait()
