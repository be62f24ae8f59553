"""The metadata server on the wire: HTTP on 169.254.169.254:80 of a bridge's service namespace.

Effects: opens a listening socket in a namespace, serves it in the loop. A caller is known by the address that
it calls from, which anti-spoofing vouches for. No caller can hold more than its share of connections, memory
or time, whatever it sends or does not send.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from typing import Any, cast

from aiohttp import payload, web
from aiohttp.abc import AbstractStreamWriter
from msgspec import Struct

from atoll.errors import HostFailure
from atoll.hypervisor.metadata.gate import Gate, Limits
from atoll.hypervisor.metadata.guest import NOT_FOUND, TEXT, Found, Guest
from atoll.hypervisor.metadata.tokens import UNAUTHORIZED, Tokens
from atoll.hypervisor.metadata.tree import TOKEN_PATH, respond, wants_credentials
from atoll.model.network import METADATA_IP
from atoll.system import clock, namespaces

PORT = 80

_HTTP_LIMITS: dict[str, Any] = {"max_line_size": 2048, "max_field_size": 4096, "max_headers": 32}
_BACKLOG = 128
_PIECE_BYTES = 1 << 16
_HEADERS = {"Server": "atoll", "Cache-Control": "no-store"}

log = logging.getLogger(__name__)


class Counters(Struct):
    """What became of the callers."""

    connections: int = 0
    refused: int = 0
    expired: int = 0
    requests: int = 0
    malformed: int = 0


class Pieces(payload.Payload):
    """A large body that leaves as the caller takes it. Plain bytes would be copied into a buffer at once."""

    def __init__(self, body: bytes) -> None:
        super().__init__(body)
        self._body = body
        self._size = len(body)

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return self._body.decode(encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        for start in range(0, len(self._body), _PIECE_BYTES):
            await writer.write(self._body[start : start + _PIECE_BYTES])


class Connection(web.RequestHandler):
    """aiohttp's protocol with a gate in front and deadlines, of which it has none of its own."""

    __slots__ = ("_closed_by", "_counters", "_gate", "_headers_by", "_ip", "_limits", "_opened", "_wire")

    def __init__(self, server: web.Server, gate: Gate, limits: Limits, counters: Counters) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            logger=log,
            access_log=cast(logging.Logger, None),
            # No body is wanted, so none is waited for after the answer, nor unpacked.
            lingering_time=0,
            auto_decompress=False,
            **_HTTP_LIMITS,
        )
        self._gate = gate
        self._limits = limits
        self._counters = counters
        self._ip = ""
        self._wire: asyncio.Transport | None = None
        self._opened = 0.0
        self._closed_by: asyncio.TimerHandle | None = None
        self._headers_by: asyncio.TimerHandle | None = None

    @property
    def ip(self) -> str:
        """Who calls."""
        return self._ip

    @property
    def is_old(self) -> bool:
        return clock.monotonic() - self._opened > self._limits.last_request_s

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        wire = cast(asyncio.Transport, transport)
        peer = wire.get_extra_info("peername")
        self._opened = clock.monotonic()
        if peer is None or not self._gate.enter(peer[0], int(self._opened)):
            self._counters.refused += 1
            wire.abort()
            return
        self._counters.connections += 1
        self._ip = peer[0]
        self._wire = wire
        super().connection_made(transport)
        self._closed_by = self._loop.call_later(self._limits.connection_s, self._expire)
        self._await_headers()

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._wire is None:
            return
        self._wire = None
        self._gate.leave(self._ip)
        self.headers_came()
        if self._closed_by is not None:
            self._closed_by.cancel()
        super().connection_lost(exc)

    def headers_came(self) -> None:
        """A request is here: its answer may take the rest of the connection's time."""
        if self._headers_by is not None:
            self._headers_by.cancel()
            self._headers_by = None

    def stay_near(self) -> None:
        """From here on nothing is sent farther than the guest itself: a container behind it, or whoever the
        guest routes for, gets no token."""
        if self._wire is not None:
            with socket.socket(fileno=os.dup(self._wire.get_extra_info("socket").fileno())) as wire:
                wire.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, 1)

    def abort(self) -> None:
        """Close now. Unlike close() it does not wait for a caller that does not read what it asked for."""
        if self._wire is not None:
            self._wire.abort()

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        finished = await super().finish_response(request, resp, start_time)
        self._await_headers()
        return finished

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The last answer of a connection. What a caller sends wrong is counted, and not worth a log line."""
        if status >= 500:
            self.log_exception("answering %r for %s failed", request.path, self._ip, exc_info=exc)
            body = b"internal error\n"
        else:
            self._counters.malformed += 1
            body = b"bad request\n"
        response = _response(Found(status, TEXT, body))
        response.force_close()
        return response

    def _await_headers(self) -> None:
        if self._wire is not None:
            self.headers_came()
            self._headers_by = self._loop.call_later(self._limits.headers_s, self._expire)

    def _expire(self) -> None:
        self._counters.expired += 1
        self.abort()


class MetadataServer:
    """Tells the guests behind one namespace about themselves."""

    def __init__(
        self,
        namespace: str,
        find: Callable[[str], Guest | None],
        on_read: Callable[[str, str], None],
        limits: Limits | None = None,
        settle: Callable[[str], Awaitable[None]] | None = None,
    ) -> None:
        """`find` gives the guest at an IP; `on_read` is told the IP and the path that was read; `settle`
        waits until what has to be issued to the guest at an IP has been."""
        self._namespace = namespace
        self._find = find
        self._on_read = on_read
        self._settle = settle
        self._tokens = Tokens()
        self._limits = limits or Limits()
        self._gate = Gate(self._limits)
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
            where = f"{METADATA_IP}:{PORT} in namespace {self._namespace}"
            raise HostFailure(
                f"listening on {where}: {error.strerror or error}",
                hint="the agent makes the namespace and its address when it starts",
            ) from error
        self._http = http = web.Server(self._handle)
        self._listener = await asyncio.get_running_loop().create_server(
            lambda: Connection(http, self._gate, self._limits, self.counters),
            sock=listening,
            backlog=_BACKLOG,
        )

    async def close(self) -> None:
        """Stop listening, give running answers a second, then close what is left."""
        if self._listener is None or self._http is None:
            return
        self._listener.close()
        connections = [each for each in self._http.connections if isinstance(each, Connection)]
        self._http.pre_shutdown()  # idle ones end here; without it shutdown() would wait for them too
        await self._http.shutdown(timeout=1)
        for connection in connections:
            connection.abort()
        await self._listener.wait_closed()
        self._listener = self._http = None

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = cast(Connection, request.protocol)
        connection.headers_came()
        self.counters.requests += 1
        await self._keep_pace(connection.ip)
        if self._settle is not None and wants_credentials(request.path):
            await self._settle(connection.ip)
        if request.path == TOKEN_PATH:
            connection.stay_near()
        response = _response(self._find_answer(request, connection.ip))
        if request.body_exists or connection.is_old:
            response.force_close()
        return response

    async def _keep_pace(self, ip: str) -> None:
        now = clock.monotonic()
        while not self._gate.spend(ip, int(now)):
            await asyncio.sleep(1 - now % 1)
            now = clock.monotonic()

    def _find_answer(self, request: web.BaseRequest, ip: str) -> Found:
        guest = self._find(ip)
        if guest is None:
            return NOT_FOUND
        if refusal := _refusal(request):
            return refusal
        vm, now_s = guest.vm, clock.monotonic()
        if request.method == "PUT":
            return self._tokens.give(request.headers, vm.instance_id, now_s)
        if not self._tokens.admits(request.headers, vm.instance_id, now_s, required=vm.imdsv2_required):
            return UNAUTHORIZED
        found = respond(request.path, guest, clock.now())
        if found.status == 200 and request.method == "GET":
            self._on_read(ip, request.path)
        return found


def _refusal(request: web.BaseRequest) -> Found | None:
    """What is wrong with a request, whoever sent it."""
    allowed = ("PUT",) if request.path == TOKEN_PATH else ("GET", "HEAD")
    if request.method not in allowed:
        names = ", ".join(allowed)
        return Found(405, TEXT, f"only {names}\n".encode(), {"Allow": names})
    if request.body_exists:
        return Found(413, TEXT, b"a request has no body here\n")
    return None


def _response(found: Found) -> web.Response:
    headers = _HEADERS | found.headers
    body = found.body if len(found.body) <= _PIECE_BYTES else Pieces(found.body)
    return web.Response(status=found.status, body=body, content_type=found.content_type, headers=headers)


def _listen() -> socket.socket:
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listening.setblocking(False)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((METADATA_IP, PORT))
        listening.listen(_BACKLOG)
    except BaseException:
        listening.close()
        raise
    return listening
