"""Fuzz of the TFTP server: hostile packets, seeded, while a good guest goes on getting its file."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import socket
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from atoll.guestnet.netboot.library import Client, Content, Library, Missing
from atoll.guestnet.tftp import codec, server, transfer
from atoll.guestnet.tftp.codec import Ack, BadPacket, Data, Mode, Request
from atoll.guestnet.tftp.server import TftpServer
from atoll.images.store import ImageStore
from atoll.model.network import METADATA_IP
from forges.tftp import TftpForge

if TYPE_CHECKING:
    from tests.host.hypervisor.conftest import Island, Station

STRAIGHT, ON_THE_WIRE, BATCH = 100_000, 10_000, 50


def test_no_packet_brings_anything_but_a_step_or_a_bad_packet() -> None:
    forge, seen, now = TftpForge(seed=1), Counter[str](), 0.0
    state, _ = transfer.begin(1000, transfer.Terms(8, 4, agreed={"blksize": "8"}), now)
    for _ in range(STRAIGHT):
        now += 0.01
        try:
            packet = codec.parse(forge.packet())
        except BadPacket:
            seen["bad packet"] += 1
            continue
        seen[type(packet).__name__] += 1
        assert codec.parse(codec.build(packet)) == packet
        if isinstance(packet, Request):
            terms = transfer.negotiate(packet.options, 1000, 1468)
            assert transfer.SMALLEST_BLOCK <= terms.block_bytes <= 1468
            state, step = transfer.begin(1000, terms, now)
        else:
            state, step = transfer.heard(state, packet, now)
        assert len(step.blocks) <= state.terms.window <= transfer.LARGEST_WINDOW
    # The fuzz reached every end, or it proves little.
    assert set(seen) == {"bad packet", "Ack", "Data", "Error", "Options", "Request"}
    assert seen.total() == STRAIGHT
    assert min(seen.values()) > STRAIGHT / 50


async def test_a_fuzzing_client_neither_stops_nor_slows_the_server_for_a_good_one(
    island: Island,
    good: Station,
    bad: Station,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(server, "PER_CLIENT_PER_S", 1 << 30)
    (tmp_path / "netboot").mkdir()
    (tmp_path / "netboot" / "file").write_bytes(b"good")
    clients = {each.ip: Client(each.ip, each.mac) for each in (good, bad)}
    library = Library(tmp_path, ImageStore(tmp_path / "images"))
    opened: list[Content] = []

    def open_(ip: str, name: str) -> Content | Missing:
        content = library.open(clients.get(ip), name)
        if isinstance(content, Content):
            opened.append(content)
        return content

    good.configure()
    bad.configure()
    running = TftpServer(island.service, open_)
    forge, slowest_s, sent, asked = TftpForge(seed=2), 0.0, 0, 0
    loop = asyncio.get_running_loop()
    async with contextlib.AsyncExitStack() as stack:
        await running.start()
        stack.push_async_callback(running.close)
        while sent < ON_THE_WIRE:
            attackers = [stack.enter_context(udp(bad)) for _ in range(5)]
            for _ in range(BATCH):
                attacker = forge.random.choice(attackers)
                with contextlib.suppress(OSError):
                    attacker.sendto(forge.packet(), target_of(attacker, forge.random))
                    sent += 1
            began = loop.time()
            with udp(good) as client:
                client.sendto(codec.build(Request("file", Mode.OCTET)), (METADATA_IP, 69))
                assert await fetched(client) == b"good"
            slowest_s = max(slowest_s, loop.time() - began)
            asked += 1
            for attacker in attackers:
                attacker.close()
        for _ in range(100):
            if running.counters.done >= asked:
                break
            await asyncio.sleep(0.01)
    counters = running.counters
    fates = msgspec.structs.asdict(counters)
    ended = fates.pop("done") + fates.pop("unfinished")
    assert fates.pop("received") == sum(fates.values())
    assert ended == counters.started
    assert counters.done >= asked
    assert counters.malformed > ON_THE_WIRE / 20
    assert counters.started > asked
    assert slowest_s < 1
    assert caplog.records == []
    assert all(content.read(0, 1) == b"" for content in opened), "a file was left open"


def udp(station: Station) -> socket.socket:
    made = station.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.setblocking(False)
    return made


def target_of(attacker: socket.socket, pick: random.Random) -> tuple[str, int]:
    """Port 69, or the transfer that answered last."""
    target = (METADATA_IP, 69)
    with contextlib.suppress(OSError):
        while True:
            _, peer = attacker.recvfrom(2048)
            if pick.random() < 0.5:
                target = peer
    return target


async def fetched(client: socket.socket) -> bytes:
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(5):
        data, peer = await loop.sock_recvfrom(client, 2048)
    packet = codec.parse(data)
    assert isinstance(packet, Data)
    client.sendto(codec.build(Ack(packet.block)), peer)
    return packet.payload
