"""A small service with a route of every kind, on loopback with mTLS, and clients of both kinds."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from typing import Annotated, Any

import aiohttp
import pytest
from aiohttp import web
from msgspec import Meta, Struct

from atoll.api import server
from atoll.api.access import Access
from atoll.api.async_client import AsyncClient
from atoll.api.client import Client
from atoll.api.route import (
    NOTHING,
    Bound,
    ByteSocket,
    Call,
    Done,
    Download,
    Route,
    Socket,
    Stream,
    Unary,
    bind,
    bind_download,
    bind_socket,
    bind_stream,
)
from atoll.api.server import Ended, application
from atoll.errors import Conflict, NotFound
from atoll.identity.access import Operators, check_route
from atoll.identity.peer import PeerReader
from atoll.model.identity import Identity

MAX_BODY = 100_000


class Note(Struct, frozen=True, forbid_unknown_fields=True):
    text: str
    times: Annotated[int, Meta(ge=1, le=9)] = 1


class Count(Struct, frozen=True, forbid_unknown_fields=True):
    to: int
    pause_s: float = 0
    fail_at: int = 0
    how: str = "conflict"


class Tick(Struct, frozen=True):
    number: int
    padding: str = ""


def _route(
    kind: Any, name: str, verb: str, path: str, access: Access = Access.AUTHENTICATED, **more: Any
) -> Any:
    more = {"body": NOTHING, "query": NOTHING, **more}
    return kind(name, verb, path, summary=name, access=access, **more)


class Routes:
    PING = _route(Unary, "ping.show", "GET", "/ping", Access.PUBLIC, result=str)
    WHO = _route(Unary, "who.show", "GET", "/who", result=str)
    ECHO = _route(Unary, "note.echo", "POST", "/echo", body=Note, result=Note, max_body=MAX_BODY)
    REMOVE = _route(Unary, "note.remove", "DELETE", "/notes/{note}", result=NOTHING)
    REIGN = _route(Unary, "node.reign", "POST", "/reign", Access.OPERATOR, result=str)
    BREAK = _route(Unary, "node.break", "GET", "/break", result=str)
    COUNT = _route(Stream, "count.list", "GET", "/count", query=Count, item=Tick, result=int)
    BYTES = _route(Download, "bytes.show", "GET", "/bytes/{size}")
    CHAT = _route(Socket, "chat.join", "GET", "/chat/{room}")


class Gate:
    """Who the certificate says; `oper` operates the service."""

    def __init__(self, peers: PeerReader) -> None:
        self._peers = peers
        self.opened: list[Ended] = []
        """Calls that were opened. A test ends one with an error; one that is over is cancelled."""

    async def admit(self, route: Route[Any, Any], certificate: bytes | None) -> Identity:
        if route.access is Access.PUBLIC:
            return Identity("anyone")
        identity = self._peers.identity(certificate, datetime.now(UTC))
        check_route(route.access, route.name, identity, Operators(users=("oper",)))
        return identity

    @contextmanager
    def open(self, *_: object) -> Iterator[Ended]:
        ended: Ended = asyncio.get_running_loop().create_future()
        self.opened.append(ended)
        try:
            yield ended
        finally:
            ended.cancel()


class Service:
    """The handlers, and what a test wants to know of them."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.heard: list[str] = []
        self.failure: Exception = RuntimeError("secret detail")
        self.may_begin = asyncio.Event()
        """What answers in pieces waits for it."""
        self.may_begin.set()

    def bound(self) -> list[Bound]:
        return [
            bind(Routes.PING, self.ping),
            bind(Routes.WHO, self.who),
            bind(Routes.ECHO, self.echo),
            bind(Routes.REMOVE, self.remove),
            bind(Routes.REIGN, self.who),
            bind(Routes.BREAK, self.broken),
            bind_stream(Routes.COUNT, self.count),
            bind_download(Routes.BYTES, self.bytes),
            bind_socket(Routes.CHAT, self.chat),
        ]

    async def ping(self, call: Call[None, None]) -> str:
        return "pong"

    async def who(self, call: Call[None, None]) -> str:
        return call.identity.user

    async def echo(self, call: Call[Note, None]) -> Note:
        self.heard.append(call.body.text)
        return call.body

    async def remove(self, call: Call[None, None]) -> None:
        self.heard.append(call.params["note"])

    async def broken(self, call: Call[None, None]) -> str:
        raise self.failure

    async def count(self, call: Call[None, Count]) -> AsyncIterator[Tick | Done[int]]:
        query = call.query
        try:
            for number in range(1, query.to + 1):
                await asyncio.sleep(query.pause_s)
                if number == query.fail_at:
                    raise Conflict("counting: no") if query.how == "conflict" else self.failure
                yield Tick(number, "x" * int(query.how[1:]) if query.how.startswith("x") else "")
            yield Done(query.to)
        finally:
            self.ended.set()

    async def bytes(self, call: Call[None, None]) -> AsyncIterator[bytes]:
        size = int(call.params["size"])
        if size == 0:
            raise NotFound("bytes 0: there are none")
        try:
            await self.may_begin.wait()
            for start in range(0, size, 1000):
                await asyncio.sleep(0)
                yield b"x" * min(1000, size - start)
            if size == 13_000:
                raise self.failure
        finally:
            self.ended.set()

    async def chat(self, call: Call[None, None]) -> Callable[[ByteSocket], Awaitable[None]]:
        if call.params["room"] == "closed":
            raise Conflict("room closed: nobody is let in", hint="try another")
        await self.may_begin.wait()

        async def talk(far: ByteSocket) -> None:
            while data := await far.receive():
                if data == b"break":
                    raise self.failure
                await far.send(data.upper())
            self.ended.set()

        return talk


class Wire:
    """A running service: where it is, and who calls it."""

    def __init__(self, pki: Any, service: Service) -> None:
        self.pki = pki
        self.service = service
        self.port = 0
        self._runner: web.AppRunner | None = None

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self.port

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    async def start(self) -> None:
        self.gate = Gate(self.pki.peers())
        app = application(self.service.bound(), self.gate)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(
            self._runner, "127.0.0.1", self.port, ssl_context=self.pki.server(), reuse_address=True
        )
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    @asynccontextmanager
    async def raw(self, user: str = "ann") -> AsyncIterator[aiohttp.ClientSession]:
        """HTTP as it is, for what our clients would not do."""
        connector = aiohttp.TCPConnector(ssl=self.pki.user(user))
        async with aiohttp.ClientSession(self.url, connector=connector) as session:
            yield session

    async def bare(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(*self.address, ssl=self.pki.user("ann"))


class Caller:
    """Both clients behind one face, so that one test says what both do."""

    def __init__(self, kind: str, addresses: list[tuple[str, int]], context: ssl.SSLContext) -> None:
        self.kind = kind
        self.sync = Client(addresses, context, timeout_s=5)
        self.asynchronous = AsyncClient(addresses, context, timeout_s=5)

    async def __aenter__(self) -> Caller:
        await self.asynchronous.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await asyncio.to_thread(self.sync.close)
        await self.asynchronous.__aexit__(None, None, None)

    @property
    def address(self) -> tuple[str, int]:
        return (self.sync if self.kind == "sync" else self.asynchronous).address

    async def call(self, route: Any, params: Any = None, **more: Any) -> Any:
        if self.kind == "sync":
            return await asyncio.to_thread(self.sync.call, route, params, **more)
        return await self.asynchronous.call(route, params, **more)

    async def stream(self, route: Any, params: Any = None, **more: Any) -> list[Any]:
        if self.kind == "sync":
            return await asyncio.to_thread(lambda: list(self.sync.stream(route, params, **more)))
        return [line async for line in self.asynchronous.stream(route, params, **more)]

    async def download(self, route: Any, params: Any) -> bytes:
        if self.kind == "sync":
            return await asyncio.to_thread(lambda: b"".join(self.sync.download(route, params)))
        return b"".join([chunk async for chunk in self.asynchronous.download(route, params)])


@pytest.fixture
def routes() -> type[Routes]:
    return Routes


@pytest.fixture
def types() -> Any:
    class Types:
        note, count, tick, max_body = Note, Count, Tick, MAX_BODY

    return Types


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
async def wire(pki: Any, service: Service) -> AsyncIterator[Wire]:
    running = Wire(pki, service)
    await running.start()
    yield running
    await running.stop()


@pytest.fixture(params=["sync", "async"])
def caller_of(request: pytest.FixtureRequest) -> Callable[..., Caller]:
    return lambda addresses, context: Caller(request.param, addresses, context)


@pytest.fixture
async def caller(caller_of: Callable[..., Caller], wire: Wire, pki: Any) -> AsyncIterator[Caller]:
    async with caller_of([wire.address], pki.user("ann")) as one:
        yield one


@pytest.fixture
def quick_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HEARTBEAT_S", 0.03)


@pytest.fixture
def dead_address() -> tuple[str, int]:
    """Where nobody listens."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()
