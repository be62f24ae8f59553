"""The screen of a VM for VNC viewers on this machine. Effects: a port on loopback, WebSockets, a viewer.

A screen has no password here: whoever connects must be the user that runs the tunnel, or root.
"""

from __future__ import annotations

import asyncio
import ipaddress
import shlex
import ssl
import sys
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

import aiohttp

from atoll.api import hypervisor as api
from atoll.cli import failure
from atoll.cli.local_port import HOST, Address, check_peer, shown
from atoll.cli.sockets import WebSocket, connected, messages
from atoll.errors import AtollError, Conflict, HostFailure, Invalid
from atoll.system import processes
from atoll.system.beside import until_one_ends

PORTS = range(5901, 6000)
"""Where viewers look for screens."""
CHUNK = 64 << 10
VIEWER_TIMEOUT_S = 30 * 86400.0


def parse_listen(text: str | None) -> tuple[str, Sequence[int]]:
    """Where to listen, and the ports to try. Pure."""
    if text is None:
        return HOST, PORTS
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]").replace("localhost", HOST)
    try:
        number, loop = int(port), ipaddress.ip_address(host).is_loopback
    except ValueError:
        raise Invalid("listen", text, "is not ADDRESS:PORT", hint=f"for example {HOST}:5901") from None
    if not loop or not 0 <= number <= 65535:
        raise Invalid(
            "listen", text, "is not on this machine alone", hint=f"{HOST}:5901, and ssh -L from elsewhere"
        )
    return host, (number,)


def viewer_argv(command: str, address: Address) -> list[str]:
    """The command line of a viewer; {host} and {port} in it, else its last word, are the address. Pure."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise Invalid("viewer", command, f"is no command line: {error}".lower()) from None
    if not words:
        raise Invalid("viewer", command, "is empty", hint="for example: vncviewer")
    if "{host}" not in command and "{port}" not in command:
        words.append("{host}::{port}")
    return [word.replace("{host}", address[0]).replace("{port}", str(address[1])) for word in words]


def tunnel(
    addresses: Sequence[Address],
    tls: ssl.SSLContext,
    ref: str,
    *,
    listen: str | None,
    viewer: str | None,
    quiet: bool,
) -> int:
    """Until it is interrupted, or the viewer ends; the exit status."""
    return asyncio.run(Tunnel(addresses, tls, ref).run(parse_listen(listen), viewer, quiet))


class Tunnel:
    def __init__(self, addresses: Sequence[Address], tls: ssl.SSLContext, ref: str) -> None:
        self._addresses = addresses
        self._tls = tls
        self._ref = ref

    async def run(self, listen: tuple[str, Sequence[int]], viewer: str | None, quiet: bool) -> int:
        async with self._connected():
            pass  # refused is refused before anybody waits for a viewer
        server = await self._listening(*listen)
        address: Address = server.sockets[0].getsockname()[:2]
        sys.stdout.write(f"{shown(address)}\n")
        sys.stdout.flush()
        async with server:
            if viewer is not None:
                return await _view(viewer, address)
            if not quiet:
                sys.stderr.write(f"screen of {self._ref}: show it with a VNC viewer; Ctrl-C ends\n")
                sys.stderr.flush()
            await server.serve_forever()
        return 0

    async def _listening(self, host: str, ports: Sequence[int]) -> asyncio.Server:
        why = "no port is free"
        for port in ports:
            try:
                return await asyncio.start_server(self._serve, host, port)
            except OSError as error:
                why = (error.strerror or str(error)).lower()
        raise Conflict(
            f"listening on {shown((host, ports[-1]))}: {why}", hint=f"--listen {HOST}:0 finds a free port"
        )

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            check_peer(writer, "viewer")
            async with self._connected() as socket:
                await until_one_ends(_out(socket, reader), _in(socket, writer))
        except ConnectionError:
            pass  # a viewer that has gone
        except AtollError as error:
            failure.tell(error)
        finally:
            writer.close()

    def _connected(self) -> AbstractAsyncContextManager[WebSocket]:
        return connected(self._addresses, self._tls, api.VM_VNC, {"vm": self._ref})


async def _out(socket: WebSocket, reader: asyncio.StreamReader) -> None:
    while data := await reader.read(CHUNK):
        await socket.send_bytes(data)


async def _in(socket: WebSocket, writer: asyncio.StreamWriter) -> None:
    async for message in messages(socket, "screen"):
        if message.type is aiohttp.WSMsgType.BINARY:
            writer.write(message.data)
            await writer.drain()


async def _view(command: str, address: Address) -> int:
    argv = viewer_argv(command, address)
    done = await processes.run(argv, timeout_s=VIEWER_TIMEOUT_S, check=False)
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise HostFailure(f"viewer {argv[0]}: ended with status {done.returncode}: {said or 'no message'}")
    return 0
