"""Fuzz of all that guests can send to their node: a real agent, its real firewall, frames on the ports of its VMs.

    hostile guests ── at-… ─┐ br-lan ── as-… ═ DHCP, DHCPv6, router, TFTP, DNS, metadata, netboot
    a good guest ──── at-… ─┘

There are many of them, since each has a pace of its own. What counts is what the agent says that it looked at: neither
what the firewall dropped nor what was beyond somebody's pace. All the while the good guest gets what it asks for.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator

import pytest

import attack_figures
from atoll.guestnet.netboot.names import HTTP_PORT
from atoll.guestnet.tftp import codec as tftp
from atoll.model.network import METADATA_IP, Subnet
from atoll.model.vm import VM
from atoll.plan.macs import service_mac
from atoll.system import namespaces
from forges.dhcp import DhcpForge
from forges.dns import DnsForge
from forges.http import BOOT_TARGETS, METADATA_TARGETS, HttpForge
from forges.ipv6 import Dhcp6Forge, SolicitationForge
from forges.tftp import TftpForge
from fuzz_shares import TIMEOUT_S, inputs_of
from node_labs import Guest, Node, Site, a_site
from vitals import Examination

pytestmark = pytest.mark.timeout(TIMEOUT_S)

LAN = Subnet("lan", "10.61.0.0/24", "10.61.0.1", cidr6="fd00:61::/64", gateway6="fd00:61::1")
BRIDGE = LAN.bridge_name
HOSTILE = 80
GOOD = "10.61.0.9"
FILE = b"what is booted\n" * 100
WARM_UP = 500
LOOK_EVERY_S = 0.3
AT_ONCE = 24
PIPELINED = 24
IN_TIME_S = 10.0
SENT_AGAIN_S = 1.3
"""A transfer that hears nothing says its last again within this time."""


class Hostile:
    """A guest that sends what it likes."""

    def __init__(self, guest: Guest, vm: VM, number: int, lab: Lab) -> None:
        self.guest = guest
        self.frames = namespaces.socket_in(guest.namespace, socket.AF_PACKET, socket.SOCK_RAW)
        self.frames.bind(("eth0", 0))
        self.datagrams = namespaces.socket_in(guest.namespace, socket.AF_INET, socket.SOCK_DGRAM)
        self.datagrams.setblocking(False)
        mac = service_mac(lab.node.identity, BRIDGE)
        assert vm.ip6 is not None
        self.dhcp = DhcpForge(vm.mac, vm.ip, number)
        self.dhcp6 = Dhcp6Forge(vm.mac, vm.ip6, mac, number)
        self.solicitations = SolicitationForge(vm.mac, vm.ip6, mac, number)
        self.tftp = TftpForge(number)
        self.dns = DnsForge(("good.lan", "good", "9.0.61.10.in-addr.arpa", "example.org"), number)
        self.metadata = HttpForge(METADATA_TARGETS, PIPELINED, number)
        self.boot = HttpForge(BOOT_TARGETS, PIPELINED, number)

    def send_frame(self, frame: bytes) -> None:
        with contextlib.suppress(OSError):
            self.frames.send(frame)

    def send(self, data: bytes, target: tuple[str, int]) -> None:
        with contextlib.suppress(OSError):
            self.datagrams.sendto(data, target)

    def replies(self) -> Iterator[tuple[bytes, tuple[str, int]]]:
        with contextlib.suppress(OSError):
            while True:
                yield self.datagrams.recvfrom(2048)

    def close(self) -> None:
        self.frames.close()
        self.datagrams.close()


class Good:
    """A guest that asks for what is its own, over and over."""

    def __init__(self, guest: Guest) -> None:
        self._guest = guest
        self.rounds = 0
        self._failure: BaseException | None = None

    def ask(self) -> None:
        assert self._guest.lease()["ip"] == GOOD
        assert self._guest.metadata("/latest/meta-data/local-ipv4", IN_TIME_S) == (200, GOOD)
        assert self._address_of("good") == socket.inet_aton(GOOD)
        assert self._fetched("file") == FILE
        assert self._downloaded("/file") == FILE
        self.rounds += 1

    @contextlib.contextmanager
    def goes_on(self) -> Iterator[None]:
        """While the block runs, and at least once; what fails there fails here."""
        over = threading.Event()

        def again_and_again() -> None:
            try:
                while not over.is_set():
                    self.ask()
                    over.wait(0.5)
            except BaseException as error:
                self._failure = error

        before, thread = self.rounds, threading.Thread(target=again_and_again)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
        if self._failure is not None:
            raise self._failure
        assert self.rounds > before

    def _address_of(self, name: str) -> bytes:
        labels = b"".join(
            bytes((len(label),)) + label.encode() for label in f"{name}.{LAN.search_domain}".split(".")
        )
        question = struct.pack("!HHHHHH", 7, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!HH", 1, 1)
        return self._asked(question, 53)[-4:]

    def _asked(self, data: bytes, port: int) -> bytes:
        """The answer; asked again as a client does, since datagrams are lost."""
        with namespaces.socket_in(self._guest.namespace, socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.settimeout(2)
            for _ in range(5):
                client.sendto(data, (METADATA_IP, port))
                with contextlib.suppress(TimeoutError):
                    return client.recv(2048)
        raise TimeoutError(f"no answer from port {port}")

    def _fetched(self, name: str) -> bytes:
        """By TFTP, in one block."""
        options = {"blksize": "1400", "tsize": "0"}
        with namespaces.socket_in(self._guest.namespace, socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.settimeout(2)
            for _ in range(5):
                client.sendto(tftp.build(tftp.Request(name, tftp.Mode.OCTET, options)), (METADATA_IP, 69))
                with contextlib.suppress(TimeoutError):
                    return self._received(client)
        raise TimeoutError("no file by TFTP")

    def _received(self, client: socket.socket) -> bytes:
        whole, block = b"", 0
        while True:
            data, peer = client.recvfrom(2048)
            match tftp.parse(data):
                case tftp.Options():
                    client.sendto(tftp.build(tftp.Ack(0)), peer)
                case tftp.Data(number, payload):
                    client.sendto(tftp.build(tftp.Ack(number)), peer)
                    if number == block + 1:
                        whole, block = whole + payload, number
                    if len(payload) < 1400:
                        return whole

    def _downloaded(self, path: str) -> bytes:
        with namespaces.socket_in(self._guest.namespace, socket.AF_INET, socket.SOCK_STREAM) as client:
            client.settimeout(IN_TIME_S)
            client.connect((METADATA_IP, HTTP_PORT))
            client.sendall(f"GET {path} HTTP/1.0\r\nHost: m\r\n\r\n".encode())
            reply = b"".join(iter(lambda: client.recv(65536), b""))
        return reply.partition(b"\r\n\r\n")[2]


class Lab:
    """The picture above, warmed up: with as much of everything as a busy node has at any time."""

    def __init__(self, site: Site) -> None:
        self.node = Node(site, "n1", "10.61.0.2", overcommit={"cpus": 64})
        shared = site.directory / "n1" / "tftp" / "netboot"
        shared.mkdir(parents=True)
        (shared / "file").write_bytes(FILE)
        self.node.start()
        ips = [f"10.61.0.{number}" for number in range(20, 20 + HOSTILE)]
        self.node.give(LAN, GOOD, *ips)
        self.good = Good(self._guest(self.node.create("good", LAN.id)))
        vms = [self.node.create(f"hostile-{number}", LAN.id) for number in range(HOSTILE)]
        self.hostile = [Hostile(self._guest(vm), vm, number, self) for number, vm in enumerate(vms)]
        for each in self.hostile:
            site.stack.callback(each.close)
        for attack in ATTACKS.values():
            attack(self, WARM_UP)
        self.good.ask()

    def _guest(self, vm: VM) -> Guest:
        guest = self.node.guest(vm, BRIDGE)
        guest.configure(vm.ip)
        return guest

    def counted(self, name: str, *labels: str) -> dict[str, float]:
        """By result, what the agent counts under this name."""
        return {
            key[2]: count
            for key, count in self.node.metrics().items()
            if key[:2] == (name, BRIDGE) and key[3:] == labels
        }


class Attack:
    """What is sent until the agent has looked at so many of it, as it counts them itself."""

    def __init__(
        self,
        name: str,
        labels: tuple[str, ...],
        not_read: tuple[str, ...],
        answered: tuple[str, ...],
        send: Callable[[Lab, Callable[[], bool]], None],
    ) -> None:
        self._name, self._labels, self._not_read, self._answered = name, labels, not_read, answered
        self._send = send
        self.read = self.answered = 0

    def __call__(self, lab: Lab, inputs: int) -> None:
        before = lab.counted(self._name, *self._labels)
        looked_at = 0.0

        def over() -> bool:
            nonlocal looked_at
            if time.monotonic() - looked_at < LOOK_EVERY_S:
                return False
            looked_at = time.monotonic()
            now = lab.counted(self._name, *self._labels)
            self.read = int(
                sum(now[result] - before[result] for result in now if result not in self._not_read)
            )
            self.answered = int(sum(now[result] - before[result] for result in self._answered))
            return self.read >= inputs

        self._send(lab, over)


def paced(per_s: float, one: Callable[[Hostile], None]) -> Callable[[Lab, Callable[[], bool]], None]:
    """Of each guest one thing after the other, at a pace that it is allowed."""

    def send(lab: Lab, over: Callable[[], bool]) -> None:
        at = time.monotonic()
        while not over():
            for hostile in lab.hostile:
                one(hostile)
            at += 1 / per_s
            if (early_s := at - time.monotonic()) > 0:
                time.sleep(early_s)
            else:
                at = time.monotonic()

    return send


def fetching(lab: Lab, over: Callable[[], bool]) -> None:
    """Files, by TFTP. Transfers that are under way in the end are broken off."""
    paced(40, ask_tftp)(lab, over)
    until = time.monotonic() + SENT_AGAIN_S
    while time.monotonic() < until:
        for hostile in lab.hostile:
            for _, peer in hostile.replies():
                hostile.send(tftp.build(tftp.Error(0, "")), peer)
        time.sleep(0.05)


def ask_tftp(hostile: Hostile) -> None:
    """Port 69, and the transfers that come of it."""
    for _, peer in hostile.replies():
        if peer[1] != 69:
            hostile.send(
                hostile.tftp.packet() if hostile.tftp.one_in(3) else tftp.build(tftp.Error(0, "")), peer
            )
    hostile.send(hostile.tftp.packet(), (METADATA_IP, 69))


def ask_dns(hostile: Hostile) -> None:
    for _ in hostile.replies():
        pass
    hostile.send(hostile.dns.message(), (METADATA_IP, 53))


def connecting(port: int, made: Callable[[Hostile], bytes]) -> Callable[[Lab, Callable[[], bool]], None]:
    """Connections of several guests at a time, one after the other of each."""

    async def one(hostile: Hostile) -> None:
        client = namespaces.socket_in(hostile.guest.namespace, socket.AF_INET, socket.SOCK_STREAM)
        client.setblocking(False)
        writer = None
        try:
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(2):
                    await asyncio.get_running_loop().sock_connect(client, (METADATA_IP, port))
                    reader, writer = await asyncio.open_connection(sock=client)
                    writer.write(made(hostile))
                    # What is not answered at once is broken off: a guest need not wait.
                    async with asyncio.timeout(0.3):
                        while await reader.read(1 << 16):
                            pass
        finally:
            if writer is not None:
                writer.transport.abort()
            client.close()

    async def all_of_them(lab: Lab, over: Callable[[], bool]) -> None:
        guests = itertools.cycle(lab.hostile)
        ended = False

        async def again_and_again() -> None:
            nonlocal ended
            while not ended:
                await one(next(guests))

        attackers = [asyncio.create_task(again_and_again()) for _ in range(AT_ONCE)]
        while not await asyncio.to_thread(over):
            await asyncio.sleep(LOOK_EVERY_S)
        ended = True
        await asyncio.gather(*attackers)

    return lambda lab, over: asyncio.run(all_of_them(lab, over))


def both(*ways: Callable[[Lab, Callable[[], bool]], None]) -> Callable[[Lab, Callable[[], bool]], None]:
    """At the same time."""

    def send(lab: Lab, over: Callable[[], bool]) -> None:
        first, *rest = ways
        ended = threading.Event()
        threads = [threading.Thread(target=way, args=(lab, ended.is_set)) for way in rest]
        for thread in threads:
            thread.start()
        try:
            first(lab, over)
        finally:
            ended.set()
            for thread in threads:
                thread.join()

    return send


FRAMES, HTTP = "atoll_guest_frames_total", "atoll_guest_http_total"
ATTACKS = {
    "DHCP": Attack(
        *(FRAMES, ("dhcp",), ("excess",), ("answered",)),
        # The firewall lets 20 a second of a guest pass.
        paced(
            19,
            lambda one: one.send_frame(one.dhcp.broken_frame() if one.dhcp.one_in(20) else one.dhcp.frame()),
        ),
    ),
    "DHCPv6": Attack(
        *(FRAMES, ("dhcp6",), ("excess",), ("answered",)),
        paced(19, lambda one: one.send_frame(one.dhcp6.frame())),
    ),
    "router solicitations": Attack(
        *(FRAMES, ("ra",), ("excess",), ("answered",)),
        paced(9.5, lambda one: one.send_frame(one.solicitations.frame())),
    ),
    "TFTP": Attack(
        *("atoll_guest_tftp_packets_total", ("tftp",), ("excess",), ("started", "refused")),
        fetching,
    ),
    "DNS": Attack(
        *("atoll_dns_questions_total", (), ("excess",), ("answered", "refused")),
        both(paced(40, ask_dns), connecting(53, lambda one: one.dns.stream(PIPELINED))),
    ),
    "metadata": Attack(
        *(HTTP, ("metadata",), ("connections", "refused", "expired"), ("requests",)),
        connecting(80, lambda one: one.metadata.connection()),
    ),
    "netboot": Attack(
        *(HTTP, ("boot",), ("connections", "refused", "expired"), ("requests",)),
        connecting(HTTP_PORT, lambda one: one.boot.connection()),
    ),
}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with a_site(tmp_path_factory.mktemp("fuzz")) as site:
        yield Lab(site)


@pytest.mark.parametrize("parser", ATTACKS)
def test_nothing_that_guests_send_harms_the_agent_or_a_good_guest(lab: Lab, parser: str) -> None:
    attack, inputs, began = ATTACKS[parser], inputs_of(parser), time.monotonic()
    examination = Examination(lab.node)
    with lab.good.goes_on():
        attack(lab, inputs)
    seconds = time.monotonic() - began
    lab.good.ask()
    after = examination.passed()
    assert attack.answered > 0, "some of it was good enough for an answer"
    attack_figures.tell_fuzz(
        parser,
        inputs=attack.read,
        answered=attack.answered,
        before=examination.before,
        after=after,
        seconds=seconds,
    )
