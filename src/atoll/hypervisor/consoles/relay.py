"""Two directions that end together: a WebSocket and a stream of a machine. Effects: bytes both ways."""

from __future__ import annotations

from atoll.api.route import ByteSocket
from atoll.drivers.machine.base import Console
from atoll.system.beside import until_one_ends


async def relay(stream: Console, socket: ByteSocket) -> None:
    """Everything both ways, each as fast as its reader, until one side has ended."""
    try:
        await until_one_ends(_out(stream, socket), _in(stream, socket))
    finally:
        await stream.close()


async def _out(stream: Console, socket: ByteSocket) -> None:
    while data := await stream.read():
        await socket.send(data)


async def _in(stream: Console, socket: ByteSocket) -> None:
    while data := await socket.receive():
        await stream.write(data)
