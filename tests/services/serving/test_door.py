"""A door on loopback with mTLS: who is let in, for how long, and what a stranger can have the service do."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime

import pytest
from aiohttp import web

from atoll.api.access import Access
from atoll.api.route import NOTHING, Call, Download, Unary, bind, bind_download
from atoll.api.server import application
from atoll.errors import Unauthenticated
from atoll.identity.access import Operators
from atoll.serving.door.door import Door, Listener
from atoll.serving.door.shares import Limits
from atoll.serving.gate import CertificateGate
from atoll.system import listening

LIMITS = Limits(
    strangers=6,
    strangers_per_source=4,
    known=4,
    known_per_source=3,
    new_per_source_per_s=1000,
    new_per_s=1000,
    handshake_s=1.0,
    request_s=0.3,
    stranger_s=0.8,
    idle_s=5,
    stalled_s=0.3,
)
PING = Unary(
    "ping.show", "GET", "/ping", summary="x", access=Access.PUBLIC, body=NOTHING, query=NOTHING, result=str
)
ECHO = Unary(
    *("text.echo", "POST", "/echo"),
    summary="x",
    access=Access.AUTHENTICATED,
    body=dict[str, str],
    query=NOTHING,
    result=dict[str, str],
)
MUCH = Download(
    "text.much", "GET", "/much", summary="x", access=Access.AUTHENTICATED, body=NOTHING, query=NOTHING
)
GET_PING = b"GET /ping HTTP/1.1\r\nHost: m\r\n\r\n"


async def ping(call: Call[None, None]) -> str:
    return "pong"


async def echo(call: Call[dict[str, str], None]) -> dict[str, str]:
    return call.body


async def much(call: Call[None, None]) -> AsyncIterator[bytes]:
    while True:
        yield bytes(65536)


class Service:
    """A service with one door."""

    def __init__(self, pki) -> None:
        self.pki = pki
        peers = pki.peers()

        def is_known(certificate: bytes) -> bool:
            try:
                peers.identity(certificate, datetime.now(UTC))
            except Unauthenticated:
                return False
            return True

        self.door = Door("test", pki.server(), LIMITS, is_known)
        routes = bind(PING, ping), bind(ECHO, echo), bind_download(MUCH, much)
        served = application(routes, CertificateGate(peers, Operators))
        self._runner = web.AppRunner(served, access_log=None, shutdown_timeout=0.1)
        self.sources: list[str] = []
        """Who comes next; then everybody is one."""

    async def start(self) -> None:
        await self._runner.setup()
        assert self._runner.server is not None
        self.door.begin(self._runner.server)
        self._listener = Listener(listening.at("127.0.0.1", 0, 64), self._take)
        self.port = self._listener.port

    def _take(self, accepted: socket.socket, ip: str) -> None:
        self.door.take(accepted, self.sources.pop(0) if self.sources else ip)

    async def stop(self) -> None:
        self._listener.close()
        await self.door.close()
        await self._runner.cleanup()

    @asynccontextmanager
    async def connected(
        self, user: str | None = None, *, tls: bool = True
    ) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        context = (self.pki.user(user) if user else self.pki.nobody()) if tls else None
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=context)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()

    async def is_gone(self) -> None:
        """All connections have left, of strangers and of others."""
        async with asyncio.timeout(5):
            while self.door.open != (0, 0):
                await asyncio.sleep(0.01)


@pytest.fixture
async def service(pki) -> AsyncIterator[Service]:
    running = Service(pki)
    await running.start()
    yield running
    await running.stop()


async def answer(streams: tuple[asyncio.StreamReader, asyncio.StreamWriter], request: bytes) -> bytes:
    reader, writer = streams
    writer.write(request)
    async with asyncio.timeout(5):
        return await reader.readuntil(b"\r\n")


async def ended(reader: asyncio.StreamReader, within_s: float = 2) -> bytes:
    """What came until the other end hung up."""
    come = b""
    async with asyncio.timeout(within_s):
        with suppress(ConnectionError, ssl.SSLError):
            while piece := await reader.read(65536):
                come += piece
    return come


async def test_a_stranger_is_answered_and_leaves_nothing(service) -> None:
    async with service.connected() as streams:
        assert await answer(streams, GET_PING) == b"HTTP/1.1 200 OK\r\n"
        assert service.door.open == (1, 0)
    await service.is_gone()


async def test_who_has_a_certificate_is_counted_apart(service) -> None:
    async with service.connected("ann") as streams:
        assert await answer(streams, GET_PING) == b"HTTP/1.1 200 OK\r\n"
        assert service.door.open == (0, 1)
    await service.is_gone()


async def test_one_source_has_so_many_connections_and_others_still_come_in(service) -> None:
    plain = [socket.socket() for _ in range(6)]
    for one in plain:
        one.setblocking(False)
        one.connect_ex(("127.0.0.1", service.port))
    async with asyncio.timeout(2):
        while service.door.counters.refused < 2:
            await asyncio.sleep(0.01)
    assert service.door.open == (4, 0)
    service.sources = ["another"]
    async with service.connected() as streams:
        assert await answer(streams, GET_PING) == b"HTTP/1.1 200 OK\r\n"
    for one in plain:
        one.close()
    await service.is_gone()


async def test_where_all_is_full_of_strangers_the_oldest_makes_room(service) -> None:
    service.sources = [f"source {number}" for number in range(7)]
    opened = [await asyncio.open_connection("127.0.0.1", service.port) for _ in range(6)]
    async with service.connected("ann") as streams:
        assert await answer(streams, GET_PING) == b"HTTP/1.1 200 OK\r\n"
    assert service.door.counters.replaced == 1
    assert await ended(opened[0][0]) == b""
    for _, writer in opened:
        writer.transport.abort()
    await service.is_gone()


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/1.1\r\n\r\n"])
async def test_a_handshake_that_does_not_come_is_not_waited_for(service, sent: bytes) -> None:
    async with service.connected(tls=False) as (reader, writer):
        writer.write(sent)
        await ended(reader)
    await service.is_gone()
    assert service.door.counters.failed_handshakes == 1


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: m\r\nX: "])
async def test_headers_that_do_not_come_are_not_waited_for(service, sent: bytes) -> None:
    async with service.connected() as (reader, writer):
        writer.write(sent)
        assert await ended(reader) == b""
    await service.is_gone()


async def test_a_stranger_that_asks_again_and_again_is_hung_up_on_all_the_same(service) -> None:
    async with service.connected() as (reader, writer), asyncio.timeout(2):
        with suppress(ConnectionError):
            while not reader.at_eof():
                writer.write(GET_PING)
                await writer.drain()
                await reader.read(4096)
                await asyncio.sleep(0.05)
    await service.is_gone()


async def test_who_is_known_may_be_idle_for_longer(service) -> None:
    async with service.connected("ann") as streams:
        await asyncio.sleep(1.0)
        assert await answer(streams, GET_PING) == b"HTTP/1.1 200 OK\r\n"


async def test_an_answer_that_is_not_read_is_broken_off(service) -> None:
    loop = asyncio.get_running_loop()
    with socket.socket() as plain:
        # Little of it fits into the kernel.
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)
        plain.setblocking(False)
        await loop.sock_connect(plain, ("127.0.0.1", service.port))
        reader, writer = await asyncio.open_connection(
            sock=plain, ssl=service.pki.user("ann"), server_hostname="127.0.0.1"
        )
        writer.write(b"GET /much HTTP/1.1\r\nHost: m\r\n\r\n")
        assert (await reader.readline()) == b"HTTP/1.1 200 OK\r\n"
        assert service.door.open == (0, 1)
        await service.is_gone()
        writer.transport.abort()


@pytest.mark.parametrize(("path", "status"), [("ping", b"400"), ("echo", b"401"), ("nowhere", b"404")])
@pytest.mark.parametrize("expects", [b"", b"Expect: 100-continue\r\n"])
async def test_a_strangers_body_is_answered_before_it_is_sent(
    service, path: str, status: bytes, expects: bytes
) -> None:
    verb = "GET" if path == "ping" else "POST"
    head = (
        f"{verb} /{path} HTTP/1.1\r\nHost: m\r\nContent-Type: application/json\r\nContent-Length: 4194304\r\n"
    )
    async with service.connected() as streams:
        assert (await answer(streams, head.encode() + expects + b"\r\n")).split()[1] == status


async def test_who_is_known_and_asks_first_is_told_to_go_on(service) -> None:
    head = b"POST /echo HTTP/1.1\r\nHost: m\r\nContent-Type: application/json\r\nContent-Length: 9\r\n"
    async with service.connected("ann") as (reader, writer):
        assert (
            await answer((reader, writer), head + b"Expect: 100-continue\r\n\r\n")
            == b"HTTP/1.1 100 Continue\r\n"
        )
        await reader.readline()
        assert await answer((reader, writer), b'{"a":"b"}') == b"HTTP/1.1 200 OK\r\n"


async def test_what_is_not_http_is_refused_as_every_error_is_and_logged_once(
    service, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            async with service.connected() as (reader, writer):
                writer.write(b"GET /\x1b[31m HTTP/1.1\r\n" + b"forged\n" * 500 + b"\r\n\r\n")
                said = await ended(reader)
                assert b"400 Bad Request" in said
                assert b'"code":"malformed"' in said
    assert [record.getMessage() for record in caplog.records] == ["a request that is not HTTP from 127.0.0.1"]


@pytest.mark.parametrize("target", [b"/ping", b"/%0A"])
async def test_callers_that_hang_up_before_they_are_answered_are_no_failure_of_ours(
    service: Service, caplog: pytest.LogCaptureFixture, target: bytes
) -> None:
    # The second is no path of any route: aiohttp answers by itself, and first tells who waits for it to go on.
    request = b"GET " + target + b" HTTP/1.1\r\nHost: m\r\nExpect: 100-continue\r\n\r\n"
    for _ in range(20):
        async with service.connected("ann") as (_, writer):
            writer.write(request * 3)
            await writer.drain()
            writer.transport.abort()
    async with service.connected("ann") as (reader, writer):
        writer.write(GET_PING)
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    assert [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR] == []
