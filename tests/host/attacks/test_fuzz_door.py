"""Fuzz of the API's port, by a caller without a certificate: TLS before the handshake, HTTP before the gate.

Seeded. ATOLL_ATTACK_INPUTS=n sends so many of each.
"""

from __future__ import annotations

import asyncio
import os
import random
import ssl
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from atoll.api import hypervisor as api
from atoll.system import namespaces
from door_attacker import trusting
from node_labs import PORT, Node, a_site

INPUTS = int(os.environ.get("ATOLL_ATTACK_INPUTS") or 3000)
AT_ONCE = 16
PIPELINED = 8
PAUSE_S = 0.02
"""Between two connections of a source: the door lets no more in than 1,000 a second."""
ADMITTED = ("atoll_door_connections_made_total", "operators", "admitted")
LOG_BYTES = 40_000
"""What all of it may write: each of the sources, each kind of complaint, and the numbers of those."""
KEPT = 1.10
SPARE_MIB = 16
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
        self.fuzz(Forge(0).records, None, AT_ONCE * 8)
        self.fuzz(Forge(0).requests, trusting(), AT_ONCE * 8)

    def fuzz(self, forge: Callable[[], bytes], tls: ssl.SSLContext | None, inputs: int) -> None:
        """So many inputs, each on a connection that is let in."""
        left, admitted = iter(range(inputs)), self.node.metrics()[ADMITTED]

        async def send(source: str) -> None:
            for _ in left:
                with suppress(OSError, TimeoutError, EOFError):
                    async with asyncio.timeout(5):
                        await one(source)
                await asyncio.sleep(PAUSE_S)

        async def one(source: str) -> None:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", PORT, ssl=tls, local_addr=(source, 0), server_hostname="m" if tls else None
            )
            try:
                writer.write(forge())
                if writer.can_write_eof():
                    writer.write_eof()
                    await reader.read()
                else:
                    # Answers come one after the other; what hangs is broken off, as a guest would.
                    with suppress(TimeoutError):
                        async with asyncio.timeout(0.05):
                            while await reader.read(65536):
                                pass
            finally:
                writer.transport.abort()

        async def all_of_them() -> None:
            await asyncio.gather(*(send(f"127.0.1.{number}") for number in range(1, AT_ONCE + 1)))

        namespaces.inside(self.node.namespace, lambda: asyncio.run(all_of_them()))
        assert self.node.metrics()[ADMITTED] - admitted >= inputs

    def resident_mib(self) -> float:
        return int(Path(f"/proc/{self.node.pid}/statm").read_text().split()[1]) * 4096 / (1 << 20)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with a_site(tmp_path_factory.mktemp("fuzz")) as site:
        node = Node(site, "n1", "10.62.0.2")
        node.start()
        yield Target(node)


@pytest.mark.parametrize("kind", ["before the handshake", "before the gate"])
def test_nothing_that_is_sent_harms_the_agent(target: Target, kind: str) -> None:
    forge, node = Forge(6976), target.node
    pid, before_mib = node.pid, target.resident_mib()
    if kind == "before the handshake":
        target.fuzz(forge.records, None, INPUTS)
    else:
        # Several requests are one connection.
        target.fuzz(forge.requests, trusting(), INPUTS // PIPELINED)
    assert node.call(api.NODE_SHOW).name == node.name
    assert node.pid == pid
    said = node.log.read_text()
    assert "Traceback" not in said
    assert " ERROR " not in said
    assert all(char.isprintable() for char in said.replace("\n", ""))
    assert len(said) < LOG_BYTES
    assert target.resident_mib() < before_mib * KEPT + SPARE_MIB
