"""The light client, for commands: standard library only, because every import is a wait for the user.

Keeps one connection for all calls; goes through all addresses of a service until one answers, and remembers it.
Effects: TCP and TLS to the service.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Any, TypeVar

from atoll.api import websocket
from atoll.api.client_socket import ClientSocket
from atoll.api.codec import broke_off, decode_line, decoder, error_of, request_of
from atoll.api.http1 import BadReply, Connection, Reply
from atoll.api.reaching import Address, Addresses, Tls, current, show
from atoll.api.route import (
    NOTHING,
    OFFSET_HEADER,
    B,
    Done,
    Download,
    I,
    Q,
    R,
    Route,
    Socket,
    Stream,
    Unary,
    Upload,
)
from atoll.errors import AtollError, TimedOut, Unauthenticated, Unreachable

T = TypeVar("T")

CONNECT_TIMEOUT_S = 5.0
HEARTBEAT_TIMEOUT_S = 30.0


class Client:
    """Calls routes of one service, which may have several addresses."""

    def __init__(self, addresses: Sequence[Address], tls: Tls, *, timeout_s: float = 60.0) -> None:
        self._addresses = Addresses(addresses)
        self._tls = tls
        self._timeout_s = timeout_s
        self._connection: Connection | None = None
        self._context: ssl.SSLContext | None = None
        """What the connection was made with."""

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @property
    def address(self) -> Address:
        """The one that answered last; before that, the first."""
        return self._addresses.first

    def call(
        self,
        route: Unary[B, Q, R],
        params: Mapping[str, str] | None = None,
        *,
        body: B | None = None,
        query: Q | None = None,
        timeout_s: float | None = None,
    ) -> R:
        """One request, one reply."""
        response = self._request(route, params or {}, body, query, timeout_s or self._timeout_s)
        data = self._guard(response.read)
        result: R = decoder(route.result).decode(data if route.result is not NOTHING else b"null")
        return result

    def stream(
        self,
        route: Stream[B, Q, I, R],
        params: Mapping[str, str] | None = None,
        *,
        body: B | None = None,
        query: Q | None = None,
    ) -> Iterator[I | Done[R]]:
        """Items as they arrive, at the end `Done`."""
        response = self._request(route, params or {}, body, query, HEARTBEAT_TIMEOUT_S)
        with self._reading(response):
            while line := self._guard(response.readline):
                if not line.strip():
                    continue
                decoded: I | Done[R] = decode_line(route, line)
                if isinstance(decoded, Done):
                    self._guard(response.read)
                    yield decoded
                    return
                yield decoded
            raise broke_off(self._where())

    def download(
        self, route: Download[B, Q], params: Mapping[str, str] | None = None, *, query: Q | None = None
    ) -> Iterator[bytes]:
        """Raw bytes, never all of them in memory."""
        yield from self._bytes(self._request(route, params or {}, None, query, self._timeout_s))

    def download_part(
        self, route: Download[B, Q], params: Mapping[str, str] | None = None, *, query: Q | None = None
    ) -> tuple[int, Iterator[bytes]]:
        """Where in the whole the bytes begin, and the bytes: to be read before anything else is asked for."""
        response = self._request(route, params or {}, None, query, self._timeout_s)
        return int(response.headers[OFFSET_HEADER.lower()]), self._bytes(response)

    def _bytes(self, response: Reply) -> Iterator[bytes]:
        with self._reading(response):
            while chunk := self._guard(response.piece):
                yield chunk

    def upload(
        self,
        route: Upload[B, Q, R],
        params: Mapping[str, str],
        content: IO[bytes],
        length: int,
        *,
        query: Q | None = None,
    ) -> R:
        """So many bytes of a file, never all of them in memory; one reply."""
        # On a connection of its own: what is sent once cannot be sent again if a kept one turns out closed.
        self.close()
        verb, target, _, headers = request_of(route, params, None, query)
        connection = self._connect()
        connection.sock.settimeout(self._timeout_s)
        headers |= {"Content-Length": str(length), "Content-Type": "application/octet-stream"}
        response = self._guard(lambda: connection.ask(verb, target, content, headers))
        data = self._guard(response.read)
        if response.status >= 400:
            raise error_of(data, response.status)
        result: R = decoder(route.result).decode(data)
        return result

    def connect(
        self, route: Socket[B, Q], params: Mapping[str, str], *, query: Q | None = None
    ) -> ClientSocket:
        """A WebSocket of a Socket route, on a connection of its own. To be closed by whoever has it."""
        self.close()
        _, target, _, _ = request_of(route, params, None, query)
        connection = self._connect()
        connection.sock.settimeout(self._timeout_s)
        request, accept = websocket.handshake(self._where(), target)
        reply, rest = self._guard(lambda: connection.upgrade(request))
        if reply.status != 101:
            data = self._guard(reply.read)
            self.close()
            raise error_of(data, reply.status)
        if reply.headers.get("sec-websocket-accept") != accept:
            self.close()
            raise Unreachable(f"{self._where()}: it does not speak WebSocket", hint="see: atoll status")
        # The socket's own from here on.
        self._connection = None
        return ClientSocket(connection.sock, rest, self._where())

    @contextmanager
    def _reading(self, response: Reply) -> Iterator[None]:
        try:
            yield
        finally:
            if not response.ended:
                # What is left unread would be taken for the next reply.
                self.close()

    def _request(
        self, route: Route[Any, Any], params: Mapping[str, str], body: Any, query: Any, timeout_s: float
    ) -> Reply:
        verb, target, data, headers = request_of(route, params, body, query)
        if self._connection is not None and not self._connection.kept:
            self.close()
        if self._context is not current(self._tls):
            # Ours has been renewed: the server would refuse the old one when it ends.
            self.close()
        kept = self._connection
        connection = kept or self._connect()
        connection.sock.settimeout(timeout_s)
        try:
            response = self._guard(lambda: connection.ask(verb, target, data, headers))
        except Unreachable:
            # A kept connection may have been closed at the other end meanwhile: that says nothing.
            if kept is not None:
                return self._request(route, params, body, query, timeout_s)
            raise
        if response.status >= 400:
            raise error_of(self._guard(response.read), response.status)
        return response

    def _guard(self, read: Callable[[], T]) -> T:
        """What came; or what went wrong with the connection, which is then closed."""
        try:
            return read()
        except TimeoutError:
            self.close()
            raise TimedOut(f"{self._where()}: no answer in time", hint="is the service overloaded?") from None
        except ssl.SSLError as error:
            # With TLS 1.3 a server's refusal of our certificate arrives with the first read.
            self.close()
            raise _refused(self._where(), error) from None
        except (OSError, BadReply) as error:
            self.close()
            raise Unreachable(f"{self._where()}: the connection broke: {error}") from None

    def _connect(self) -> Connection:
        failures: list[str] = []
        context = current(self._tls)
        for address in self._addresses.in_order():
            try:
                sock = _open(address, context)
            except ssl.SSLError as error:
                raise _refused(show(address), error) from None
            except OSError as error:
                failures.append(f"{show(address)}: {error.strerror or error}")
                continue
            self._addresses.answered(address)
            self._connection, self._context = Connection(sock, show(address)), context
            return self._connection
        raise Unreachable(
            f"cannot connect to {' or '.join(failures)}", hint="is the service up? see: atoll status"
        )

    def _where(self) -> str:
        return show(self._addresses.first)


def _open(address: Address, context: ssl.SSLContext) -> ssl.SSLSocket:
    host, port = address
    # As bytes: the rules of IDNA, which text goes through, are tables that would have to be loaded.
    name = host.encode() if host.isascii() else host
    plain = socket.create_connection((name, port), CONNECT_TIMEOUT_S)  # type: ignore[arg-type]
    try:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return context.wrap_socket(plain, server_hostname=address[0])
    except BaseException:
        plain.close()
        raise


def _refused(where: str, error: ssl.SSLError) -> AtollError:
    reason = (error.reason or str(error)).lower().replace("_", " ")
    return Unauthenticated(
        f"{where}: TLS refused: {reason}",
        hint="the certificate must be of this cloud's CA, not expired and not revoked; see: atoll ca show",
    )
