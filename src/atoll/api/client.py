"""The light client, for commands: standard library only, because every import is a wait for the user.

Keeps one connection for all calls; goes through all addresses of a service until one answers, and remembers it.
Effects: TCP and TLS to the service.
"""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import IO, Any, TypeVar

from atoll.api import websocket
from atoll.api.client_socket import ClientSocket
from atoll.api.codec import broke_off, decode_line, decoder, error_of, request_of
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
UPLOAD_BLOCK = 256 << 10


class Client:
    """Calls routes of one service, which may have several addresses."""

    def __init__(self, addresses: Sequence[Address], tls: Tls, *, timeout_s: float = 60.0) -> None:
        self._addresses = Addresses(addresses)
        self._tls = tls
        self._timeout_s = timeout_s
        self._connection: http.client.HTTPSConnection | None = None
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
        return int(response.headers[OFFSET_HEADER]), self._bytes(response)

    def _bytes(self, response: http.client.HTTPResponse) -> Iterator[bytes]:
        with self._reading(response):
            while chunk := self._guard(lambda: response.read(64 << 10)):
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
        connection.blocksize = UPLOAD_BLOCK
        headers |= {"Content-Length": str(length), "Content-Type": "application/octet-stream"}
        response = self._guard(lambda: _exchange(connection, verb, target, content, headers))
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
        status, headers, rest = self._guard(lambda: _upgrade(connection.sock, request))
        if status != 101:
            size = min(int(headers.get("content-length", "0") or 0), websocket.MOST_MESSAGE)
            rest += self._guard(lambda: _exactly(connection.sock, size - len(rest)))
            self.close()
            raise error_of(rest, status)
        if headers.get("sec-websocket-accept") != accept:
            self.close()
            raise Unreachable(f"{self._where()}: it does not speak WebSocket", hint="see: atoll status")
        # The socket's own from here on.
        self._connection = None
        return ClientSocket(connection.sock, rest, self._where())

    @contextmanager
    def _reading(self, response: http.client.HTTPResponse) -> Iterator[None]:
        try:
            yield
        finally:
            if not response.isclosed():
                # What is left unread would be taken for the next reply.
                self.close()

    def _request(
        self, route: Route[Any, Any], params: Mapping[str, str], body: Any, query: Any, timeout_s: float
    ) -> http.client.HTTPResponse:
        verb, target, data, headers = request_of(route, params, body, query)
        if self._connection is not None and self._context is not current(self._tls):
            # Ours has been renewed: the server would refuse the old one when it ends.
            self.close()
        # Without a socket when the last reply was followed by a close.
        kept = self._connection if self._connection and self._connection.sock else None
        connection = kept or self._connect()
        connection.sock.settimeout(timeout_s)
        try:
            response = self._guard(lambda: _exchange(connection, verb, target, data, headers))
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
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise Unreachable(f"{self._where()}: the connection broke: {error}") from None

    def _connect(self) -> http.client.HTTPSConnection:
        failures: list[str] = []
        context = current(self._tls)
        for address in self._addresses.in_order():
            host, port = address
            connection = http.client.HTTPSConnection(host, port, context=context, timeout=CONNECT_TIMEOUT_S)
            try:
                connection.connect()
            except ssl.SSLError as error:
                raise _refused(show(address), error) from None
            except OSError as error:
                failures.append(f"{show(address)}: {error.strerror or error}")
                continue
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._addresses.answered(address)
            self._connection, self._context = connection, context
            return connection
        raise Unreachable(
            f"cannot connect to {' or '.join(failures)}", hint="is the service up? see: atoll status"
        )

    def _where(self) -> str:
        return show(self._addresses.first)


def _upgrade(sock: ssl.SSLSocket, request: bytes) -> tuple[int, dict[str, str], bytes]:
    """The status and headers of the answer, and what came after them."""
    sock.sendall(request)
    come = b""
    while b"\r\n\r\n" not in come:
        piece = sock.recv(websocket.MOST_HEAD)
        come += piece
        if not piece or len(come) > 2 * websocket.MOST_HEAD:
            raise ConnectionResetError("it closed the connection")
    head, _, rest = come.partition(b"\r\n\r\n")
    return *websocket.parse_head(head), rest


def _exactly(sock: ssl.SSLSocket, size: int) -> bytes:
    come = b""
    while len(come) < size and (piece := sock.recv(size - len(come))):
        come += piece
    return come


def _exchange(
    connection: http.client.HTTPSConnection,
    verb: str,
    target: str,
    data: bytes | IO[bytes],
    headers: dict[str, str],
) -> http.client.HTTPResponse:
    try:
        connection.request(verb, target, data or None, headers)
    except (BrokenPipeError, ConnectionResetError):
        # A server that refuses a large body may close before it has all of it; its answer says why.
        with suppress(OSError, http.client.HTTPException):
            return connection.getresponse()
        raise
    return connection.getresponse()


def _refused(where: str, error: ssl.SSLError) -> AtollError:
    reason = (error.reason or str(error)).lower().replace("_", " ")
    return Unauthenticated(
        f"{where}: TLS refused: {reason}",
        hint="the certificate must be of this cloud's CA, not expired and not revoked; see: atoll ca show",
    )
