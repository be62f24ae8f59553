"""One connection to the metadata server: aiohttp's, with a share of its own and deadlines. Speaks HTTP.

A caller is known by the address that it calls from. What it may use is counted by who it is, so that one with
many addresses gets no more than another.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from typing import Any, cast

from aiohttp import payload, web
from aiohttp.abc import AbstractStreamWriter
from msgspec import Struct

from atoll.guestnet.http.found import TEXT, Found
from atoll.guestnet.http.limits import Limits, Shares
from atoll.system import clock

_HTTP_LIMITS: dict[str, Any] = {"max_line_size": 2048, "max_field_size": 4096, "max_headers": 32}
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
    """aiohttp's protocol with shares in front and deadlines, of which it has none of its own."""

    __slots__ = (
        *("_closed_by", "_counters", "_shares", "_headers_by", "_limits", "_name_of", "_opened", "_wire"),
        *("caller", "ip"),
    )

    def __init__(
        self,
        server: web.Server,
        shares: Shares,
        limits: Limits,
        counters: Counters,
        name_of: Callable[[str], str] = str,
    ) -> None:
        """`name_of` tells who calls from an address."""
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
        self._shares = shares
        self._limits = limits
        self._counters = counters
        self._name_of = name_of
        self.ip = ""
        """Where the call comes from."""
        self.caller = ""
        """Who calls: a VM has several addresses, and one share."""
        self._wire: asyncio.Transport | None = None
        self._opened = 0.0
        self._closed_by: asyncio.TimerHandle | None = None
        self._headers_by: asyncio.TimerHandle | None = None

    @property
    def is_old(self) -> bool:
        return clock.monotonic() - self._opened > self._limits.last_request_s

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        wire = cast(asyncio.Transport, transport)
        peer = wire.get_extra_info("peername")
        self._opened = clock.monotonic()
        # An address of one link alone may come with the name of that link.
        ip = peer[0].partition("%")[0] if peer else ""
        caller = self._name_of(ip)
        if not ip or not self._shares.enter(caller, int(self._opened)):
            self._counters.refused += 1
            wire.abort()
            return
        self._counters.connections += 1
        self.ip, self.caller = ip, caller
        self._wire = wire
        super().connection_made(transport)
        self._closed_by = self._loop.call_later(self._limits.connection_s, self._expire)
        self._await_headers()

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._wire is None:
            return
        self._wire = None
        self._shares.leave(self.caller)
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
                if wire.family == socket.AF_INET6:
                    wire.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_UNICAST_HOPS, 1)
                else:
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
        if isinstance(exc, ConnectionError):
            raise exc  # the caller has gone: there is nobody to tell, and nothing to look into
        if status >= 500:
            self.log_exception("answering %r for %s failed", request.path, self.ip, exc_info=exc)
            body = b"internal error\n"
        else:
            self._counters.malformed += 1
            body = b"bad request\n"
        last = response(Found(status, TEXT, body))
        last.force_close()
        return last

    def _await_headers(self) -> None:
        if self._wire is not None:
            self.headers_came()
            self._headers_by = self._loop.call_later(self._limits.headers_s, self._expire)

    def _expire(self) -> None:
        self._counters.expired += 1
        self.abort()


def response(found: Found) -> web.Response:
    headers = _HEADERS | found.headers
    body = found.body if len(found.body) <= _PIECE_BYTES else Pieces(found.body)
    return web.Response(status=found.status, body=body, content_type=found.content_type, headers=headers)
