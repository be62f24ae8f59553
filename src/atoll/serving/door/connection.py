"""One connection to a service: aiohttp's, counted and with deadlines. Speaks HTTP.

aiohttp closes a connection that waits for a request longer than its keep-alive time, headers that came in part
included: that time is short for strangers. What it has no deadline for is a caller that does not read its answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Protocol, cast

from aiohttp import web

from atoll.api.server import problem
from atoll.errors import AtollError, Malformed
from atoll.serving.door.shares import Limits

LINGER_S = 2.0
"""An answer goes out before a body that nobody wants has come: who sends it has so long to read the answer."""
_HTTP_LIMITS: dict[str, Any] = {"max_line_size": 8190, "max_field_size": 8190, "max_headers": 64}

log = logging.getLogger(__name__)


class Host(Protocol):
    """What a connection asks of the door that it came in by."""

    limits: Limits

    def knows(self, connection: Connection, certificate: bytes | None) -> bool:
        """Whether the caller is known by its certificate, and has a place among those that are."""
        ...

    def left(self, connection: Connection) -> None: ...

    def malformed(self, connection: Connection) -> None: ...


class Connection(web.RequestHandler):
    """aiohttp's protocol, in the share of its source."""

    __slots__ = ("_ends_by", "_host", "_read_by", "_wire", "give_up", "known", "source")

    def __init__(self, server: web.Server, host: Host, source: str) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            logger=log,
            access_log=cast(logging.Logger, None),
            lingering_time=LINGER_S,
            # Nobody sends us compressed JSON, and a few bytes of it could be very many.
            auto_decompress=False,
            keepalive_timeout=host.limits.request_s,
            **_HTTP_LIMITS,
        )
        self._host = host
        self.source = source
        self.known = False
        self.give_up: Callable[[], object] = self.abort
        """Ends it, whatever it is at: while the handshake is under way, that."""
        self._wire: asyncio.Transport | None = None
        self._ends_by: asyncio.TimerHandle | None = None
        self._read_by: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        wire = self._wire = cast(asyncio.Transport, transport)
        self.give_up = self.abort
        tls = wire.get_extra_info("ssl_object")
        self.known = self._host.knows(self, tls.getpeercert(binary_form=True) if tls is not None else None)
        limits = self._host.limits
        if self.known:
            self._keepalive_timeout = limits.idle_s
        else:
            self._ends_by = self._loop.call_later(limits.stranger_s, self.abort)
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        for timer in (self._ends_by, self._read_by):
            if timer is not None:
                timer.cancel()
        self._wire = None
        super().connection_lost(exc)
        self._host.left(self)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._read_by = self._loop.call_later(self._host.limits.stalled_s, self.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._read_by is not None:
            self._read_by.cancel()
            self._read_by = None

    def abort(self) -> None:
        """Close now. Unlike close() it does not wait for a caller that does not read."""
        if self._wire is not None:
            self._wire.abort()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The last answer of a connection. What callers send wrong is worth a short line, and not each of them."""
        error: AtollError
        if isinstance(exc, ConnectionError):
            raise exc  # the caller has gone: there is nobody to tell, and nothing to look into
        if status >= 500:
            self.log_exception("answering %s failed", self.source, exc_info=exc)
            error = AtollError("unforeseen failure in the service", hint="its log has the details")
        else:
            self._host.malformed(self)
            error = Malformed("not a request that can be read as HTTP", hint="speak HTTP/1.1 over TLS")
        if request.writer.output_size > 0:
            raise ConnectionError("an answer is under way already")
        last = problem(error)
        last.force_close()
        return last
