"""The DHCP server on real links: what guests get, and what those who misbehave do not."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import uvloop

from atoll.errors import HostFailure, NotFound
from atoll.guestnet.dhcp import codec
from atoll.guestnet.dhcp.codec import Code, Kind, Message
from atoll.guestnet.dhcp.server import PER_GUEST_PER_S, DhcpServer
from atoll.guestnet.frames import ipv4 as frames
from atoll.guestnet.frames.ipv4 import Datagram
from atoll.model.lease import LeaseState
from atoll.model.network import METADATA_IP
from atoll.system.links import Links
from known_callers import KnownCallers

if TYPE_CHECKING:
    from tests.host.hypervisor.conftest import Island, Station

ALL_MACS, ALL_IPS, NO_IP = "ff:ff:ff:ff:ff:ff", "255.255.255.255", "0.0.0.0"
IPV4 = frames.ETHERTYPE_IPV4
DEADLINE_S = 60.0
BOUND = LeaseState.BOUND


class Agent:
    """A running server and what it reported."""

    def __init__(self, island: Island, *stations: Station) -> None:
        self.callers = KnownCallers(*(station.lease for station in stations))
        self.server = DhcpServer(island.service, "eth0", self.callers)

    def macs(self, state: LeaseState) -> list[str]:
        """Those whose leases became so."""
        return [mac for mac, became in self.callers.uses if became is state]


@pytest.fixture
async def agent(island: Island, good: Station) -> AsyncIterator[Agent]:
    """Knows the good guest and no other."""
    running = Agent(island, good)
    await running.server.start()
    yield running
    await running.server.close()


class Wire:
    """Frames to and from a guest's link."""

    def __init__(self, station: Station) -> None:
        self.station = station
        self.socket = station.socket(socket.AF_PACKET, socket.SOCK_RAW)
        self.socket.setblocking(False)
        self.socket.bind(("eth0", IPV4))

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def message(self, kind: Kind, **options: bytes) -> Message:
        numbered = {Code[name.upper()]: value for name, value in options.items()}
        return Message(
            op=1,
            xid=77,
            chaddr=bytes.fromhex(self.station.mac.replace(":", "")).ljust(16, b"\0"),
            options={Code.MESSAGE_TYPE: bytes((kind,)), **numbered},
        )

    def frame(self, message: Message, port: int = 67) -> bytes:
        payload = codec.build(message)
        return frames.build(Datagram(self.station.mac, ALL_MACS, NO_IP, ALL_IPS, 68, port, payload))

    def send(self, message: Message) -> None:
        self.socket.send(self.frame(message))

    async def receive(self, timeout_s: float = DEADLINE_S) -> tuple[Datagram, Message]:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(timeout_s):
            while True:
                datagram = frames.parse(await loop.sock_recv(self.socket, 4096))
                if datagram.target_port == 68:
                    return datagram, codec.parse(datagram.payload)

    async def acknowledged(self, request: Message) -> bool:
        """Whether the server gives what we ask for. As a client does, we ask again: a frame may be lost."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                self.send(request)
                with contextlib.suppress(TimeoutError):
                    return (await self.receive(1))[1].kind is Kind.ACK

    async def hears_nothing(self, timeout_s: float = 0.2) -> bool:
        try:
            await self.receive(timeout_s)
        except TimeoutError:
            return True
        return False


async def test_a_stock_client_gets_its_lease_and_all_options(
    agent: Agent, good: Station, tmp_path: Path
) -> None:
    script = tmp_path / "lease"
    script.write_text(f'#!/bin/sh\n[ "$1" = bound ] && env > {tmp_path}/bound\nexit 0\n')
    script.chmod(0o755)
    asked = [word for name in ("mtu", "staticroutes", "hostname", "domain") for word in ("-O", name)]
    client = await asyncio.create_subprocess_exec(
        *("ip", "netns", "exec", good.namespace, "busybox", "udhcpc", "-i", "eth0"),
        *("-f", "-n", "-q", "-t", "5", "-T", "1", "-s", str(script), *asked),
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert await client.wait() == 0
    bound = dict(line.split("=", 1) for line in (tmp_path / "bound").read_text().splitlines())
    wanted = {
        "ip": good.ip,
        "mask": "24",
        "router": "10.77.0.1",
        "dns": "10.77.0.1",
        "domain": "atoll.test",
        "hostname": "good",
        "mtu": "1400",
        "broadcast": "10.77.0.255",
        "serverid": METADATA_IP,
        "lease": "172800",
        "staticroutes": f"{METADATA_IP}/32 0.0.0.0 0.0.0.0/0 10.77.0.1",
    }
    assert {key: bound.get(key) for key in wanted} == wanted
    assert agent.macs(BOUND) == [good.mac]
    assert agent.server.counters.answered == 2


async def test_a_renewing_guest_is_answered_from_the_server_and_never_told_that_nobody_is_there(
    agent: Agent, good: Station
) -> None:
    good.configure()
    loop = asyncio.get_running_loop()
    with good.socket(socket.AF_INET, socket.SOCK_DGRAM) as client, Wire(good) as wire:
        client.setblocking(False)
        client.bind((good.ip, 68))
        client.connect((METADATA_IP, 67))
        for _ in range(3):
            renewal = wire.message(Kind.REQUEST)
            client.send(codec.build(Message(**{**_fields(renewal), "ciaddr": good.ip})))
            reply = codec.parse(await asyncio.wait_for(loop.sock_recv(client, 2048), 2))
            assert (reply.kind, reply.yiaddr) == (Kind.ACK, good.ip)
    assert agent.macs(BOUND) == [good.mac] * 3


def _fields(message: Message) -> dict[str, object]:
    return {name: getattr(message, name) for name in message.__struct_fields__}


async def test_replies_are_seen_by_the_guest_alone(agent: Agent, good: Station, bad: Station) -> None:
    with Wire(good) as mine, Wire(bad) as other:
        mine.send(mine.message(Kind.DISCOVER))
        datagram, offer = await mine.receive()
        assert (offer.kind, datagram.target_mac) == (Kind.OFFER, good.mac)
        mine.send(mine.message(Kind.REQUEST, requested_ip=b"\x0a\x4d\x00\x06"))
        datagram, refusal = await mine.receive()
        assert (refusal.kind, datagram.target_mac, datagram.target_ip) == (Kind.NAK, good.mac, ALL_IPS)
        assert await other.hears_nothing()
    assert agent.macs(BOUND) == []


async def test_a_stranger_and_a_forger_get_nothing(agent: Agent, good: Station, bad: Station) -> None:
    with Wire(bad) as wire, Wire(good) as victim:
        wire.send(wire.message(Kind.DISCOVER))
        wire.send(victim.message(Kind.DISCOVER))
        assert await wire.hears_nothing()
    counters = agent.server.counters
    assert (counters.received, counters.strangers, counters.silent) == (2, 1, 1)
    assert agent.macs(BOUND) == []


async def test_a_declined_address_is_reported(agent: Agent, good: Station) -> None:
    with Wire(good) as wire:
        wire.send(wire.message(Kind.DECLINE, requested_ip=socket.inet_aton(good.ip)))
        wire.send(wire.message(Kind.RELEASE))
        assert await wire.hears_nothing()
    assert agent.macs(LeaseState.DECLINED) == [good.mac]
    assert agent.server.counters.silent == 2


async def test_the_loop_is_not_woken_by_what_is_no_dhcp(agent: Agent, good: Station) -> None:
    with Wire(good) as wire:
        frame = wire.frame(wire.message(Kind.DISCOVER))
        other_port = wire.frame(wire.message(Kind.DISCOVER), port=68)
        fragment = frame[:20] + b"\x20\x00" + frame[22:]
        tagged = frame[:12] + b"\x81\x00\x00\x05" + frame[12:]
        tcp = frame[:23] + b"\x06" + frame[24:]
        ipv6 = frame[:12] + b"\x86\xdd" + frame[14:]
        elsewhere = b"\x02\x00\x00\x00\x00\x77" + frame[6:]
        for ignored in (other_port, fragment, tagged, tcp, ipv6, elsewhere, b"\xff" * 60):
            wire.socket.send(ignored)
        wire.send(wire.message(Kind.DISCOVER))
        await wire.receive()
    assert agent.server.counters.received == 1


FLOOD = """
import socket, sys
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
wire.bind(("eth0", 0))
frame = bytes.fromhex(sys.argv[1])
print("flooding", flush=True)
while True:
    try:
        wire.send(frame)
    except OSError:
        pass
"""


@contextlib.asynccontextmanager
async def flooded(station: Station, frame: bytes) -> AsyncIterator[None]:
    """The guest sends one frame over and over, as fast as it can, from a process of its own."""
    flood = await asyncio.create_subprocess_exec(
        *("ip", "netns", "exec", station.namespace, sys.executable, "-c", FLOOD, frame.hex()),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert flood.stdout is not None
        await flood.stdout.readline()
        yield
    finally:
        flood.kill()
        await flood.communicate()


async def test_a_flood_is_cut_off_and_others_get_their_lease_meanwhile(
    island: Island, good: Station, bad: Station
) -> None:
    agent = Agent(island, good, bad)
    await agent.server.start()
    with Links(island.service) as links:
        server_mac = links.find("eth0").mac
    with Wire(bad) as attacker, Wire(good) as wire:
        discover = attacker.frame(attacker.message(Kind.DISCOVER))
        to_server_alone = bytes.fromhex(server_mac.replace(":", "")) + discover[6:]
        request = wire.message(Kind.REQUEST, requested_ip=socket.inet_aton(good.ip))
        counters = agent.server.counters
        began = time.monotonic()
        async with flooded(bad, to_server_alone):
            for _ in range(40):
                assert await wire.acknowledged(request)
                await asyncio.sleep(0.02)
            async with asyncio.timeout(DEADLINE_S):
                while counters.excess <= 1000:
                    await asyncio.sleep(0.02)
        seconds = time.monotonic() - began
    await agent.server.close()
    assert set(agent.macs(BOUND)) == {good.mac}
    assert counters.answered - len(agent.macs(BOUND)) <= PER_GUEST_PER_S * (seconds + 2)


@pytest.mark.parametrize(
    "new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)
def test_a_link_that_goes_and_comes_back_is_served_again(
    island: Island, good: Station, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def story() -> None:
        agent = Agent(island, good)
        await agent.server.start()
        for state in ("down", "up"):
            command = ("ip", "-n", island.service, "link", "set", "eth0", state)
            assert await (await asyncio.create_subprocess_exec(*command)).wait() == 0
        with Wire(good) as wire:
            async with asyncio.timeout(5):
                while True:
                    wire.send(wire.message(Kind.DISCOVER))
                    if not await wire.hears_nothing(0.1):
                        break
        await agent.server.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(story())


async def test_starting_and_closing_may_be_repeated(agent: Agent, good: Station) -> None:
    for _ in range(3):
        await agent.server.close()
        await agent.server.close()
        await agent.server.start()
        await agent.server.start()
    with Wire(good) as wire:
        wire.send(wire.message(Kind.DISCOVER))
        await wire.receive()
        assert await wire.hears_nothing(0.05)


async def test_a_server_that_cannot_start_says_where_and_leaves_nothing_open(
    agent: Agent, island: Island, good: Station
) -> None:
    second = DhcpServer(island.service, "eth0", KnownCallers())
    with pytest.raises(
        HostFailure, match=f"starting DHCP on eth0 in namespace {island.service}: Address already"
    ):
        await second.start()
    with pytest.raises(HostFailure, match=r"starting DHCP on eth7 in namespace .*: No such device"):
        await DhcpServer(island.service, "eth7", KnownCallers()).start()
    with pytest.raises(NotFound):
        await DhcpServer("xdhc-none", "eth0", KnownCallers()).start()
    await agent.server.close()
    await second.start()
    await second.close()
    with Links(island.service) as links:
        assert links.exists("eth0")
