"""The files that machines boot from, over HTTP: what TFTP serves, for firmware and iPXE that can do better.

Effects: opens a listening socket in a service namespace, reads files, serves in the loop. Callers are known,
and held to their share, as those of the metadata server are.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import cast

from aiohttp import web

from atoll.errors import HostFailure
from atoll.guestnet.http.connection import Connection, Counters
from atoll.guestnet.http.limits import Limits, Shares
from atoll.guestnet.netboot.library import Content, Missing
from atoll.guestnet.netboot.names import HTTP_PORT
from atoll.system import namespaces

_PIECE_BYTES = 1 << 16
_BACKLOG = 64
_STATUS = {Missing.STRANGER: 403, Missing.BAD_NAME: 400, Missing.NOT_THERE: 404}
_LIMITS = Limits(connections_per_guest=8, per_guest_per_s=50, connection_s=900, last_request_s=60)
_HEADERS = {"Server": "atoll", "Cache-Control": "no-store"}


class BootServer:
    """Serves files to the machines behind one namespace. `open_` finds the file of a name for an IP."""

    def __init__(self, namespace: str, open_: Callable[[str, str], Content | Missing]) -> None:
        self._namespace = namespace
        self._open = open_
        self._shares = Shares(_LIMITS)
        self._http: web.Server | None = None
        self._listener: asyncio.Server | None = None
        self.counters = Counters()

    async def start(self) -> None:
        """Begin to listen. Started already is fine."""
        if self._listener is not None:
            return
        try:
            listening = namespaces.inside(self._namespace, _listen)
        except OSError as error:
            raise HostFailure(
                f"listening on port {HTTP_PORT} in namespace {self._namespace}: {error.strerror or error}",
                hint="the agent makes the namespace when it starts",
            ) from error
        self._http = http = web.Server(self._handle)
        self._listener = await asyncio.get_running_loop().create_server(
            lambda: Connection(http, self._shares, _LIMITS, self.counters), sock=listening, backlog=_BACKLOG
        )

    async def close(self) -> None:
        """Stop listening and end what is under way. Closed already is fine."""
        if self._listener is None or self._http is None:
            return
        self._listener.close()
        for connection in [each for each in self._http.connections if isinstance(each, Connection)]:
            connection.abort()
        await self._http.shutdown(timeout=1)
        await self._listener.wait_closed()
        self._listener = self._http = None

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = cast(Connection, request.protocol)
        connection.headers_came()
        self.counters.requests += 1
        if request.method not in ("GET", "HEAD"):
            return _refusal(405, "only GET and HEAD")
        content = self._open(connection.ip, request.path)
        if isinstance(content, Missing):
            return _refusal(_STATUS[content], content)
        try:
            return await _send(request, content)
        finally:
            content.close()


async def _send(request: web.BaseRequest, content: Content) -> web.StreamResponse:
    response = web.StreamResponse(headers=_HEADERS)
    response.content_type = "application/octet-stream"
    response.content_length = content.size
    await response.prepare(request)
    if request.method == "GET":
        for start in range(0, content.size, _PIECE_BYTES):
            piece = content.read(start, min(_PIECE_BYTES, content.size - start))
            if not piece:
                response.force_close()  # cut short meanwhile: the client sees that bytes are missing
                break
            await response.write(piece)
    await response.write_eof()
    return response


def _refusal(status: int, why: str) -> web.Response:
    return web.Response(status=status, text=f"{why}\n", headers=_HEADERS)


def _listen() -> socket.socket:
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listening.setblocking(False)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("0.0.0.0", HTTP_PORT))
        listening.listen(_BACKLOG)
    except BaseException:
        listening.close()
        raise
    return listening
