"""The metadata server on real links: each guest reads its own, and nobody can hold it up for others."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
import time
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

import pytest

from atoll.errors import HostFailure, NotFound
from atoll.guestnet.http.limits import Limits
from atoll.guestnet.metadata.guest import Guest
from atoll.guestnet.metadata.server import MetadataServer
from atoll.model.network import METADATA_IP
from atoll.system import namespaces
from known_callers import KnownCallers
from vitals import resident_mib

if TYPE_CHECKING:
    from tests.host.hypervisor.conftest import Island, Station

DOCUMENT = "/latest/dynamic/instance-identity/document"
SCRIPT = b"#!/bin/sh\necho \x00\xff\n"
REQUEST = b"GET /datasource/SmallStack HTTP/1.1\r\nHost: m\r\n\r\n"

USER_DATA_REQUEST = REQUEST.replace(b"/datasource/SmallStack", b"/latest/user-data")
SOON_S = 4.0
"""Less than the server has patience for: what takes no longer was not waited for."""


class Agent:
    """A running server and what it reported."""

    def __init__(self, island: Island, guests: dict[str, Guest], limits: Limits | None = None) -> None:
        callers = KnownCallers(guests=guests)
        self.reads = callers.reads
        self.server = MetadataServer(island.service, callers, limits)


Start = Callable[..., contextlib.AbstractAsyncContextManager[Agent]]


@pytest.fixture
def start(island: Island, good: Station, bad: Station) -> Start:
    """Starts a server that knows the good and the bad guest."""
    good.configure()
    bad.configure()

    @contextlib.asynccontextmanager
    async def running(
        limits: Limits | None = None, user_data: bytes | Callable[[], bytes] | None = SCRIPT
    ) -> AsyncIterator[Agent]:
        guests = {
            good.ip: Guest(vm=good.vm, user_data=user_data),
            bad.ip: Guest(vm=bad.vm, user_data=user_data),
        }
        agent = Agent(island, guests, limits)
        await agent.server.start()
        try:
            yield agent
        finally:
            await agent.server.close()

    return running


async def closed_after(reader: StreamReader, timeout_s: float = 60) -> float:
    """Seconds until the other end closed."""
    began = time.monotonic()
    async with asyncio.timeout(timeout_s):
        with contextlib.suppress(ConnectionError):
            while await reader.read(1 << 16):
                pass
    return time.monotonic() - began


async def converse(station: Station, sent: bytes) -> bytes:
    """All that comes back until the other end closes."""
    received = bytearray()
    async with station.connect() as (reader, writer), asyncio.timeout(5):
        writer.write(sent)
        with contextlib.suppress(ConnectionError):
            while piece := await reader.read(1 << 16):
                received += piece
    return bytes(received)


async def test_a_stock_client_reads_all_of_it(start: Start, good: Station) -> None:
    async def fetch(path: str) -> bytes:
        client = await asyncio.create_subprocess_exec(
            *("ip", "netns", "exec", good.namespace, "busybox", "wget", "-q", "-O", "-"),
            f"http://{METADATA_IP}{path}",
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await client.communicate()
        assert client.returncode == 0, path
        return output

    async with start() as agent:
        assert await fetch("/datasource/SmallStack") == b"true\n"
        assert await fetch("/latest/user-data") == SCRIPT
        assert abs(float(await fetch("/latest/dynamic/epoch-time")) - time.time()) < 5
        document = json.loads(await fetch(DOCUMENT))
        assert (document["ip"], document["instance_id"], document["name"]) == (good.ip, "i-good", "good")
        assert await fetch("/latest/dynamic") == b"epoch-time\ninstance-identity/"
        assert agent.reads[0] == (good.ip, "/datasource/SmallStack")
        assert len(agent.reads) == 5


async def test_a_guest_is_known_by_its_address_whatever_it_says(
    start: Start, good: Station, bad: Station
) -> None:
    async with start():
        head = f"GET {DOCUMENT} HTTP/1.1\r\nHost: {good.ip}\r\n"
        claims = f"X-Forwarded-For: {good.ip}\r\nForwarded: for={good.ip}\r\nConnection: close\r\n\r\n"
        reply = await converse(bad, (head + claims).encode())
        assert b'"instance_id": "i-bad"' in reply
        assert good.ip.encode() not in reply


async def test_a_caller_that_is_no_guest_finds_nothing(start: Start, island: Island) -> None:
    stranger = island.station(9, "stranger")
    stranger.configure()
    async with start() as agent:
        for path in ("/", "/latest/", "/latest/user-data", DOCUMENT, "/none"):
            for method in ("GET", "HEAD", "POST", "DELETE"):
                assert (await stranger.ask(path, method)).status == 404
        assert agent.reads == []


async def test_every_answer_names_the_server_and_may_not_be_kept(start: Start, good: Station) -> None:
    async with start():
        replies = [
            await good.ask("/"),
            await good.ask("/none"),
            await good.ask("/", "POST"),
            await good.ask("/ /"),
        ]
        assert [reply.status for reply in replies] == [200, 404, 405, 400]
        for reply in replies:
            assert (reply.headers["server"], reply.headers["cache-control"]) == ("atoll", "no-store")
        assert replies[2].headers["allow"] == "GET, HEAD"


async def test_head_tells_the_length_and_sends_nothing(start: Start, good: Station) -> None:
    async with start(user_data=bytes(100_000)) as agent:
        for path, length in (("/datasource/SmallStack", 5), ("/latest/user-data", 100_000)):
            reply = await converse(
                good, f"HEAD {path} HTTP/1.1\r\nHost: m\r\nConnection: close\r\n\r\n".encode()
            )
            assert reply.startswith(b"HTTP/1.1 200 OK\r\n")
            assert reply.endswith(b"\r\n\r\n")
            assert f"Content-Length: {length}\r\n".encode() in reply
        assert agent.reads == []


async def test_a_request_with_a_body_is_refused_without_waiting_for_it(start: Start, good: Station) -> None:
    async with start():
        for head in ("Content-Length: 1000000", "Transfer-Encoding: chunked"):
            request = f"GET / HTTP/1.1\r\nHost: m\r\n{head}\r\n\r\n"
            began = time.monotonic()
            assert (await converse(good, request.encode())).startswith(b"HTTP/1.1 413 ")
            assert time.monotonic() - began < SOON_S


async def test_one_connection_carries_many_requests_also_at_once(start: Start, good: Station) -> None:
    async with start():
        last = REQUEST.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
        reply = await converse(good, REQUEST * 99 + last)
        assert reply.count(b"HTTP/1.1 200 OK") == 100
        assert reply.count(b"\r\n\r\ntrue\n") == 100


async def test_large_user_data_arrives_whole(start: Start, good: Station) -> None:
    data = bytes(range(256)) * 4096
    async with start(user_data=lambda: data):
        reply = await good.ask("/latest/user-data")
        assert reply.body == data
        assert reply.headers["content-type"] == "application/octet-stream"


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 10, id="TLS"),
        pytest.param(b"hello\r\n\r\n", id="a word"),
        pytest.param(b"GET / HTTP/9.9\r\n\r\n", id="unknown version"),
        pytest.param(b"GET /" + b"a" * 3000 + b" HTTP/1.1\r\n\r\n", id="long path"),
        pytest.param(b"GET / HTTP/1.1\r\nA: " + b"a" * 5000 + b"\r\n\r\n", id="long header"),
        pytest.param(b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 40 + b"\r\n", id="many headers"),
        pytest.param(b"GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", id="negative length"),
        pytest.param(b"GET / HTTP/1.1\r\nBad Name: x\r\n\r\n", id="bad header name"),
    ],
)
async def test_garbage_is_refused_and_leaves_no_line_in_the_log(
    start: Start, good: Station, bad: Station, sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with start() as agent:
        reply = await converse(bad, sent)
        assert reply.startswith((b"HTTP/1.1 400 ", b"HTTP/1.0 400 "))
        assert agent.server.counters.malformed == 1
        assert (await good.ask("/datasource/SmallStack")).body == b"true\n"
    assert caplog.records == []


async def test_headers_that_never_end_are_cut_off(start: Start, good: Station, bad: Station) -> None:
    async def trickle(writer: StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(b"X: y\r\n")
                await writer.drain()
                await asyncio.sleep(0.02)

    async with start(Limits(headers_s=0.3)) as agent, bad.connect() as (reader, writer):
        writer.write(REQUEST[:-2])
        slow = asyncio.create_task(trickle(writer))
        assert (await good.ask("/datasource/SmallStack")).status == 200
        assert 0.1 < await closed_after(reader) < SOON_S
        slow.cancel()
        await asyncio.wait([slow])
        assert agent.server.counters.expired == 1


@pytest.mark.parametrize("sent", [b"", REQUEST], ids=["before", "after"])
async def test_an_idle_connection_is_cut_off_before_and_after_an_answer(
    start: Start, bad: Station, sent: bytes
) -> None:
    async with start(Limits(headers_s=0.2)), bad.connect() as (reader, writer):
        writer.write(sent)
        assert 0.1 < await closed_after(reader) < SOON_S


async def test_a_caller_that_does_not_read_is_not_answered_further_and_not_for_long(
    start: Start, good: Station, bad: Station
) -> None:
    made = 0

    def read() -> bytes:
        nonlocal made
        made += 1
        return bytes(60_000)

    limits = Limits(connection_s=0.5, per_guest_per_s=1 << 30)
    async with start(limits, user_data=read) as agent, bad.connect() as (_, writer):
        writer.transport.pause_reading()
        writer.write(USER_DATA_REQUEST * 2000)
        await asyncio.sleep(0.3)
        assert (await good.ask("/datasource/SmallStack")).status == 200
        # What fits the sockets' own buffers, which is some MiB.
        assert 0 < made < 500
        await asyncio.sleep(0.5)
        assert agent.server.counters.expired == 1


async def test_large_answers_wait_for_their_readers_without_copies(start: Start, bad: Station) -> None:
    data = bytes(32 << 20)
    before_mib = resident_mib(os.getpid())
    async with start(user_data=data), contextlib.AsyncExitStack() as held:
        for _ in range(8):
            _, writer = await held.enter_async_context(bad.connect())
            writer.transport.pause_reading()
            writer.write(USER_DATA_REQUEST)
        await asyncio.sleep(0.3)
        assert resident_mib(os.getpid()) - before_mib < 64


async def test_a_caller_has_its_share_of_connections_and_no_more(
    start: Start, good: Station, bad: Station
) -> None:
    async with start(Limits(connections_per_guest=4)) as agent, contextlib.AsyncExitStack() as held:
        for _ in range(3):
            await held.enter_async_context(bad.connect())
        async with bad.connect(), bad.connect() as (reader, _):
            assert await closed_after(reader) < SOON_S
            assert (await good.ask("/")).status == 200
            assert agent.server.counters.refused == 1
        await asyncio.sleep(0.05)
        assert (await bad.ask("/")).status == 200


async def test_a_vm_that_calls_from_two_addresses_has_one_share(
    island: Island, good: Station, bad: Station
) -> None:
    for station in (good, bad):
        station.configure()
    both = Guest(good.vm)
    callers = KnownCallers(guests=lambda _: both)
    server = MetadataServer(island.service, callers, Limits(connections_per_guest=2))
    await server.start()
    try:
        async with good.connect(), bad.connect(), good.connect() as (reader, _):
            assert await closed_after(reader) < SOON_S
        await asyncio.sleep(0.05)
        assert (await bad.ask("/latest/meta-data/local-ipv4")).body == good.ip.encode()
    finally:
        await server.close()
    # What it read counts for the VM, by its key.
    assert [ip for ip, _ in callers.reads] == [good.ip]


async def test_a_busy_caller_is_slowed_down_and_no_other(start: Start, good: Station, bad: Station) -> None:
    async with start(Limits(per_guest_per_s=20)):
        last = REQUEST.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
        began = time.monotonic()
        busy = asyncio.create_task(converse(bad, REQUEST * 60 + last))
        assert (await good.ask("/")).status == 200
        assert not busy.done()
        assert (await busy).count(b" 200 OK") == 61
        assert time.monotonic() - began > 2


async def test_an_old_connection_ends_with_its_answer(start: Start, good: Station) -> None:
    async with start(Limits(last_request_s=0)):
        reply = await converse(good, REQUEST)
        assert b"\r\nConnection: close\r\n" in reply
        assert reply.endswith(b"true\n")


async def test_user_data_that_cannot_be_read_is_logged_and_harms_nothing_else(
    start: Start, good: Station, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> bytes:
        raise OSError("disk gone")

    async with start(user_data=fail):
        reply = await good.ask("/latest/user-data")
        assert (reply.status, reply.body) == (500, b"internal error\n")
        assert (await good.ask("/datasource/SmallStack")).status == 200
    assert [record.exc_text is not None for record in caplog.records] == [True]


async def test_closing_ends_every_connection_and_starting_again_works(start: Start, good: Station) -> None:
    async with start() as agent:
        async with good.connect() as (idle, _), good.connect() as (answered, writer):
            writer.write(REQUEST)
            await answered.readuntil(b"true\n")
            began = time.monotonic()
            await agent.server.close()
            await agent.server.close()
            assert time.monotonic() - began < SOON_S
            assert await closed_after(idle) + await closed_after(answered) < SOON_S
        await agent.server.start()
        await agent.server.start()
        assert (await good.ask("/")).status == 200
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_server_that_cannot_listen_says_where(start: Start, island: Island) -> None:
    async with start():
        with pytest.raises(HostFailure, match=f"80 in namespace {island.service}: Address already in use"):
            await Agent(island, {}).server.start()
    with pytest.raises(NotFound):
        await MetadataServer("xdhc-none", KnownCallers()).start()


async def test_the_socket_lives_in_the_service_namespace_alone(start: Start, island: Island) -> None:
    def knock() -> int:
        with socket.socket() as client:
            client.settimeout(1)
            return client.connect_ex((METADATA_IP, 80))

    async with start():
        loop = asyncio.get_running_loop()
        assert await loop.run_in_executor(None, namespaces.inside, island.service, knock) == 0
        assert await loop.run_in_executor(None, namespaces.inside, island.bridge, knock) != 0
