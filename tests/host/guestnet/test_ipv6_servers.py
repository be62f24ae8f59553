"""Router advertisements and DHCPv6 on real links: a Linux kernel is the guest that listens."""

from __future__ import annotations

import asyncio
import random
import socket
from collections import Counter
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest
from msgspec import structs

from atoll.errors import HostFailure
from atoll.guestnet.dhcp.answer import Lease
from atoll.guestnet.dhcp6 import codec
from atoll.guestnet.dhcp6.answer import Silence, answer, server_id
from atoll.guestnet.dhcp6.codec import Code, Kind, Message
from atoll.guestnet.dhcp6.server import PER_GUEST_PER_S, Dhcp6Server
from atoll.guestnet.frames import ipv6 as packets6
from atoll.guestnet.frames.ipv6 import ETHERTYPE_IPV6, UDP, BadPacket, Datagram, Packet
from atoll.guestnet.ra.server import RaServer
from atoll.model.network import Subnet, link_local
from atoll.system.links import Links, sysctl
from known_callers import KnownCallers

if TYPE_CHECKING:
    from tests.host.hypervisor.conftest import Island, Station

ROUTER = "02:a8:00:00:00:01"
SERVERS = "ff02::1:2"
FUZZED = 100_000


@pytest.fixture
def subnet(good: Station) -> Subnet:
    return structs.replace(good.lease.subnet, cidr6="fd77:1::/64", gateway6="fd77:1::1")


@pytest.fixture
def lease(good: Station, subnet: Subnet) -> Lease:
    return structs.replace(good.lease, subnet=subnet)


@pytest.fixture
async def router(island: Island, lease: Lease, subnet: Subnet) -> AsyncIterator[RaServer]:
    """Knows the good guest and no other."""
    server = RaServer(island.service, "eth0", subnet, ROUTER, KnownCallers(lease))
    await server.start()
    yield server
    await server.close()


@pytest.fixture
async def dhcp6(island: Island, lease: Lease) -> AsyncIterator[Dhcp6Server]:
    server = Dhcp6Server(island.service, "eth0", KnownCallers(lease))
    await server.start()
    yield server
    await server.close()


def switch_on(station: Station) -> None:
    sysctl("net/ipv6/conf/eth0/accept_dad", "0", station.namespace)
    sysctl("net/ipv6/conf/eth0/disable_ipv6", "0", station.namespace)


async def addresses(station: Station, count: int, patience_s: float = 8) -> set[str]:
    """Its IPv6 addresses, once there are so many."""
    found: set[str] = set()
    with Links(station.namespace) as links:
        for _ in range(int(patience_s / 0.05)):
            found = links.addresses("eth0", socket.AF_INET6)
            if len(found) >= count:
                break
            await asyncio.sleep(0.05)
    return found


async def test_a_guest_makes_up_the_address_that_the_firewall_lets_it_use(
    router: RaServer, good: Station, subnet: Subnet
) -> None:
    switch_on(good)
    assert await addresses(good, 2) == {f"{link_local(good.mac)}/64", f"{subnet.ip6_of(good.mac)}/64"}
    assert router.counters.answered >= 1


async def test_a_guest_without_a_lease_gets_no_answer(router: RaServer, bad: Station) -> None:
    switch_on(bad)
    assert await addresses(bad, 2, patience_s=1.5) == {f"{link_local(bad.mac)}/64"}
    assert (router.counters.answered, router.counters.malformed) == (0, 0)
    assert router.counters.silent >= 1


class Wire:
    """DHCPv6 from a guest's link, by hand."""

    def __init__(self, station: Station) -> None:
        self.station = station
        self.socket = station.socket(socket.AF_PACKET, socket.SOCK_RAW)
        self.socket.setblocking(False)
        self.socket.bind(("eth0", ETHERTYPE_IPV6))

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, message: Message, source: str = "") -> None:
        mac = self.station.mac
        source = source or link_local(mac)
        payload = packets6.udp(source, SERVERS, Datagram(546, 547, codec.build(message)))
        packet = Packet(mac, packets6.multicast_mac(SERVERS), source, SERVERS, UDP, payload, 1)
        self.socket.send(packets6.build(packet))

    async def hear(self, timeout_s: float = 3) -> Message | None:
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    frame = await asyncio.get_running_loop().sock_recv(self.socket, 4096)
                    packet = packets6.parse(frame)
                    if packet.protocol == UDP and packet.target_mac == self.station.mac:
                        assert packets6.parse_udp(packet).target_port == 546
                        return codec.parse(packets6.parse_udp(packet).payload)
        except TimeoutError:
            return None


def solicit(**more: bytes) -> Message:
    options = [(Code[name.upper()], value) for name, value in more.items()]
    return Message(Kind.SOLICIT, b"abc", ((Code.CLIENT_ID, b"\0\4me"), codec.association(1, 0, 0), *options))


async def test_a_guest_is_given_its_address(dhcp6: Dhcp6Server, good: Station, subnet: Subnet) -> None:
    with Wire(good) as wire:
        wire.send(solicit(rapid_commit=b""))
        reply = await wire.hear()
        assert reply is not None
        assert reply.kind == Kind.REPLY
        assert reply.associations()[0].addresses == (subnet.ip6_of(good.mac),)


async def test_strangers_and_forgers_hear_nothing(dhcp6: Dhcp6Server, good: Station, bad: Station) -> None:
    with Wire(bad) as wire, Wire(good) as other:
        wire.send(solicit())
        other.send(solicit(), source=link_local(bad.mac))
        assert await wire.hear(0.5) is None
        assert await other.hear(0.1) is None
    assert (dhcp6.counters.silent, dhcp6.counters.answered) == (2, 0)


async def test_a_flood_is_held_to_a_pace(dhcp6: Dhcp6Server, good: Station) -> None:
    with Wire(good) as wire:
        for _ in range(PER_GUEST_PER_S * 10):
            wire.send(solicit())
        await asyncio.sleep(0.3)
    counters = dhcp6.counters
    assert counters.excess >= PER_GUEST_PER_S * 7
    assert structs.asdict(counters)["received"] == sum(structs.astuple(counters)[1:])


async def test_a_link_that_is_not_there_is_refused_with_a_reason(island: Island) -> None:
    with pytest.raises(HostFailure, match="starting DHCPv6 on eth7"):
        await Dhcp6Server(island.service, "eth7", KnownCallers()).start()


def test_no_payload_brings_anything_but_an_answer_a_silence_or_a_bad_packet(lease: Lease) -> None:
    pick, seen, me = random.Random(3), Counter[str](), server_id(ROUTER)
    parts = [
        (Code.CLIENT_ID, b"\0\4me"),
        (Code.SERVER_ID, me),
        (Code.RAPID_COMMIT, b""),
        (Code.IA_PD, bytes(12)),
        codec.association(1, 0, 0),
        codec.association(2, 0, 0, codec.address("fd77:1::9", 1, 1)),
        (23, b"x" * 16),
    ]
    for _ in range(FUZZED):
        message = Message(pick.randrange(1, 12), b"abc", tuple(pick.choices(parts, k=pick.randrange(6))))
        data = bytearray(codec.build(message))
        for _ in range(pick.choice((0, 0, 1, 3))):
            data[pick.randrange(len(data))] = pick.randrange(256)
        if pick.random() < 0.1:
            del data[pick.randrange(len(data)) :]
        try:
            parsed = codec.parse(bytes(data))
        except BadPacket:
            seen["bad packet"] += 1
            continue
        reply = answer(parsed, lease.mac, {lease.mac: lease}.get, me)
        if isinstance(reply, Silence):
            seen[reply.name] += 1
        else:
            codec.parse(codec.build(reply))
            seen["answer"] += 1
    assert set(seen) == {"bad packet", "answer", "ANONYMOUS", "OTHER_SERVER", "UNKNOWN_KIND"}
    assert seen["answer"] > FUZZED / 20
