"""Ports of a guest as ports of this machine. Effects: ports here, a WebSocket for each connection.

On loopback only the user that forwards, and root, may connect: a guest may trust what comes from its node.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import sys
from collections.abc import Sequence

import aiohttp

from atoll.api.codec import decoder, encode
from atoll.api.forwards import VM_FORWARD, End, Target
from atoll.cli import failure
from atoll.cli.local_port import Address, check_peer, shown
from atoll.cli.port_mapping import Mapping
from atoll.cli.sockets import WebSocket, connected, messages
from atoll.errors import AtollError, Conflict, from_wire

CHUNK = 32 << 10
AT_ONCE = 64
"""Connections that this command carries at a time; more wait."""


def forward_all(
    addresses: Sequence[Address], tls: ssl.SSLContext, ref: str, mappings: Sequence[Mapping], *, quiet: bool
) -> int:
    """Until it is interrupted; the exit status."""
    return asyncio.run(_forward_all(Forward(addresses, tls, ref), mappings, quiet=quiet))


async def _forward_all(forward: Forward, mappings: Sequence[Mapping], *, quiet: bool) -> int:
    # Who may not, or has no such VM, is told now, not at the first connection.
    async with forward.connected(mappings[0].guest, check=True):
        pass
    async with contextlib.AsyncExitStack() as stack:
        for mapping in mappings:
            server = await stack.enter_async_context(await forward.listen(mapping))
            here: Address = server.sockets[0].getsockname()[:2]
            sys.stdout.write(f"{shown(here)} -> {forward.ref}:{mapping.guest}\n")
            sys.stdout.flush()
        if not quiet:
            sys.stderr.write("forwarding; Ctrl-C ends\n")
            sys.stderr.flush()
        await asyncio.Event().wait()
    return 0


class Forward:
    """Connections to one VM."""

    def __init__(self, addresses: Sequence[Address], tls: ssl.SSLContext, ref: str) -> None:
        self.ref = ref
        self._addresses, self._tls = addresses, tls
        self._places = asyncio.Semaphore(AT_ONCE)

    async def listen(self, mapping: Mapping) -> asyncio.Server:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._serve(mapping.guest, reader, writer)

        try:
            return await asyncio.start_server(serve, mapping.host, mapping.here)
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise Conflict(
                f"listening on {shown((mapping.host, mapping.here))}: {why}",
                hint=f"0:{mapping.guest} finds a free port",
            ) from None

    async def _serve(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            check_peer(writer, "connection")
            async with self._places, self.connected(port) as socket:
                await both_ways(socket, reader, writer)
        except ConnectionError:
            pass  # whoever connected has gone
        except AtollError as error:
            failure.tell(error)
        finally:
            # At once: a guest that broke off is to be seen as one.
            writer.transport.abort() if writer.transport.get_write_buffer_size() else writer.close()

    def connected(
        self, port: int, *, check: bool = False
    ) -> contextlib.AbstractAsyncContextManager[WebSocket]:
        return connected(self._addresses, self._tls, VM_FORWARD, {"vm": self.ref}, Target(port, check))


async def both_ways(socket: WebSocket, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Everything, until both sides have said that no more comes, or one of them has gone."""
    sending = asyncio.ensure_future(_out(socket, reader))
    taking = asyncio.ensure_future(_in(socket, writer))
    try:
        await asyncio.wait({sending, taking}, return_when=asyncio.FIRST_EXCEPTION)
        for task in (sending, taking):
            if task.done():
                task.result()
    finally:
        for task in (sending, taking):
            task.cancel()
        await asyncio.gather(sending, taking, return_exceptions=True)


async def _out(socket: WebSocket, reader: asyncio.StreamReader) -> None:
    while data := await reader.read(CHUNK):
        await socket.send_bytes(data)
    await socket.send_str(encode(End()).decode())


async def _in(socket: WebSocket, writer: asyncio.StreamWriter) -> None:
    """Until the guest has said that no more comes; ConnectionResetError when that did not come."""
    async for message in messages(socket, "connection"):
        if message.type is aiohttp.WSMsgType.BINARY:
            writer.write(message.data)
            await writer.drain()
            continue
        said: End = decoder(End).decode(message.data)
        if said.error is not None:
            raise from_wire(said.error.code, said.error.brief, said.error.hint, said.error.details)
        writer.write_eof()
        return
    raise ConnectionResetError("the guest has gone")
