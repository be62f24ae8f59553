"""Two directions that end together: a WebSocket and a stream of a machine. Effects: bytes both ways."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from atoll.api.route import ByteSocket
from atoll.drivers.machine.base import Console


async def relay(stream: Console, socket: ByteSocket) -> None:
    """Everything both ways, each as fast as its reader, until one side has ended."""
    try:
        await until_one_ends(_out(stream, socket), _in(stream, socket))
    finally:
        await stream.close()


async def until_one_ends(*works: Awaitable[None]) -> None:
    """Run them beside each other until one is done, then end the others. A lost connection is an end too."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        error = task.exception()
        if error is not None and not isinstance(error, ConnectionError):
            raise error


async def _out(stream: Console, socket: ByteSocket) -> None:
    while data := await stream.read():
        await socket.send(data)


async def _in(stream: Console, socket: ByteSocket) -> None:
    while data := await socket.receive():
        await stream.write(data)
