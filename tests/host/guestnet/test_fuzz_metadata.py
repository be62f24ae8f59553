"""Fuzz of the metadata server: hostile HTTP, seeded, while a good guest goes on reading what is its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import re
import time
from typing import TYPE_CHECKING

import pytest

from atoll.guestnet.http.limits import Limits
from atoll.guestnet.metadata.guest import Guest
from atoll.guestnet.metadata.server import MetadataServer
from forges.http import METADATA_TARGETS, HttpForge
from known_callers import KnownCallers
from vitals import resident_mib

if TYPE_CHECKING:
    from tests.host.hypervisor.conftest import Island, Station

REQUESTS, ATTACKERS, PIPELINED = 100_000, 12, 120
SECRET = b"the good guest's own script"
LIMITS = Limits(per_guest_per_s=1 << 30, headers_s=0.5, connection_s=5)


class Attack:
    """What the attackers share: the server that they wear down, and what it gave them."""

    def __init__(self, server: MetadataServer, station: Station) -> None:
        self.server = server
        self.station = station
        self.statuses: set[bytes] = set()

    @property
    def over(self) -> bool:
        return self.server.counters.requests + self.server.counters.malformed >= REQUESTS

    async def run(self, seed: int) -> None:
        forge = HttpForge(METADATA_TARGETS, PIPELINED, seed)
        while not self.over:
            received = await self._send(forge.connection())
            assert SECRET not in received
            assert b"i-good" not in received
            self.statuses.update(re.findall(rb"HTTP/1\.[01] (\d+) ", received))

    async def _send(self, data: bytes) -> bytes:
        """All that comes back until the server closes; it has to, by its own deadlines."""
        received = bytearray()
        async with self.station.connect() as (reader, writer), asyncio.timeout(60):
            writer.write(data)
            with contextlib.suppress(ConnectionError):
                while piece := await reader.read(1 << 16):
                    received += piece
        return bytes(received)


class Reader:
    """The good guest: reads everything, over and over, and minds how much is done for others meanwhile.

    In seconds of CPU: how long it takes by the clock is up to whatever else this machine does.
    """

    def __init__(self, station: Station) -> None:
        self.station = station
        self.rounds = 0
        self.slowest_s = 0.0

    async def run(self, attack: Attack) -> None:
        while not attack.over:
            assert await self._read("/datasource/SmallStack") == b"true\n"
            assert await self._read("/latest/user-data") == SECRET
            document = json.loads(await self._read("/latest/dynamic/instance-identity/document"))
            assert (document["ip"], document["instance_id"]) == (self.station.ip, "i-good")
            self.rounds += 1
            await asyncio.sleep(0.01)

    async def _read(self, path: str) -> bytes:
        began = time.process_time()
        reply = await self.station.ask(path)
        self.slowest_s = max(self.slowest_s, time.process_time() - began)
        assert reply.status == 200
        return reply.body


async def test_a_fuzzing_guest_neither_stops_nor_slows_the_server_for_a_good_one(
    island: Island, good: Station, bad: Station, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    good.configure()
    bad.configure()
    guests = {
        good.ip: Guest(vm=good.vm, user_data=SECRET),
        bad.ip: Guest(vm=bad.vm, user_data=bytes(1000)),
    }
    callers = KnownCallers(guests=guests)
    server = MetadataServer(island.service, callers, LIMITS)
    attack, reader = Attack(server, bad), Reader(good)
    before_mib = resident_mib(os.getpid())
    await server.start()
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(reader.run(attack))
            for seed in range(ATTACKERS):
                group.create_task(attack.run(seed))
        for _ in range(3):
            assert (await bad.ask("/datasource/SmallStack")).body == b"true\n"
    finally:
        await server.close()
    counters = server.counters
    assert counters.requests + counters.malformed >= REQUESTS
    assert counters.malformed > 300
    assert counters.expired > 10
    assert counters.refused == 0
    assert attack.statuses == {b"200", b"400", b"401", b"403", b"404", b"405", b"413"}
    assert {ip for ip, _ in callers.reads} == {good.ip, bad.ip}
    assert reader.rounds > 50
    assert reader.slowest_s < 1
    assert resident_mib(os.getpid()) - before_mib < 48
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert caplog.records == []
