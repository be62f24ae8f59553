"""Tokens of the metadata service on the wire: a stock client gets one, a forged request does not."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest
from msgspec import structs

from atoll.guestnet.metadata.guest import Guest
from atoll.guestnet.metadata.server import MetadataServer
from atoll.model.network import METADATA_IP
from known_callers import KnownCallers

if TYPE_CHECKING:
    from tests.host.hypervisor.conftest import Island, Reply, Station

TOKEN = "/latest/api/token"
TTL = "X-aws-ec2-metadata-token-ttl-seconds"
HEADER = "X-aws-ec2-metadata-token"


@contextlib.asynccontextmanager
async def serving(island: Island, *guests: Guest) -> AsyncIterator[None]:
    by_ip = {guest.vm.ip: guest for guest in guests}
    server = MetadataServer(island.service, KnownCallers(guests=by_ip))
    await server.start()
    try:
        yield
    finally:
        await server.close()


def required(station: Station) -> Guest:
    return Guest(structs.replace(station.vm, imdsv2_required=True), b"secret")


@pytest.fixture(autouse=True)
def wired(good: Station, bad: Station) -> None:
    good.configure()
    bad.configure()


async def token_of(station: Station, ttl_s: int = 60) -> str:
    reply = await station.ask(TOKEN, "PUT", {TTL: str(ttl_s)})
    assert (reply.status, reply.headers[TTL.lower()]) == (200, str(ttl_s))
    return reply.body.decode()


async def statuses(station: Station, *requests: dict[str, str], path: str = "/latest/user-data") -> list[int]:
    return [(await station.ask(path, headers=headers)).status for headers in requests]


async def test_with_a_token_the_guest_reads_and_without_one_only_if_none_is_required(
    island: Island, good: Station, bad: Station
) -> None:
    async with serving(island, required(good), Guest(bad.vm, b"open")):
        token = await token_of(good)

        assert await statuses(good, {}, {HEADER: "made-up"}, {HEADER: token}) == [401, 401, 200]
        assert await statuses(bad, {}, {HEADER: "made-up"}, {HEADER: await token_of(bad)}) == [200, 401, 200]
        for path in ("/nocloud/user-data", "/openstack/latest/user_data", "/datasource/SmallStack", "/none"):
            assert await statuses(good, {}, path=path) == [401]


async def test_a_token_is_of_one_guest_and_ends(island: Island, good: Station, bad: Station) -> None:
    async with serving(island, required(good), required(bad)):
        token = await token_of(good, ttl_s=1)
        assert await statuses(good, {HEADER: token}) == [200]
        assert await statuses(bad, {HEADER: token}) == [401]
        await asyncio.sleep(1.05)
        assert await statuses(good, {HEADER: token}) == [401]


async def test_a_token_is_refused_to_proxies_and_for_a_life_that_is_none(
    island: Island, good: Station
) -> None:
    async with serving(island, Guest(good.vm)):

        async def ask(headers: dict[str, str], method: str = "PUT") -> Reply:
            return await good.ask(TOKEN, method, headers)

        for ttl in ("", "0", "21601", "-1", "1.5", "x", "99999999999999999999"):
            assert (await ask({TTL: ttl})).status == 400
        assert (await ask({})).status == 400
        assert (await ask({TTL: "60", "X-Forwarded-For": "198.51.100.1"})).status == 403
        for method in ("GET", "POST"):
            reply = await ask({TTL: "60"}, method)
            assert (reply.status, reply.headers["allow"]) == (405, "PUT")
        assert (await good.ask("/latest/user-data", "PUT", {TTL: "60"})).status == 405


async def test_a_token_does_not_travel_farther_than_the_guest(island: Island, good: Station) -> None:
    with good.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x0800)) as tap:
        tap.setblocking(False)
        async with serving(island, Guest(good.vm, b"x")):
            reply = await good.ask("/latest/user-data")
            plain = hops(tap, reply.body)
            token = await token_of(good)

            assert plain == {64}
            assert hops(tap, token.encode()) == {1}


def hops(tap: socket.socket, content: bytes) -> set[int]:
    """How far the packets that held this were allowed to go."""
    found = set()
    with contextlib.suppress(BlockingIOError):
        while packet := tap.recv(65536):
            if socket.inet_ntoa(packet[12:16]) == METADATA_IP and content in packet:
                found.add(packet[8])
    return found
