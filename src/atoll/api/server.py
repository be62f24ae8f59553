"""The server side of routes, on aiohttp: certificate, authorisation, decoding, problems, streams.

Effects: answers HTTP requests; what a route does is its handler's business.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket as socket_module
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from aiohttp import ClientConnectionResetError, HttpVersion11, WSCloseCode, WSMsgType, hdrs, web
from msgspec import Struct

from atoll.api.codec import decode_body, decode_query, encode, problem_of
from atoll.api.origin import check_origin
from atoll.api.route import (
    NOTHING,
    OFFSET_HEADER,
    Bound,
    Call,
    Content,
    Done,
    Download,
    Route,
    Socket,
    Stream,
    Unary,
    Upload,
)
from atoll.errors import AtollError, Malformed, NotFound, TooLarge, TooMany
from atoll.model.identity import Identity

log = logging.getLogger(__name__)

HEARTBEAT_S = 5.0
BODY_S = 30.0
"""Within which a JSON body comes, whole."""
CHUNK_S = 60.0
"""Within which an upload goes on."""
SMALL_BODY = 64 << 10
LARGE_AT_ONCE = 4
"""Bodies above the small that one caller can have us keep at a time. More of them wait."""
LAST_WORDS_S = 2.0
CHUNK = 256 << 10
KEEP_ALIVE = (
    (socket_module.SOL_SOCKET, socket_module.SO_KEEPALIVE, 1),
    (socket_module.IPPROTO_TCP, socket_module.TCP_KEEPIDLE, 20),
    (socket_module.IPPROTO_TCP, socket_module.TCP_KEEPINTVL, 5),
    (socket_module.IPPROTO_TCP, socket_module.TCP_KEEPCNT, 4),
)
JSON = {"Content-Type": "application/json"}
LINES = {"Content-Type": "application/jsonl", "Cache-Control": "no-store"}
PROBLEM = {"Content-Type": "application/problem+json"}

Ended = asyncio.Future[AtollError]
"""Done when a call that is open may not go on: why."""

Endpoint = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Gate(Protocol):
    """Who is calling, and may they call this route?"""

    async def admit(self, route: Route[Any, Any], certificate: bytes | None) -> Identity:
        """The caller, or Unauthenticated, Denied or TooMany."""
        ...

    def open(
        self, route: Route[Any, Any], certificate: bytes | None, call: Call[Any, Any]
    ) -> AbstractContextManager[Ended]:
        """A call that goes on for a while, for the time of the block; or TooMany."""
        ...


class _Entrance:
    """What every call passes: the gate, and for large bodies a turn, of which each caller has a few at a time."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self._turns: dict[str, asyncio.Semaphore] = {}
        self._waiting: dict[str, int] = {}

    @contextlib.asynccontextmanager
    async def turn(self, user: str) -> AsyncIterator[None]:
        turns = self._turns.setdefault(user, asyncio.Semaphore(LARGE_AT_ONCE))
        self._waiting[user] = self._waiting.get(user, 0) + 1
        try:
            async with turns:
                yield
        finally:
            self._waiting[user] -= 1
            if not self._waiting[user]:
                del self._waiting[user], self._turns[user]


def application(routes: Sequence[Bound], gate: Gate) -> web.Application:
    """An aiohttp application that serves the routes; errors too have the shape of the contract."""
    app, entrance = web.Application(), _Entrance(gate)
    verbs: dict[str, set[str]] = {}
    for bound in routes:
        verbs.setdefault(bound.route.path, set()).add(bound.route.verb)
        endpoint = _endpoint(bound, entrance)
        app.router.add_route(bound.route.verb, bound.route.path, endpoint, expect_handler=_expect_nothing)
    for path, known in verbs.items():
        app.router.add_route("*", path, _wrong_verb(known), expect_handler=_expect_nothing)
    app.router.add_route("*", "/{tail:(?s:.*)}", _no_such_path, expect_handler=_expect_nothing)
    return app


def _endpoint(bound: Bound, entrance: _Entrance) -> Endpoint:
    kinds: dict[type, Callable[[Bound, _Entrance], Endpoint]] = {
        Unary: _unary,
        Stream: _stream,
        Download: _download,
        Upload: _upload,
        Socket: _socket,
    }
    answer = kinds[type(bound.route)](bound, entrance)

    async def endpoint(request: web.Request) -> web.StreamResponse:
        try:
            check_origin(request.method, request.headers)
            return await answer(request)
        except Exception as error:
            return problem(_known(bound.route, error))

    return endpoint


async def _call(route: Route[Any, Any], entrance: _Entrance, request: web.Request) -> Call[Any, Any]:
    identity = await entrance.gate.admit(route, _certificate(request))
    takes_json = not isinstance(route, Upload)
    data = (
        await _read(route, request, entrance.turn(identity.user))
        if request.body_exists and takes_json
        else b""
    )
    return Call(
        identity=identity,
        params=request.match_info,
        body=decode_body(route.body, data),
        query=decode_query(route.query, request.query),
        source=request.remote or "",
    )


def _certificate(request: web.Request) -> bytes | None:
    transport = request.transport
    tls = transport.get_extra_info("ssl_object") if transport is not None else None
    return tls.getpeercert(binary_form=True) if tls is not None else None


@contextlib.contextmanager
def _open(route: Route[Any, Any], gate: Gate, request: web.Request, call: Call[Any, Any]) -> Iterator[Ended]:
    """The call while it is open. One that may not go on has a moment for its last words, then its connection goes."""
    with gate.open(route, _certificate(request), call) as ended, contextlib.ExitStack() as stack:

        def hurry(_: Ended) -> None:
            if request.transport is not None:
                timer = ended.get_loop().call_later(LAST_WORDS_S, request.transport.abort)
                stack.callback(timer.cancel)

        ended.add_done_callback(hurry)
        stack.callback(ended.remove_done_callback, hurry)
        yield ended


async def _read(
    route: Route[Any, Any], request: web.Request, turn: contextlib.AbstractAsyncContextManager[None]
) -> bytes:
    """The body of a caller that is known and may call; a large one in its turn."""
    if route.body is NOTHING:
        raise Malformed("request body: this route takes none", hint="send the request without a body")
    if request.content_type != "application/json":
        raise Malformed(
            f"Content-Type {request.content_type!r}: must be application/json",
            hint="send one whole JSON object",
        )
    # An honest client is told before it has sent what would not be taken anyway.
    if (request.content_length or 0) > route.max_body:
        raise _too_large(route, request)
    try:
        if request.content_length is not None and request.content_length <= SMALL_BODY:
            return await _whole_body(route, request)
        async with turn:
            return await _whole_body(route, request)
    except (web.RequestPayloadError, ConnectionError) as error:
        raise Malformed(f"request body: {error}", hint="send one whole JSON object") from None


async def _whole_body(route: Route[Any, Any], request: web.Request) -> bytes:
    await _continue(request)
    data = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            async for chunk in request.content.iter_any():
                data += chunk
                if len(data) > route.max_body:
                    raise _too_large(route, request)
    except TimeoutError:
        raise Malformed(f"request body: not whole within {BODY_S:g} s", hint="send it faster") from None
    return bytes(data)


async def _expect_nothing(request: web.Request) -> None:
    """Nobody is told to send a body before it is known who they are: `_continue` does so then."""


async def _continue(request: web.Request) -> None:
    if request.version >= HttpVersion11 and request.headers.get(hdrs.EXPECT, "").lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        # The answer itself has not begun.
        request.writer.output_size = 0


def _unary(bound: Bound, entrance: _Entrance) -> Endpoint:
    async def answer(request: web.Request) -> web.StreamResponse:
        result = await bound.handler(await _call(bound.route, entrance, request))
        if result is None:
            return web.Response(status=204)
        return web.Response(body=encode(result), headers=JSON)

    return answer


def _stream(bound: Bound, entrance: _Entrance) -> Endpoint:
    async def answer(request: web.Request) -> web.StreamResponse:
        call = await _call(bound.route, entrance, request)
        response = web.StreamResponse(headers=LINES)
        with _open(bound.route, entrance.gate, request, call) as ended:
            lines = bound.handler(call)
            # A client that goes away ends the lines, and with them what feeds them.
            async with (
                contextlib.aclosing(lines),
                contextlib.aclosing(_until_ended(lines, ended, HEARTBEAT_S)) as beats,
                contextlib.aclosing(_until_error(bound.route, beats)) as rest,
            ):
                if _asks_for_result(bound.route, request):
                    return await _result(request, beats)
                # The first line is awaited before the status goes out: a refusal is a status, not a line.
                first = await anext(beats, None)
                with contextlib.suppress(ClientConnectionResetError):
                    await response.prepare(request)
                    await response.write(_line(first))
                    async for line in rest:
                        await response.write(line)
                    await response.write_eof()
        return response

    return answer


def _asks_for_result(route: Route[Any, Any], request: web.Request) -> bool:
    """Whether the client takes JSON by name and lines not, as clients that are generated from the document."""
    assert isinstance(route, Stream)
    accepted = request.headers.get(hdrs.ACCEPT, "").lower().split(",")
    kinds = {one.partition(";")[0].strip() for one in accepted}
    takes_json, takes_lines = JSON["Content-Type"] in kinds, LINES["Content-Type"] in kinds
    return takes_json and not takes_lines and route.result is not NOTHING


async def _result(request: web.Request, beats: AsyncIterator[Any]) -> web.Response:
    """The result alone, once it is there."""
    result = None
    async for line in beats:
        if isinstance(line, Done):
            result = line.result
        if request.transport is None:
            break
    return web.Response(body=encode(result), headers=JSON)


async def _until_error(route: Route[Any, Any], beats: AsyncIterator[Any]) -> AsyncGenerator[bytes, None]:
    """The lines as bytes. The status is out: an error is the last of them."""
    try:
        async for line in beats:
            yield _line(line)
    except Exception as error:
        yield encode({"error": problem_of(_known(route, error))}) + b"\n"


async def _until_ended(
    items: AsyncIterator[Any], ended: Ended, heartbeat_s: float | None = None
) -> AsyncGenerator[Any, None]:
    """The items, until the call may not go on: that is an error.

    And None when there was none for a while: a write finds out if the client is there.
    """
    while True:
        pending = asyncio.ensure_future(_next(items))
        try:
            while not pending.done():
                done, _ = await asyncio.wait(
                    {pending, ended}, timeout=heartbeat_s, return_when=asyncio.FIRST_COMPLETED
                )
                if ended in done:
                    raise ended.result()
                if not done:
                    yield None
        except BaseException:
            pending.cancel()
            await asyncio.gather(pending, return_exceptions=True)
            raise
        try:
            item = pending.result()
        except StopAsyncIteration:
            return
        yield item


async def _next(items: AsyncIterator[Any]) -> Any:
    return await anext(items)


def _line(line: Any) -> bytes:
    if line is None:
        return b"\n"
    return encode({"result": line.result} if isinstance(line, Done) else {"item": line}) + b"\n"


def _download(bound: Bound, entrance: _Entrance) -> Endpoint:
    async def answer(request: web.Request) -> web.StreamResponse:
        call = await _call(bound.route, entrance, request)
        with _open(bound.route, entrance.gate, request, call) as ended:
            chunks = bound.handler(call)
            assert isinstance(bound.route, Download)
            headers = {"Content-Type": bound.route.content_type}
            if bound.route.is_part:
                part = await chunks
                chunks = part.chunks
                headers[OFFSET_HEADER] = str(part.offset)
            response = web.StreamResponse(headers=headers)
            async with contextlib.aclosing(chunks), contextlib.aclosing(_until_ended(chunks, ended)) as rest:
                first = await anext(rest, b"")
                try:
                    await response.prepare(request)
                    await response.write(first)
                    async for chunk in rest:
                        await response.write(chunk)
                    await response.write_eof()
                except ClientConnectionResetError:
                    pass
                except Exception as error:
                    _known(bound.route, error)
                    # The status is out, and bytes have no last line: only a broken connection can tell.
                    if request.transport is not None:
                        request.transport.abort()
        return response

    return answer


def _upload(bound: Bound, entrance: _Entrance) -> Endpoint:
    async def answer(request: web.Request) -> web.StreamResponse:
        call = await _call(bound.route, entrance, request)
        if (request.content_length or 0) > bound.route.max_body:
            raise _too_large(bound.route, request)
        with _open(bound.route, entrance.gate, request, call) as ended:
            async with contextlib.aclosing(_until_ended(_chunks(bound.route, request), ended)) as chunks:
                result = await bound.handler(call, Content(chunks, request.content_length))
        return web.Response(body=encode(result), headers=JSON)

    return answer


async def _chunks(route: Route[Any, Any], request: web.Request) -> AsyncIterator[bytes]:
    await _continue(request)
    come = 0
    try:
        while True:
            async with asyncio.timeout(CHUNK_S):
                chunk = await request.content.read(CHUNK)
            if not chunk:
                return
            come += len(chunk)
            if come > route.max_body:
                raise _too_large(route, request)
            yield chunk
    except TimeoutError:
        raise Malformed(f"request body: nothing came for {CHUNK_S:g} s", hint="send it again") from None
    except (web.RequestPayloadError, ConnectionError) as error:
        raise Malformed(f"request body: {error}", hint="send it again, whole") from None


class _WebSocket:
    """A ByteSocket on an aiohttp WebSocket."""

    def __init__(self, socket: web.WebSocketResponse) -> None:
        self._socket = socket

    async def receive(self) -> bytes:
        message = await self.message()
        return message if isinstance(message, bytes) else message.encode()

    async def message(self) -> bytes | str:
        while True:
            message = await self._socket.receive()
            if message.type not in (WSMsgType.BINARY, WSMsgType.TEXT):
                return b""
            if message.data:
                data: bytes | str = message.data
                return data

    async def send(self, data: bytes) -> None:
        await self._socket.send_bytes(data)

    async def tell(self, message: Struct) -> None:
        await self._socket.send_str(encode(message).decode())


def _socket(bound: Bound, entrance: _Entrance) -> Endpoint:
    async def answer(request: web.Request) -> web.StreamResponse:
        call = await _call(bound.route, entrance, request)
        with _open(bound.route, entrance.gate, request, call) as ended:
            talk = await bound.handler(call)
            assert isinstance(bound.route, Socket)
            # Messages of this very size are refused already.
            refused_size = bound.route.most_message + 1
            socket = web.WebSocketResponse(heartbeat=bound.route.heartbeat_s, max_msg_size=refused_size)
            if bound.route.heartbeat_s is None:
                _keep_alive(request)
            if not _is_handshake(socket, request):
                raise Malformed(
                    f"{bound.route.path}: this route speaks WebSocket",
                    hint="send an Upgrade: websocket request",
                )
            try:
                await socket.prepare(request)
            except ConnectionError:
                # Whoever asked has gone. A socket that has not begun cannot be ended either.
                return web.Response()
            try:
                await _unless_ended(talk(_WebSocket(socket)), ended)
            except Exception as error:
                code = WSCloseCode.POLICY_VIOLATION if ended.done() else WSCloseCode.INTERNAL_ERROR
                brief = _known(bound.route, error).brief
                await socket.close(code=code, message=brief.encode()[:120])
            finally:
                await socket.close()
        return socket

    return answer


def _keep_alive(request: web.Request) -> None:
    """Have the kernel find out when the other side is no more, however slowly it reads."""
    sock = request.transport.get_extra_info("socket") if request.transport is not None else None
    if sock is not None:
        for level, option, value in KEEP_ALIVE:
            sock.setsockopt(level, option, value)


def _is_handshake(socket: web.WebSocketResponse, request: web.Request) -> bool:
    try:
        return bool(socket.can_prepare(request))
    except ValueError:  # a key that is not even ASCII
        return False


async def _unless_ended(work: Awaitable[None], ended: Ended) -> None:
    """Work, to its end or until the call may not go on: that is an error."""
    task = asyncio.ensure_future(work)
    either: set[asyncio.Future[Any]] = {task, ended}
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    if ended.done():
        raise ended.result()
    task.result()


def _wrong_verb(known: set[str]) -> Endpoint:
    allowed = ", ".join(sorted(known))

    async def endpoint(request: web.Request) -> web.StreamResponse:
        error = Malformed(
            f"{request.method} {request.path}: no such method here", hint=f"this path takes {allowed}"
        )
        return web.Response(status=405, body=encode(problem_of(error)), headers=PROBLEM | {"Allow": allowed})

    return endpoint


async def _no_such_path(request: web.Request) -> web.StreamResponse:
    return problem(NotFound(f"{request.path[:80]}: no such path", hint="GET /openapi.json lists them"))


def problem(error: AtollError) -> web.Response:
    """An error as it looks on the wire."""
    headers = PROBLEM
    if isinstance(error, TooMany):
        headers = PROBLEM | {"Retry-After": str(error.details["retry_after_s"])}
    return web.Response(status=error.http_status, body=encode(problem_of(error)), headers=headers)


def _too_large(route: Route[Any, Any], request: web.Request) -> TooLarge:
    return TooLarge(
        f"request body {request.content_length or 'of unknown size'} bytes: "
        f"must be at most {route.max_body} bytes",
        hint="user data may have 1 MiB; keep more in an object store and fetch it from the guest",
        details={"field": "request body", "limit": route.max_body},
    )


def _known(route: Route[Any, Any], error: Exception) -> AtollError:
    """The error as a caller may see it. One that nobody foresaw is for our log."""
    if isinstance(error, AtollError):
        return error
    log.error("%s failed", route.name, exc_info=error)
    return AtollError(
        f"{route.name}: unforeseen failure in the service", hint="its log has the details; please report this"
    )
