"""The asynchronous client, for services and for consoles, on aiohttp. Effects: TCP and TLS to the service."""

from __future__ import annotations

import io
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from types import TracebackType
from typing import IO, Any, TypeVar

import aiohttp

from atoll.api.codec import broke_off, decode_line, decoder, error_of, request_of
from atoll.api.reaching import Address, Addresses, Tls, current, show
from atoll.api.route import (
    NOTHING,
    OFFSET_HEADER,
    B,
    Done,
    Download,
    I,
    Part,
    Q,
    R,
    Route,
    Socket,
    Stream,
    Unary,
    Upload,
)
from atoll.errors import Conflict, TimedOut, Unauthenticated, Unreachable

T = TypeVar("T")

WS_CLOSE_S = 2.0
"""How long to wait for a service that does not say goodbye."""


class AsyncClient:
    """Calls routes of one service, which may have several addresses."""

    def __init__(self, addresses: Sequence[Address], tls: Tls, *, timeout_s: float = 60.0) -> None:
        self._addresses = Addresses(addresses)
        self._tls = tls
        self._timeout_s = timeout_s
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> AsyncClient:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5.0, sock_read=self._timeout_s)
        connector = aiohttp.TCPConnector(limit=0)
        self._session = aiohttp.ClientSession(connector=connector, timeout=timeout)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._session is not None
        await self._session.close()

    @property
    def address(self) -> Address:
        """The one that answered last; before that, the first."""
        return self._addresses.first

    async def call(
        self,
        route: Unary[B, Q, R],
        params: Mapping[str, str] | None = None,
        *,
        body: B | None = None,
        query: Q | None = None,
    ) -> R:
        async with self._request(route, params or {}, body, query) as response:
            data = await response.read()
            result: R = decoder(route.result).decode(data if route.result is not NOTHING else b"null")
            return result

    async def stream(
        self,
        route: Stream[B, Q, I, R],
        params: Mapping[str, str] | None = None,
        *,
        body: B | None = None,
        query: Q | None = None,
    ) -> AsyncIterator[I | Done[R]]:
        """Items as they arrive, at the end `Done`."""
        async with self._request(route, params or {}, body, query) as response:
            async for line in _lines(response.content):
                if line.strip():
                    decoded: I | Done[R] = decode_line(route, line)
                    yield decoded
                    if isinstance(decoded, Done):
                        return
            raise broke_off(response.url.authority)

    async def download(
        self, route: Download[B, Q], params: Mapping[str, str] | None = None, *, query: Q | None = None
    ) -> AsyncIterator[bytes]:
        async with self._request(route, params or {}, None, query) as response:
            async for chunk in response.content.iter_chunked(64 << 10):
                yield chunk

    @asynccontextmanager
    async def download_part(
        self, route: Download[B, Q], params: Mapping[str, str] | None = None, *, query: Q | None = None
    ) -> AsyncIterator[Part]:
        """Where in the whole the bytes begin, and the bytes, for the time of the block."""
        async with self._request(route, params or {}, None, query) as response:
            yield Part(int(response.headers[OFFSET_HEADER]), response.content.iter_chunked(64 << 10))

    async def upload(
        self,
        route: Upload[B, Q, R],
        params: Mapping[str, str],
        content: AsyncIterator[bytes] | IO[bytes],
        *,
        query: Q | None = None,
    ) -> R:
        """Bytes as they come, never all of them in memory; one reply."""
        session = self._open_session()
        verb, target, _, headers = request_of(route, params, None, query)
        response = await self._first_that_answers(
            lambda base, tls: session.request(verb, base + target, data=content, headers=headers, ssl=tls)
        )
        with _translated(response.url.authority):
            async with response:
                data = await response.read()
                if response.status >= 400:
                    raise error_of(data, response.status)
                result: R = decoder(route.result).decode(data)
                return result

    @asynccontextmanager
    async def connect(
        self, route: Socket[B, Q], params: Mapping[str, str], *, query: Q | None = None
    ) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """A WebSocket of a Socket route."""
        session = self._open_session()
        _, target, _, _ = request_of(route, params, None, query)
        try:
            socket = await self._first_that_answers(
                lambda base, tls: session.ws_connect(
                    base + target,
                    ssl=tls,
                    heartbeat=route.heartbeat_s,
                    max_msg_size=1 << 20,
                    timeout=aiohttp.ClientWSTimeout(ws_close=WS_CLOSE_S),
                )
            )
        except aiohttp.WSServerHandshakeError as refusal:
            # The WebSocket client does not let us read why: an ordinary request is refused the same way.
            url = refusal.request_info.url
            with _translated(url.authority):
                async with session.get(url, ssl=current(self._tls)) as response:
                    why = error_of(await response.read(), refusal.status)
                    if response.status != refusal.status:
                        # What was in the way has gone since: all that is wrong now is that it is no WebSocket.
                        why = Conflict(f"{url.authority}{url.path}: was refused just now", hint="try again")
                    raise why from None
        async with socket:
            yield socket

    @asynccontextmanager
    async def _request(
        self, route: Route[Any, Any], params: Mapping[str, str], body: Any, query: Any
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        session = self._open_session()
        verb, target, data, headers = request_of(route, params, body, query)
        response = await self._first_that_answers(
            # A stream: aiohttp sends large bytes in one go, and nothing else meanwhile.
            lambda base, tls: session.request(
                verb, base + target, data=io.BytesIO(data) if data else None, headers=headers, ssl=tls
            )
        )
        with _translated(response.url.authority):
            async with response:
                if response.status >= 400:
                    raise error_of(await response.read(), response.status)
                yield response

    async def _first_that_answers(self, ask: Callable[[str, ssl.SSLContext], Awaitable[T]]) -> T:
        failures: list[str] = []
        # A connection is only used again with the context that it was made with: none outlives a renewal.
        tls = current(self._tls)
        for address in self._addresses.in_order():
            where = show(address)
            with _translated(where):
                try:
                    answer = await ask(f"https://{where}", tls)
                except (aiohttp.ClientConnectorCertificateError, aiohttp.ClientConnectorSSLError) as error:
                    raise Unauthenticated(f"{where}: TLS refused: {error}") from None
                except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
                    failures.append(f"{where}: {error}")
                    continue
                self._addresses.answered(address)
                return answer
        raise Unreachable(f"cannot connect to {' or '.join(failures)}", hint="is the service up?")

    def _open_session(self) -> aiohttp.ClientSession:
        assert self._session is not None, "used as a context manager only"
        return self._session


@contextmanager
def _translated(where: str) -> Iterator[None]:
    """What can go wrong with a connection, as errors of ours."""
    try:
        yield
    except aiohttp.WSServerHandshakeError:
        raise
    except TimeoutError:
        raise TimedOut(f"{where}: no answer in time", hint="is the service overloaded?") from None
    except aiohttp.ClientError as error:
        if isinstance(error.__cause__, ssl.SSLError):
            # With TLS 1.3 a server's refusal of our certificate arrives with the first read.
            raise Unauthenticated(f"{where}: TLS refused: {error.__cause__.reason}") from None
        raise Unreachable(f"{where}: the connection broke: {error}") from None


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Whole lines of any length; aiohttp's own are limited, and the state of a node may be long."""
    rest: list[bytes] = []
    async for chunk in content.iter_any():
        first, *others = chunk.split(b"\n")
        rest.append(first)
        for start in others:
            yield b"".join(rest)
            rest = [start]
    if rest:
        yield b"".join(rest)
