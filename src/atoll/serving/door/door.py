"""Where callers come in: every connection is counted before anything is done for it, the TLS handshake included.

    Listener ──► Door ──► Connection      a service may have several doors, each with limits and counts of its own:
    (a socket)   (shares, deadlines)      what comes in by one takes nothing from the others

Effects: accepts connections on sockets that it is given, serves them in the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import socket
import ssl
import struct
from collections.abc import Callable, Iterator

from aiohttp import web
from msgspec import Struct
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from atoll.serving.door.complaints import Complaints
from atoll.serving.door.connection import Connection
from atoll.serving.door.shares import Entry, Limits, Shares
from atoll.system import clock

BACKLOG = 1024
ACCEPTED_AT_ONCE = 64
"""Then others have their turn in the loop."""
PAUSE_S = 0.2
"""Before the next try, when the host has no descriptor or memory for a connection."""
SHUTDOWN_S = 1.0
_RESET = struct.pack("ii", 1, 0)

log = logging.getLogger(__name__)

Take = Callable[[socket.socket, str], None]
"""Is given a new connection, and the address that it comes from."""


class Listener:
    """Accepts connections on a socket that listens, which is its own from here on."""

    def __init__(self, listening: socket.socket, take: Take) -> None:
        self._listening = listening
        self._take = take
        self._loop = asyncio.get_running_loop()
        self._resumed_by: asyncio.TimerHandle | None = None
        listening.setblocking(False)
        self._loop.add_reader(listening, self._accept)

    @property
    def port(self) -> int:
        port: int = self._listening.getsockname()[1]
        return port

    def close(self) -> None:
        """Closed already is fine."""
        if self._resumed_by is not None:
            self._resumed_by.cancel()
        if self._listening.fileno() >= 0:
            self._loop.remove_reader(self._listening)
            self._listening.close()

    def _accept(self) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                accepted, address = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                log.error("accepting connections: %s", error.strerror or error)
                self._loop.remove_reader(self._listening)
                self._resumed_by = self._loop.call_later(PAUSE_S, self._resume)
                return
            accepted.setblocking(False)
            self._take(accepted, address[0])

    def _resume(self) -> None:
        self._loop.add_reader(self._listening, self._accept)


def network_source(ip: str) -> str:
    """Who an address of any network belongs to: of IPv6 everybody has a whole /64."""
    address = ipaddress.ip_address(ip.partition("%")[0])
    if address.version == 4:
        return ip
    return str(ipaddress.ip_network((address, 64), strict=False))


class Counters(Struct):
    """What became of connections."""

    admitted: int = 0
    refused: int = 0
    failed_handshakes: int = 0
    replaced: int = 0
    """Strangers that had to make room."""
    malformed: int = 0


class Door:
    """Lets callers in, so many of each source and in all. A `Host` of its connections."""

    def __init__(
        self,
        name: str,
        context: ssl.SSLContext,
        limits: Limits,
        is_known: Callable[[bytes], bool],
    ) -> None:
        """`is_known` tells whether a certificate, in DER, is that of a caller whom the service believes now."""
        self.name = name
        self.limits = limits
        self.counters = Counters()
        self._server: web.Server | None = None
        self._context = context
        self._is_known = is_known
        self._shares = Shares(limits)
        self._strangers: dict[Connection, None] = {}
        """The oldest first."""
        self._handshakes: set[asyncio.Task[None]] = set()
        self._complaints = Complaints(log)

    def begin(self, server: web.Server) -> None:
        """From here on callers are let in, to this server."""
        self._server = server

    def take(self, accepted: socket.socket, source: str) -> None:
        """A new connection, counted as one of this source."""
        assert self._server is not None, "who listens has begun"
        entry = self._shares.enter(source, int(clock.monotonic()))
        if entry is not Entry.ADMITTED:
            self.counters.refused += 1
            self._complaints.about(source, f"{entry.value}")
            # Reset: it leaves nothing behind, in the kernel neither.
            with contextlib.suppress(OSError):
                accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            accepted.close()
            return
        self.counters.admitted += 1
        connection = Connection(self._server, self, source)
        self._strangers[connection] = None
        handshake = asyncio.get_running_loop().create_task(self._let_in(connection, accepted))
        connection.give_up = handshake.cancel
        self._handshakes.add(handshake)
        handshake.add_done_callback(self._handshakes.discard)
        if self._shares.full_of_strangers:
            self.counters.replaced += 1
            oldest = next(iter(self._strangers))
            self.left(oldest)
            oldest.give_up()

    async def _let_in(self, connection: Connection, accepted: socket.socket) -> None:
        made = False
        try:
            # The loop's own deadline, and ours should it hang on beyond it.
            async with asyncio.timeout(self.limits.handshake_s + SHUTDOWN_S):
                await asyncio.get_running_loop().connect_accepted_socket(
                    lambda: connection,
                    accepted,
                    ssl=self._context,
                    ssl_handshake_timeout=self.limits.handshake_s,
                    ssl_shutdown_timeout=SHUTDOWN_S,
                )
            made = True
        except (OSError, TimeoutError) as error:
            self.counters.failed_handshakes += 1
            reason = getattr(error, "reason", None) or type(error).__name__
            self._complaints.about(connection.source, f"no TLS handshake ({str(reason).lower()[:60]})")
        finally:
            if not made:
                self.left(connection)
                connection.abort()

    def knows(self, connection: Connection, certificate: bytes | None) -> bool:
        if connection not in self._strangers or certificate is None or not self._is_known(certificate):
            return False
        if not self._shares.know(connection.source):
            self._complaints.about(connection.source, "too many connections of callers with a certificate")
            return False
        del self._strangers[connection]
        return True

    def left(self, connection: Connection) -> None:
        """It takes no place any more. Left already is fine."""
        if connection.known:
            connection.known = False
            self._shares.leave(connection.source, known=True)
        elif connection in self._strangers:
            del self._strangers[connection]
            self._shares.leave(connection.source, known=False)

    def malformed(self, connection: Connection) -> None:
        self.counters.malformed += 1
        self._complaints.about(connection.source, "a request that is not HTTP")

    async def close(self) -> None:
        """Break off what has not come in yet; the rest is the server's."""
        self._complaints.close()
        for handshake in list(self._handshakes):
            handshake.cancel()
        await asyncio.gather(*self._handshakes, return_exceptions=True)

    @property
    def open(self) -> tuple[int, int]:
        """How many connections there are, of strangers and of callers that are known."""
        return self._shares.strangers, self._shares.known


def families(doors: tuple[Door, ...]) -> Iterator[Metric]:
    """What doors count, for /metrics."""
    opened = GaugeMetricFamily(
        "atoll_door_connections", "Connections to the API that are open", labels=("door", "caller")
    )
    became = CounterMetricFamily(
        "atoll_door_connections_made", "What became of connections to the API", labels=("door", "outcome")
    )
    for door in doors:
        for caller, count in zip(("stranger", "known"), door.open, strict=True):
            opened.add_metric((door.name, caller), count)
        for outcome in Counters.__struct_fields__:
            became.add_metric((door.name, outcome), getattr(door.counters, outcome))
    yield opened
    yield became
