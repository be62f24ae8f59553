"""`run` of a command in a guest, with the asynchronous client. Effects: a WebSocket."""

from __future__ import annotations

import asyncio

import aiohttp
from msgspec import structs

from atoll.api.async_client import AsyncClient
from atoll.api.codec import encode
from atoll.api.hands import STDERR, STDIN, STDOUT, VM_EXEC, Control, frame, unframe
from atoll.api.running import MOST_OUTPUT, Finished, Window, told_of
from atoll.errors import TooLarge, Unreachable
from atoll.model.command import Command


async def run_async(
    client: AsyncClient, vm: str, command: Command, stdin: bytes = b"", *, most_bytes: int = MOST_OUTPUT
) -> Finished:
    """Run a command to its end, with all that it wrote; TooLarge when that is more than `most_bytes`."""
    kept = {STDOUT: bytearray(), STDERR: bytearray()}
    async with client.connect(VM_EXEC, {"vm": vm}) as socket:
        await socket.send_str(encode(structs.replace(command, input=True)).decode())
        window, room = Window(), asyncio.Event()
        feeding = asyncio.ensure_future(_feed(socket, window, room, stdin))
        try:
            while True:
                message = await socket.receive()
                if message.type is aiohttp.WSMsgType.BINARY:
                    stream, data = unframe(message.data, (STDOUT, STDERR))
                    kept[stream] += data
                    if len(kept[stream]) > most_bytes:
                        raise TooLarge(f"vm exec: it wrote more than {most_bytes} bytes")
                elif message.type is aiohttp.WSMsgType.TEXT:
                    told = told_of(message.data)
                    window.taken(told.taken)
                    room.set()
                    if told.ended is not None and told.ended.status is not None:
                        out, err = bytes(kept[STDOUT]), bytes(kept[STDERR])
                        return Finished(told.ended.status, out, err, told.ended.timed_out)
                else:
                    raise Unreachable("vm exec: the connection broke", hint="see: atoll status")
        finally:
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)


async def _feed(
    socket: aiohttp.ClientWebSocketResponse, window: Window, room: asyncio.Event, stdin: bytes
) -> None:
    unsent = memoryview(stdin)
    while unsent:
        piece = bytes(unsent[: window.room])
        for one in window.pieces(piece):
            await socket.send_bytes(frame(STDIN, one))
        unsent = unsent[len(piece) :]
        if not window.room:
            room.clear()
            await room.wait()
    await socket.send_str(encode(Control(end_of_input=True)).decode())
