"""A guest without a certificate attacks the ports that guests can reach: nobody else notices, and all comes back.

attacker ─┐                  ┌─ as-… ═ metadata :80, DNS :53, the API at 169.254.169.254:6976
victim  ──┴─ br-lan (node) ──┴─ gateway 10.61.0.1: nothing for guests; the API at :6976 is for operators
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from atoll.api import hypervisor as api
from atoll.model.network import METADATA_IP, Subnet
from atoll.system import namespaces
from door_attacker import trusting
from node_labs import PORT, Guest, Node, a_site
from vitals import resident_mib

LAN = Subnet("lan", "10.61.0.0/24", "10.61.0.1")
ATTACKER = Path(__file__).parents[2] / "shared" / "door_attacker.py"
AT_MOST_S = 1.0
ROUNDS = 2
BACK_S = 20.0
TAKEN_AT_MOST = 80
"""Descriptors, of the thousands that are asked for: a guest's share of one port, and who else is there just now."""
SPARE_DESCRIPTORS = 8
LOG_BYTES = 1500
STRANGERS = 100
"""From the address that the operator calls from. Two attacks, and one whose connections come twice, can begin within
one second: together they stay under what one address may open in that time."""
MORE_MEMORY = 0.1
"""Of what it was, some seconds later."""

ATTACKS = [
    ("idle", LAN.gateway, PORT, 3000),
    ("idle", METADATA_IP, PORT, 3000),
    ("hello", METADATA_IP, PORT, 2000),
    ("trickle", METADATA_IP, PORT, 200),
    ("bodies", METADATA_IP, PORT, 150),
    ("garbage", METADATA_IP, PORT, 200),
    ("nonsense", METADATA_IP, PORT, 20),
    ("idle", METADATA_IP, 80, 2000),
    ("plain", METADATA_IP, 80, 300),
    ("idle", METADATA_IP, 53, 2000),
]


class Field:
    """A node, a guest that attacks it, and one that does not."""

    def __init__(self, node: Node) -> None:
        self.node = node
        node.give(LAN, "10.61.0.5", "10.61.0.6")
        vms = [node.create(name, "lan") for name in ("attacker", "victim")]
        self.attacker, self.victim = (node.guest(vm, "br-lan") for vm in vms)
        for guest, vm in zip((self.attacker, self.victim), vms, strict=True):
            guest.configure(vm.ip)
        self.victim.metadata()
        self.operator()

    def operator(self) -> None:
        assert self.node.call(api.NODE_SHOW).name == self.node.name

    def reads_metadata(self) -> None:
        assert self.victim.metadata()[0] == 200

    def reads_the_api(self) -> None:
        assert health(self.victim).startswith(b"HTTP/1.0 200 ")

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.node.pid}/fd"))

    def resident_mib(self) -> float:
        return resident_mib(self.node.pid)

    @contextmanager
    def under(
        self, kind: str, host: str, port: int, count: int, attacker: Guest | None = None
    ) -> Iterator[None]:
        command = [sys.executable, str(ATTACKER), kind, host, str(port), str(count)]
        process = namespaces.inside(
            (attacker or self.attacker).namespace,
            lambda: subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE),
        )
        with process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == b"holding\n"
                yield
            finally:
                process.kill()


def health(guest: Guest) -> bytes:
    with namespaces.socket_in(guest.namespace, socket.AF_INET, socket.SOCK_STREAM) as plain:
        plain.settimeout(5)
        plain.connect((METADATA_IP, PORT))
        with trusting().wrap_socket(plain) as client:
            client.sendall(b"GET /healthz HTTP/1.0\r\nHost: m\r\n\r\n")
            return client.recv(65536)


def took_s(what: Callable[[], None]) -> float:
    began = time.monotonic()
    what()
    return time.monotonic() - began


@pytest.fixture(scope="module")
def field(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Field]:
    with a_site(tmp_path_factory.mktemp("door")) as site:
        node = Node(site, "n1", "10.61.0.2", listen=["0.0.0.0"])
        node.start()
        yield Field(node)


def comes_back(field: Field, before_mib: float) -> None:
    """Memory that an attack took. What is free goes back to the host every few seconds."""
    until = time.monotonic() + BACK_S
    while (more := field.resident_mib() / before_mib - 1) > MORE_MEMORY:
        assert time.monotonic() < until, f"{more:.0%} more memory than before"
        time.sleep(0.1)


@pytest.mark.parametrize(("kind", "host", "port", "count"), ATTACKS)
def test_nobody_else_waits_and_all_comes_back(
    field: Field, kind: str, host: str, port: int, count: int
) -> None:
    descriptors, before_mib = field.descriptors(), field.resident_mib()
    log_bytes = field.node.log.stat().st_size
    with field.under(kind, host, port, count):
        waits_s = [
            took_s(what)
            for _ in range(ROUNDS)
            for what in (field.operator, field.reads_metadata, field.reads_the_api)
        ]
        assert max(waits_s) < AT_MOST_S
        assert field.descriptors() <= descriptors + TAKEN_AT_MOST
    until = time.monotonic() + BACK_S
    while (more := field.descriptors() - descriptors) > SPARE_DESCRIPTORS:
        assert time.monotonic() < until, f"{more} descriptors more than before"
        time.sleep(0.05)
    comes_back(field, before_mib)
    assert field.node.log.stat().st_size - log_bytes < LOG_BYTES


def test_memory_that_strangers_at_the_door_of_operators_took_comes_back(field: Field) -> None:
    before_mib, stranger = field.resident_mib(), Guest(field.node.namespace, "")
    for kind in ("idle", "hello", "garbage") * 4:
        with field.under(kind, "127.0.0.1", PORT, STRANGERS, attacker=stranger):
            field.operator()
    comes_back(field, before_mib)


def test_what_a_guest_sends_is_in_the_log_as_a_short_line_and_only_that(field: Field) -> None:
    until = time.monotonic() + BACK_S
    # Those that came just after another attack may have been turned away at the door.
    with field.under("nonsense", METADATA_IP, PORT, 20):
        while "a request that is not HTTP" not in (said := field.node.log.read_text()):
            assert time.monotonic() < until, said[-2000:]
            time.sleep(0.05)
    lines = [line for line in said.splitlines() if "10.61.0.5 on br-lan" in line]
    assert len(lines) < 20
    assert max(map(len, lines)) < 200
    assert "forged" not in said
    assert "\x1b" not in said
