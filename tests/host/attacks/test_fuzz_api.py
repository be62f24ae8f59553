"""Fuzz of the API by users who are known, and no operators: requests of every route, and WebSockets to consoles.

    user-0 … user-15, each with a VM ── TLS, with a certificate ── the agent ── a VM of somebody else

There are many of them, since each has a pace of its own. What counts is what the agent answered, other than with
"too many".
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
import time
from collections import Counter
from collections.abc import Iterator

import pytest

import attack_figures
from atoll.api import changes
from atoll.api import hypervisor as api
from atoll.errors import NotFound
from atoll.model.network import Subnet
from atoll.system import namespaces
from forges.api import ApiForge
from fuzz_shares import TIMEOUT_S, inputs_of
from node_labs import PORT, Node, Site, a_site
from vitals import Examination

pytestmark = pytest.mark.timeout(TIMEOUT_S)

PARSER = "API with a certificate"
LAN = Subnet("lan", "10.63.0.0/24", "10.63.0.1")
FOREIGN = "10.63.0.9"
USERS = 16
REQUESTS = 12
"""On one connection."""
SOCKETS = 4
"""One connection in so many is a WebSocket."""
BETWEEN = 2000
"""Inputs after which all that was made of them goes."""
QUIET_S = 0.2
ANSWER = re.compile(rb"HTTP/1\.1 (\d{3}) ")
SWITCHED, TOO_MANY, UNFORESEEN = 101, 429, 500


class User:
    """One who has a certificate, and a VM."""

    def __init__(self, name: str, context: ssl.SSLContext, seed: int) -> None:
        self.name, self.context = name, context
        self.forge = ApiForge(api.ROUTES, (name, name, name, "somebody", FOREIGN), seed)
        self.connections = 0

    def connection(self) -> bytes:
        self.connections += 1
        if self.connections % SOCKETS == 0:
            return self.forge.handshake() + self.forge.frames()
        return b"".join(self.forge.request() for _ in range(REQUESTS))


class Lab:
    def __init__(self, site: Site) -> None:
        self.node = Node(site, "n1", "10.63.0.2", overcommit={"cpus": 64})
        self.node.start()
        self.node.give(LAN, FOREIGN, *(f"10.63.0.{number}" for number in range(20, 30 + USERS)))
        self.foreign = self.node.create("somebody", LAN.id)
        names = [f"user-{number}" for number in range(USERS)]
        self.users = [User(name, site.context_of(name), seed) for seed, name in enumerate(names)]
        # Events of the past fill the place that there is for them: a part of it here already.
        self.seen = self.fuzz(inputs_of(PARSER) // 4)

    def fuzz(self, inputs: int) -> Counter[int]:
        """The answers to so many of them, by status. Every user has a VM now and then, whatever it did to it."""
        seen: Counter[int] = Counter()
        while _taken(seen) < inputs:
            for user in self.users:
                self.node.create(user.name, LAN.id, owner_users=(user.name,))
            seen += self._fuzz(min(inputs - _taken(seen), BETWEEN))
            for vm in self.node.call(api.VM_LIST):
                # Its owner may be destroying it just now.
                with contextlib.suppress(NotFound):
                    if vm.ip != FOREIGN:
                        self.node.call(changes.VM_CHANGE, {"vm": vm.ip}, changes.ChangeVm(protected=False))
                        self.node.call(api.VM_DESTROY, {"vm": vm.ip})
        return seen

    def _fuzz(self, inputs: int) -> Counter[int]:
        seen: Counter[int] = Counter()

        async def send(user: User) -> None:
            while _taken(seen) < inputs:
                with contextlib.suppress(OSError, TimeoutError, EOFError):
                    async with asyncio.timeout(5):
                        seen.update(await answers(user))

        async def all_of_them() -> None:
            await asyncio.gather(*map(send, self.users))

        namespaces.inside(self.node.namespace, lambda: asyncio.run(all_of_them()))
        return seen


def _taken(seen: Counter[int]) -> int:
    return seen.total() - seen[TOO_MANY]


async def answers(user: User) -> list[int]:
    """The statuses of all answers on one connection, until no more come for a while."""
    reader, writer = await asyncio.open_connection("127.0.0.1", PORT, ssl=user.context)
    received = bytearray()
    try:
        writer.write(user.connection())
        with contextlib.suppress(OSError, TimeoutError):
            while len(ANSWER.findall(received)) < REQUESTS:
                async with asyncio.timeout(QUIET_S):
                    piece = await reader.read(1 << 16)
                if not piece:
                    break
                received += piece
    finally:
        writer.transport.abort()
    return [int(status) for status in ANSWER.findall(received)]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with a_site(tmp_path_factory.mktemp("fuzz")) as site:
        yield Lab(site)


def test_nothing_that_a_user_calls_harms_the_agent_or_the_vm_of_another(lab: Lab) -> None:
    examination, began = Examination(lab.node), time.monotonic()
    seen = lab.fuzz(inputs_of(PARSER))
    seconds = time.monotonic() - began
    assert not seen[UNFORESEEN]
    assert {200, 400, 403, 404, SWITCHED} <= (lab.seen | seen).keys(), "all kinds of answers came"
    assert lab.node.call(api.VM_LIST) == (lab.foreign,)
    after = examination.passed()
    attack_figures.tell_fuzz(
        PARSER,
        inputs=_taken(seen),
        answered=seen[200],
        before=examination.before,
        after=after,
        seconds=seconds,
    )
