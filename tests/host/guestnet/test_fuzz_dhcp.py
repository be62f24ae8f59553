"""Fuzz of the DHCP server: hostile packets, seeded, while a good guest goes on getting its lease."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections import Counter
from typing import TYPE_CHECKING

import msgspec
import pytest

from atoll.guestnet.dhcp import codec
from atoll.guestnet.dhcp.answer import Answer, Silence, answer
from atoll.guestnet.dhcp.codec import BadPacket, Code, Kind, Message
from atoll.guestnet.dhcp.server import DhcpServer
from atoll.guestnet.frames import ipv4 as frames
from atoll.guestnet.frames.ipv4 import Datagram
from atoll.model.lease import LeaseState
from atoll.model.network import METADATA_IP
from forges.dhcp import ALL_IPS, ALL_MACS, NO_IP, DhcpForge
from known_callers import KnownCallers
from vitals import resident_mib

if TYPE_CHECKING:
    from tests.host.hypervisor.conftest import Island, Station

STRAIGHT, ON_THE_WIRE, BATCH = 100_000, 100_000, 64


def check_reply(reply: Message, target_mac: str, station: Station) -> None:
    assert target_mac == station.mac
    assert reply.kind in (Kind.OFFER, Kind.ACK, Kind.NAK)
    assert reply.yiaddr in (NO_IP, station.ip)
    assert reply.server_id == METADATA_IP


def test_no_payload_brings_anything_but_an_answer_a_silence_or_a_bad_packet(bad: Station) -> None:
    forge = DhcpForge(bad.mac, bad.ip, seed=1)
    find = {bad.mac: bad.lease}.get
    seen: Counter[str] = Counter()
    for _ in range(STRAIGHT):
        try:
            message = codec.parse(forge.payload())
        except BadPacket:
            seen["bad packet"] += 1
            continue
        reply = answer(message, bad.mac, find)
        if isinstance(reply, Answer):
            data = codec.build(reply.reply, reply.limit)
            assert len(data) <= reply.limit
            check_reply(codec.parse(data), reply.destination[0], bad)
            seen["answer"] += 1
        else:
            seen[reply.name] += 1
    # The fuzz reached every end, or it proves little.
    never_here = {Silence.STRANGER}
    assert set(seen) == {"bad packet", "answer", *(each.name for each in Silence if each not in never_here)}
    assert seen.total() == STRAIGHT
    assert seen["answer"] > STRAIGHT / 10


async def test_a_fuzzing_guest_neither_stops_nor_slows_the_server_for_a_good_one(
    island: Island, good: Station, bad: Station, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    callers = KnownCallers(good.lease, bad.lease)
    server = DhcpServer(island.service, "eth0", callers, per_guest_per_s=1 << 30)
    forge = DhcpForge(bad.mac, bad.ip, seed=2)
    request, before_mib = good_request(good), resident_mib(os.getpid())
    slowest_s = 0.0
    sent = broken = asked = replies = 0
    loop = asyncio.get_running_loop()
    async with contextlib.AsyncExitStack() as stack:
        await server.start()
        stack.push_async_callback(server.close)
        attacker = stack.enter_context(packet_socket(bad))
        wire = stack.enter_context(packet_socket(good))
        while sent + broken < ON_THE_WIRE:
            for _ in range(BATCH):
                attacker.send(forge.frame())
            for _ in range(BATCH // 16):
                attacker.send(forge.broken_frame())
            sent, broken = sent + BATCH, broken + BATCH // 16
            began = loop.time()
            wire.send(request)
            assert await acknowledgement(wire, good)
            slowest_s = max(slowest_s, loop.time() - began)
            asked += 1
            replies += drain(attacker, bad)
    counters = server.counters
    fates = msgspec.structs.asdict(counters)
    assert fates.pop("received") == sum(fates.values())
    assert sent + asked <= counters.received <= sent + broken + asked
    assert counters.answered == replies + asked
    assert counters.malformed > ON_THE_WIRE / 10
    acknowledged = Counter(mac for mac, state in callers.uses if state is LeaseState.BOUND)
    assert acknowledged[good.mac] == asked
    assert set(acknowledged) == {good.mac, bad.mac}
    assert slowest_s < 1
    assert resident_mib(os.getpid()) - before_mib < 32
    assert caplog.records == []


def packet_socket(station: Station) -> socket.socket:
    wire = station.socket(socket.AF_PACKET, socket.SOCK_RAW)
    wire.setblocking(False)
    wire.bind(("eth0", frames.ETHERTYPE_IPV4))
    return wire


def good_request(station: Station) -> bytes:
    message = Message(
        op=1,
        xid=7,
        chaddr=bytes.fromhex(station.mac.replace(":", "")).ljust(16, b"\0"),
        options={Code.MESSAGE_TYPE: bytes((Kind.REQUEST,)), Code.REQUESTED_IP: socket.inet_aton(station.ip)},
    )
    return frames.build(Datagram(station.mac, ALL_MACS, NO_IP, ALL_IPS, 68, 67, codec.build(message)))


async def acknowledgement(wire: socket.socket, station: Station) -> bool:
    """Whether the next reply is right. The attacker's broadcasts come by here too."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(5):
        while True:
            frame = await loop.sock_recv(wire, 4096)
            if frame[:6] == bytes.fromhex(station.mac.replace(":", "")):
                reply = codec.parse(frames.parse(frame).payload)
                return (reply.kind, reply.xid, reply.yiaddr) == (Kind.ACK, 7, station.ip)


def drain(wire: socket.socket, station: Station) -> int:
    """Check all replies that the attacker got, and count them."""
    count = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            datagram = frames.parse(wire.recv(4096))
            if datagram.target_port == 68:  # not the good guest's own call
                check_reply(codec.parse(datagram.payload), datagram.target_mac, station)
                count += 1
    return count
