"""The DNS server on real links, asked by a real client; and what it asks of a server elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING

import dns.flags
import dns.message
import dns.rrset
import msgspec
import pytest
from dns.message import Message
from dns.rcode import Rcode
from msgspec import structs

from atoll.guestnet.dns import forward
from atoll.guestnet.dns.forward import Forwarder
from atoll.guestnet.dns.names import Directory, Known, View
from atoll.guestnet.dns.server import DnsServer
from atoll.guestnet.http.limits import Limits
from atoll.model.network import METADATA_IP, METADATA_IP6, Subnet
from atoll.model.vm import VM
from atoll.system import namespaces, processes
from atoll.system.links import Links

if TYPE_CHECKING:
    from tests.host.guestnet.conftest import Island, Station

SUBNET = Subnet(
    id="blue",
    cidr="10.77.0.0/24",
    gateway="10.77.0.1",
    domain="blue.test",
    mtu=1400,
    cidr6="fd77::/64",
    gateway6="fd77::1",
)
UPSTREAM = "127.0.0.53"


def in_order(reply: Message) -> bytes:
    return reply.to_wire(max_size=65535, want_shuffle=False)


class Upstream:
    """A server in a namespace of its own, on its loopback, as those are that hosts run for themselves."""

    def __init__(self, namespace: str, stack: contextlib.AsyncExitStack) -> None:
        self.namespace = namespace
        self.questions: list[str] = []
        self.udp_answers: Callable[[Message], list[bytes]] = lambda query: [in_order(self.reply(query))]
        self._stack = stack

    async def start(self, ip: str = UPSTREAM) -> None:
        port = namespaces.socket_in(self.namespace, socket.AF_INET, socket.SOCK_DGRAM)
        port.setblocking(False)
        port.bind((ip, 53))
        loop = asyncio.get_running_loop()
        loop.add_reader(port.fileno(), self._readable, port)
        self._stack.callback(port.close)
        self._stack.callback(loop.remove_reader, port.fileno())
        listening = namespaces.socket_in(self.namespace, socket.AF_INET, socket.SOCK_STREAM)
        listening.bind((ip, 53))
        listener = await asyncio.start_server(self._connected, sock=listening)
        self._stack.callback(listener.close)

    def reply(self, query: Message, count: int = 2) -> Message:
        reply = dns.message.make_response(query, recursion_available=True)
        name = query.question[0].name
        if name.to_text().startswith("none."):
            reply.set_rcode(Rcode.NXDOMAIN)
            soa = "ns.example.test. root.example.test. 1 2 3 4 60"
            reply.authority.append(dns.rrset.from_text("example.test.", 60, "IN", "SOA", soa))
        else:
            ips = [f"192.0.2.{number}" for number in range(1, count + 1)]
            reply.answer.append(dns.rrset.from_text_list(name, 60, "IN", "A", ips))
        return reply

    def _readable(self, port: socket.socket) -> None:
        data, peer = port.recvfrom(4096)
        query = dns.message.from_wire(data)
        self.questions.append(f"udp {query.question[0].name}")
        for answer in self.udp_answers(query):
            port.sendto(answer, peer)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            length = int.from_bytes(await reader.readexactly(2), "big")
            query = dns.message.from_wire(await reader.readexactly(length))
            self.questions.append(f"tcp {query.question[0].name}")
            answer = in_order(self.reply(query, 150))
            writer.write(len(answer).to_bytes(2, "big") + answer)
            await writer.drain()


@pytest.fixture
async def upstream(island: Island) -> AsyncIterator[Upstream]:
    name = f"{island.service}-up"
    namespaces.ensure(name)
    try:
        async with contextlib.AsyncExitStack() as stack:
            upstream = Upstream(name, stack)
            await upstream.start()
            yield upstream
    finally:
        namespaces.delete(name)


def of_subnet(station: Station) -> VM:
    return structs.replace(station.vm, ip6=SUBNET.ip6_of(station.mac))


class Lab:
    """A server and what it knows."""

    def __init__(self, island: Island, upstream: Upstream | None) -> None:
        self.namespace = island.service
        self.known = Known((SUBNET,), ())
        self.servers: tuple[str, ...] = (UPSTREAM,)
        self.directory = Directory(lambda: self.known)
        self.forwarder: Forwarder | None = None
        if upstream is not None:
            outside = upstream.namespace
            self.forwarder = Forwarder(
                self._servers, lambda family, kind: namespaces.socket_in(outside, family, kind)
            )
        self.server = self.make()

    def make(self, limits: Limits | None = None) -> DnsServer:
        more = (limits,) if limits else ()
        return DnsServer(self.namespace, self.find, self.forwarder, SUBNET.mtu, *more)

    def find(self, ip: str) -> View | None:
        return self.directory.view(["blue"], ip)

    def add(self, *stations: Station) -> None:
        vms = (*self.known.vms, *map(of_subnet, stations))
        self.known = structs.replace(self.known, vms=vms)

    async def _servers(self) -> tuple[str, ...]:
        return self.servers


@pytest.fixture
async def lab(island: Island, good: Station, bad: Station, upstream: Upstream) -> AsyncIterator[Lab]:
    """A server that knows the good and the bad guest, and asks the one upstream for all else."""
    with Links(island.bridge) as links:
        links.allow_ipv6("br0")
    with Links(island.service) as links:
        links.allow_ipv6("eth0")
        links.add_address("eth0", f"{METADATA_IP6}/128")
        links.ensure_route("fd77::/64", link="eth0")
    lab = Lab(island, upstream)
    for station in (good, bad):
        station.configure()
        with Links(station.namespace) as links:
            links.allow_ipv6("eth0")
            links.add_address("eth0", f"{SUBNET.ip6_of(station.mac)}/64")
            links.ensure_route(f"{METADATA_IP6}/128", link="eth0")
    lab.add(good, bad)
    await lab.server.start()
    yield lab
    await lab.server.close()
    assert lab.forwarder is not None
    await lab.forwarder.close()


async def dig(station: Station, *words: str, server: str = METADATA_IP) -> str:
    """What dig prints; without its remarks where +short is asked for."""
    done = await processes.run(
        ["dig", "+time=5", "+tries=1", f"@{server}", *words], check=False, namespace=station.namespace
    )
    return done.stdout.decode()


async def short(station: Station, *words: str, server: str = METADATA_IP) -> list[str]:
    return (await dig(station, "+short", *words, server=server)).split()


@contextlib.contextmanager
def udp(station: Station) -> Iterator[socket.socket]:
    with station.socket(socket.AF_INET, socket.SOCK_DGRAM) as port:
        port.setblocking(False)
        port.connect((METADATA_IP, 53))
        yield port


async def hear(port: socket.socket, timeout_s: float = 8) -> Message:
    async with asyncio.timeout(timeout_s):
        return dns.message.from_wire(await asyncio.get_running_loop().sock_recv(port, 65535))


def question(name: str, kind: str = "A") -> bytes:
    return dns.message.make_query(name, kind).to_wire()


def check_sums(lab: Lab) -> None:
    fates = msgspec.structs.asdict(lab.server.counters)
    assert fates.pop("received") == sum(fates.values())


@pytest.mark.parametrize("server", [METADATA_IP, METADATA_IP6])
@pytest.mark.parametrize("way", ["+notcp", "+tcp"])
async def test_a_guest_finds_another_by_name_and_by_address(
    lab: Lab, good: Station, bad: Station, way: str, server: str
) -> None:
    ip6 = SUBNET.ip6_of(bad.mac)
    for name in ("bad", "bad.blue.test", "BAD.atoll.internal"):
        assert await short(good, way, name, "A", server=server) == [bad.ip]
        assert await short(good, way, name, "AAAA", server=server) == [ip6]
    assert await short(good, way, "-x", bad.ip, server=server) == ["bad.blue.test."]
    assert await short(good, way, "-x", ip6, server=server) == ["bad.blue.test."]
    told = await dig(good, way, "nobody.blue.test", server=server)
    assert "status: NXDOMAIN" in told
    assert "SOA" in told
    assert lab.server.counters.answered == 9


async def test_other_names_are_asked_for_once_and_then_known(
    lab: Lab, upstream: Upstream, good: Station, bad: Station
) -> None:
    first = await dig(good, "www.example.test")
    assert "status: NOERROR" in first
    assert "flags: qr rd ra" in first
    assert "192.0.2.2" in first
    assert await short(bad, "WWW.example.test") == ["192.0.2.1", "192.0.2.2"]
    for station in (good, bad):
        assert "status: NXDOMAIN" in await dig(station, "none.example.test")
    assert upstream.questions == ["udp www.example.test.", "udp none.example.test."]
    assert lab.forwarder is not None
    counters = lab.forwarder.counters
    assert (counters.received, counters.asked, counters.cached, counters.answered) == (4, 2, 2, 2)
    check_sums(lab)


async def test_names_of_ours_never_leave_the_node(lab: Lab, upstream: Upstream, good: Station) -> None:
    for words in (["nobody.atoll.internal"], ["nobody.blue.test"], ["-x", "10.77.0.99"], ["nobody"]):
        assert "status: NXDOMAIN" in await dig(good, *words)
    assert upstream.questions == []


async def test_the_same_question_of_many_is_asked_once(
    lab: Lab, upstream: Upstream, good: Station, bad: Station
) -> None:
    held: list[Message] = []
    upstream.udp_answers = lambda query: held.append(query) or []  # type: ignore[func-returns-value]
    with udp(good) as first, udp(bad) as second:
        for port in (first, second, first):
            port.send(question("slow.example.test"))
        replies = [await hear(port) for port in (first, first, second)]
    # Nobody answered, and the guests are told so before they would ask again.
    assert [reply.rcode() for reply in replies] == [Rcode.SERVFAIL] * 3
    assert 1 <= len(held) <= forward.ROUNDS
    assert lab.forwarder is not None
    counters = lab.forwarder.counters
    assert (counters.asked, counters.joined, counters.failed) == (1, 2, 1)


async def test_what_is_too_long_comes_over_tcp(lab: Lab, upstream: Upstream, good: Station) -> None:
    def cut(query: Message) -> list[bytes]:
        reply = upstream.reply(query, 1)
        reply.flags |= dns.flags.TC
        return [reply.to_wire()]

    upstream.udp_answers = cut
    told = await dig(good, "long.example.test", "+bufsize=512")
    assert "retrying in TCP mode" in told
    assert "192.0.2.150" in told
    assert upstream.questions == ["udp long.example.test.", "tcp long.example.test."]


async def test_a_forged_reply_does_not_count(lab: Lab, upstream: Upstream, good: Station) -> None:
    def forged(query: Message) -> list[bytes]:
        wrong_number = upstream.reply(query, 1)
        wrong_number.id ^= 1
        other = dns.message.make_query("other.example.test.", "A")
        other.id = query.id
        right = in_order(upstream.reply(query, 2))
        return [b"\0", wrong_number.to_wire(), upstream.reply(other, 1).to_wire(), right]

    upstream.udp_answers = forged
    assert await short(good, "www.example.test") == ["192.0.2.1", "192.0.2.2"]
    assert len(upstream.questions) == 1


async def test_where_one_server_fails_the_next_one_is_asked(
    lab: Lab, upstream: Upstream, good: Station, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forward, "WAIT_S", 0.2)
    lab.servers = ("127.0.0.99", UPSTREAM)  # nobody is there: the kernel says so at once
    assert await short(good, "one.example.test") == ["192.0.2.1", "192.0.2.2"]

    def grumpy(query: Message) -> list[bytes]:
        reply = upstream.reply(query)
        if len(upstream.questions) == 2:
            reply.set_rcode(Rcode.SERVFAIL)
        return [in_order(reply)]

    upstream.udp_answers = grumpy
    lab.servers = (UPSTREAM, UPSTREAM)
    assert await short(good, "two.example.test") == ["192.0.2.1", "192.0.2.2"]
    assert upstream.questions[1:] == ["udp two.example.test."] * 2


async def test_a_guest_that_asks_too_much_at_once_waits_and_others_do_not(
    lab: Lab, upstream: Upstream, good: Station, bad: Station
) -> None:
    answering = upstream.udp_answers
    upstream.udp_answers = lambda query: [] if "slow" in str(query.question[0].name) else answering(query)
    with udp(bad) as port:
        for number in range(forward.AT_ONCE_PER_GUEST + 10):
            port.send(question(f"slow{number}.example.test"))
        assert await short(good, "www.example.test") == ["192.0.2.1", "192.0.2.2"]
    assert lab.forwarder is not None
    assert lab.forwarder.counters.excess == 10


async def test_where_nothing_is_forwarded_other_names_are_refused(
    island: Island, good: Station, upstream: Upstream
) -> None:
    good.configure()
    lab = Lab(island, None)
    lab.add(good)
    await lab.server.start()
    try:
        told = await dig(good, "www.example.test")
        assert "status: REFUSED" in told
        assert " ra" not in told.split("flags:")[1].split(";")[0]
        assert await short(good, "good") == [good.ip]
    finally:
        await lab.server.close()
    assert upstream.questions == []
    assert (lab.server.counters.refused, lab.server.counters.answered) == (1, 1)


async def test_strangers_are_told_nothing(lab: Lab, upstream: Upstream, island: Island) -> None:
    stranger = island.station(9, "stranger")
    stranger.configure()
    for name in ("good.blue.test", "www.example.test"):
        for way in ("+notcp", "+tcp"):
            assert "status: REFUSED" in await dig(stranger, way, name)
    assert upstream.questions == []
    assert lab.server.counters.strangers == 4


async def test_who_does_not_want_others_asked_learns_nothing_of_what_is_known(
    lab: Lab, upstream: Upstream, good: Station
) -> None:
    await dig(good, "www.example.test")
    assert "status: REFUSED" in await dig(good, "+norecurse", "www.example.test")
    assert await short(good, "+norecurse", "bad") != []


async def test_a_flood_of_a_guest_leaves_others_their_answers(lab: Lab, good: Station, bad: Station) -> None:
    per_s = 50
    await lab.server.close()
    lab.server = lab.make(Limits(8, 256, per_s))
    await lab.server.start()
    answers = asked = 0
    began = time.monotonic()
    with udp(bad) as attacker, udp(good) as port:
        for _ in range(20):
            for _ in range(50):
                attacker.send(question("good"))
            port.send(question("bad"))
            asked += 1
            assert (await hear(port, 1)).rcode() == Rcode.NOERROR
            with contextlib.suppress(BlockingIOError):
                while attacker.recv(4096):
                    answers += 1
    seconds = int(time.monotonic() - began) + 2
    assert answers <= per_s * seconds
    assert lab.server.counters.excess >= 1000 - per_s * seconds
    check_sums(lab)


async def test_hostile_packets_bring_no_harm(
    lab: Lab, good: Station, bad: Station, caplog: pytest.LogCaptureFixture
) -> None:
    await lab.server.close()
    lab.server = lab.make(Limits(8, 256, 1 << 30))
    await lab.server.start()
    pick = random.Random(3)
    seeds = [question(name, kind) for name in ("good", "good.blue.test") for kind in ("A", "ANY", "PTR")]
    slowest_s = 0.0
    with udp(bad) as attacker, udp(good) as port:
        for number in range(5_000):
            data = bytearray(pick.choice(seeds))
            for _ in range(pick.randrange(5)):
                data[pick.randrange(len(data))] = pick.randrange(256)
            attacker.send(bytes(data) if number % 5 else pick.randbytes(pick.randrange(1, 600)))
            if number % 50 == 0:
                began = time.monotonic()
                port.send(question("bad"))
                assert (await hear(port)).answer[0][0].address == bad.ip
                slowest_s = max(slowest_s, time.monotonic() - began)
                with contextlib.suppress(BlockingIOError):
                    while reply := attacker.recv(4096):
                        assert len(reply) <= 512
    assert slowest_s < 1
    counters = lab.server.counters
    assert counters.malformed > 500
    assert counters.answered > 500
    check_sums(lab)
    assert [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")] == []


async def connections(station: Station, count: int) -> list[socket.socket]:
    opened = []
    for _ in range(count):
        client = station.socket(socket.AF_INET, socket.SOCK_STREAM)
        client.setblocking(False)
        await asyncio.get_running_loop().sock_connect(client, (METADATA_IP, 53))
        opened.append(client)
    return opened


async def test_idle_connections_of_a_guest_are_few_and_end(
    lab: Lab, good: Station, bad: Station, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atoll.guestnet.dns.server.QUESTION_S", 1.0)
    idle = await connections(bad, 12)
    try:
        began = time.monotonic()
        loop = asyncio.get_running_loop()
        refused = await asyncio.gather(*(ended(client, 0.5) for client in idle))
        assert refused.count(True) == 12 - 8
        assert await short(good, "+tcp", "bad") == [bad.ip]
        for client in idle:
            async with asyncio.timeout(5):
                with contextlib.suppress(ConnectionError):
                    assert await loop.sock_recv(client, 1) == b""
        assert time.monotonic() - began < 5
        assert await short(bad, "+tcp", "good") == [good.ip]
    finally:
        for client in idle:
            client.close()


async def ended(client: socket.socket, within_s: float) -> bool:
    try:
        async with asyncio.timeout(within_s):
            return await asyncio.get_running_loop().sock_recv(client, 1) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


async def test_several_questions_come_over_one_connection_and_a_bad_one_is_told_so(
    lab: Lab, good: Station, bad: Station
) -> None:
    (client,) = await connections(good, 1)
    loop = asyncio.get_running_loop()
    with client:
        sent = [question("bad"), question("www.example.test"), question("bad")[:-1]]
        for data in sent:
            await loop.sock_sendall(client, len(data).to_bytes(2, "big") + data)
        replies = []
        for _ in sent:
            length = int.from_bytes(await loop.sock_recv(client, 2), "big")
            replies.append(dns.message.from_wire(await loop.sock_recv(client, length)))
        assert [reply.rcode() for reply in replies] == [Rcode.NOERROR, Rcode.NOERROR, Rcode.FORMERR]
        # What claims to be longer than any question is not waited for.
        await loop.sock_sendall(client, b"\xff\xff")
        assert await ended(client, 3)
    assert lab.server.counters.malformed == 1


async def test_starting_and_closing_may_be_repeated(lab: Lab, good: Station, bad: Station) -> None:
    await lab.server.start()
    assert await short(good, "bad") == [bad.ip]
    await lab.server.close()
    await lab.server.close()
    assert "connection refused" in await dig(good, "bad")
    await lab.server.start()
    assert await short(good, "bad") == [bad.ip]


async def test_closing_ends_connections_and_what_is_under_way_without_a_word(
    lab: Lab, upstream: Upstream, good: Station, caplog: pytest.LogCaptureFixture
) -> None:
    upstream.udp_answers = lambda query: []
    idle, waiting = await connections(good, 2)
    with idle, waiting, udp(good) as port:
        data = question("slow.example.test")
        await asyncio.get_running_loop().sock_sendall(waiting, len(data).to_bytes(2, "big") + data)
        port.send(data)
        while lab.server.counters.forwarded < 2:
            await asyncio.sleep(0.01)
        await lab.server.close()
        assert await asyncio.gather(ended(idle, 3), ended(waiting, 3)) == [True, True]
    assert caplog.records == []
