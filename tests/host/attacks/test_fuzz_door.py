"""Fuzz of the API's port, by a caller without a certificate: TLS before the handshake, HTTP before the gate. Seeded."""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress

import pytest

import attack_figures
from atoll.system import namespaces
from door_attacker import trusting
from fuzz_shares import TIMEOUT_S, inputs_of
from node_labs import PORT, Node, a_site
from vitals import Examination

pytestmark = pytest.mark.timeout(TIMEOUT_S)

AT_ONCE = 16
PIPELINED = 8
PAUSE_S = 0.02
"""Between two connections of a source: the door lets no more in than 1,000 a second."""
QUIET_S = 0.05
ADMITTED = ("atoll_door_connections_made_total", "operators", "admitted")
GARBAGE = [chr(byte) for byte in range(256)]
TARGETS = (
    "/",
    "/healthz",
    "/v1/vms",
    "/v1/vms/web",
    "/openapi.json",
    "/v1/vms/%00",
    "//",
    "/../..",
    "*",
    "http://x/",
)
FIELDS = (
    "Content-Length: 5",
    "Content-Length: -1",
    "Content-Length: 99999999999999999999",
    "Transfer-Encoding: chunked",
    "Transfer-Encoding: chunked\r\nContent-Length: 3",
    "Connection: upgrade\r\nUpgrade: websocket",
    "Connection: close",
    "Expect: 100-continue",
    "Content-Type: application/json",
    "Content-Encoding: gzip",
    "Origin: https://elsewhere.example",
    "Host: again",
    " folded: line",
    "X: " + "y" * 9000,
    "A: b\r\n" * 100,
    "\x00: \x1b[31m",
)


class Forge:
    """Makes what a hostile client sends."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._hello = client_hello()

    def records(self) -> bytes:
        """For a port that expects the beginning of a TLS handshake."""
        pick = self.random
        match pick.randrange(6):
            case 0:
                return pick.randbytes(pick.randrange(1, 2000))
            case 1:
                return self._hello[: pick.randrange(1, len(self._hello))]
            case 2:
                return self._hello + pick.randbytes(pick.randrange(1, 500))
            case 3:
                size = pick.randrange(1 << 16)
                kind = pick.choice((20, 21, 22, 23, 24, 255))
                return (
                    bytes((kind, 3, pick.randrange(5)))
                    + size.to_bytes(2, "big")
                    + pick.randbytes(min(size, 3000))
                )
            case 4:
                return self._requests(1)
            case _:
                return self._damaged(self._hello)

    def requests(self) -> bytes:
        """For a server that expects HTTP: some of it is, and the last of it is not."""
        return self._requests(PIPELINED) + self._damaged(self._requests(1))

    def _requests(self, count: int) -> bytes:
        return "".join(self._request() for _ in range(count)).encode("latin-1")

    def _request(self) -> str:
        pick = self.random
        verb = pick.choice(
            (
                "GET",
                "GET",
                "POST",
                "PUT",
                "DELETE",
                "PATCH",
                "OPTIONS",
                "TRACE",
                "HEAD",
                "CONNECT",
                "\x16\x03",
            )
        )
        target = pick.choice(TARGETS) if pick.random() < 0.8 else "/" + "".join(pick.choices(GARBAGE, k=40))
        # Mostly what can be read, so that more than the first of them is looked at.
        fields = pick.sample(FIELDS, k=pick.choice((0, 0, 0, 1, 2)))
        return "\r\n".join((f"{verb} {target} HTTP/1.1", "Host: m", *fields, "", ""))

    def _damaged(self, sent: bytes) -> bytes:
        data = bytearray(sent)
        for _ in range(self.random.randrange(1, 8)):
            data[self.random.randrange(len(data))] = self.random.randrange(256)
        return bytes(data)


def client_hello() -> bytes:
    outgoing = ssl.MemoryBIO()
    client = trusting().wrap_bio(ssl.MemoryBIO(), outgoing)
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


class Target:
    """An agent, and what it takes of the host."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.warm_up()

    def warm_up(self) -> None:
        """As much of everything as a node uses at any time."""
        self.handshakes(Forge(0), AT_ONCE * 8)
        self.requests(Forge(0), AT_ONCE * 32)

    def handshakes(self, forge: Forge, inputs: int) -> int:
        """So many that are none, each on a connection that is let in; how many of them brought something back."""
        left, admitted, answered = iter(range(inputs)), self.node.metrics()[ADMITTED], 0

        async def one(source: str) -> bool:
            nonlocal answered
            if next(left, None) is None:
                return False
            reader, writer = await asyncio.open_connection("127.0.0.1", PORT, local_addr=(source, 0))
            try:
                writer.write(forge.records())
                writer.write_eof()
                answered += bool(await reader.read())
            finally:
                writer.transport.abort()
            return True

        self._again_and_again(one)
        assert self.node.metrics()[ADMITTED] - admitted >= inputs
        return answered

    def requests(self, forge: Forge, inputs: int) -> int:
        """So many that are answered; how many were."""
        tls, answered = trusting(), 0

        async def one(source: str) -> bool:
            nonlocal answered
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", PORT, ssl=tls, local_addr=(source, 0), server_hostname="m"
            )
            received = bytearray()
            try:
                writer.write(forge.requests())
                # Answers come one after the other; what hangs is broken off, as a guest would.
                with suppress(TimeoutError):
                    async with asyncio.timeout(QUIET_S):
                        while piece := await reader.read(65536):
                            received += piece
            finally:
                writer.transport.abort()
                answered += received.count(b"HTTP/1.1 ")
            return answered < inputs

        self._again_and_again(one)
        return answered

    def _again_and_again(self, one: Callable[[str], Awaitable[bool]]) -> None:
        """From several sources, until there is no more to do."""

        async def send(source: str) -> None:
            more = True
            while more:
                with suppress(OSError, TimeoutError, EOFError):
                    async with asyncio.timeout(5):
                        more = await one(source)
                await asyncio.sleep(PAUSE_S)

        async def all_of_them() -> None:
            await asyncio.gather(*(send(f"127.0.1.{number}") for number in range(1, AT_ONCE + 1)))

        namespaces.inside(self.node.namespace, lambda: asyncio.run(all_of_them()))


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with a_site(tmp_path_factory.mktemp("fuzz")) as site:
        node = Node(site, "n1", "10.62.0.2")
        node.start()
        yield Target(node)


@pytest.mark.parametrize("parser", ["TLS before the handshake", "API before the gate"])
def test_nothing_that_is_sent_harms_the_agent(target: Target, parser: str) -> None:
    forge, inputs, began = Forge(6976), inputs_of(parser), time.monotonic()
    examination = Examination(target.node)
    if parser == "TLS before the handshake":
        answered = target.handshakes(forge, inputs)
    else:
        inputs = answered = target.requests(forge, inputs)
    seconds = time.monotonic() - began
    after = examination.passed()
    attack_figures.tell_fuzz(
        parser, inputs=inputs, answered=answered, before=examination.before, after=after, seconds=seconds
    )
