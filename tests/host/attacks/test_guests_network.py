"""Guests that attack over the network: their neighbours, their host, and other subnets. Real nodes, raw frames.

    victim ── at-… ─┐ br-front ── node (a service of the host on every address) ── wan ── outside
    mallory ─ at-… ─┘               └── br-back ── at-… ── backend

All of it twice: with bridged frames shown to the host's iptables (as Docker does), and without.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from atoll.api import given
from atoll.guestnet.dhcp import codec
from atoll.guestnet.dhcp.codec import Code, Kind, Message
from atoll.guestnet.frames import ipv4, ipv6
from atoll.model.network import METADATA_IP, METADATA_IP6, Subnet, link_local
from atoll.plan.reach import CONNECTIONS
from atoll.system import namespaces, nft
from atoll.system.links import Links, sysctl
from node_labs import Guest, Node, Site, a_site, run

FRONT = Subnet("front", "10.61.0.0/24", "10.61.0.1", cidr6="fd00:61::/64", gateway6="fd00:61::1")
BACK = Subnet("back", "10.62.0.0/24", "10.62.0.1")
VICTIM, MALLORY, CAREFUL, BACKEND = "10.61.0.10", "10.61.0.66", "10.61.0.77", "10.62.0.10"
NODE_OUTSIDE, OUTSIDE = "198.51.100.2", "198.51.100.1"
SERVICE, API = 2222, 6976
QUICK_S = 1.0
ETH_P_ALL = 3
ALL_MACS = "ff:ff:ff:ff:ff:ff"
MASQUERADE = """
table ip inner {
    chain postrouting { type nat hook postrouting priority srcnat; oifname "eth0" masquerade; }
}
"""
CALLS = ("net/bridge/bridge-nf-call-iptables", "net/bridge/bridge-nf-call-ip6tables")


class Lab:
    """The picture above."""

    def __init__(self, site: Site, calls_iptables: str) -> None:
        self.site = site
        self.node = Node(site, "n1", NODE_OUTSIDE)
        for key in CALLS:
            if Path("/proc/sys", key).exists():
                sysctl(key, calls_iptables, self.node.namespace)
        self.outside = Guest(site.namespace("outside"), "52:54:00:00:00:99")
        with Links(self.node.namespace) as links, Links(self.outside.namespace) as there:
            links.ensure_veth("wan", "eth0", self.outside.namespace, peer_mac=self.outside.mac)
            links.add_address("wan", f"{NODE_OUTSIDE}/24")
            links.up("wan")
            there.add_address("eth0", f"{OUTSIDE}/24")
            there.up("eth0")
            there.ensure_route("10.60.0.0/14", via=NODE_OUTSIDE)
        self.node.start()
        self.node.give(FRONT, VICTIM, MALLORY, CAREFUL)
        self.node.give(BACK, BACKEND)
        self.victim = self._guest("victim", FRONT)
        self.mallory = self._guest("mallory", FRONT)
        self.careful = self._guest("careful", FRONT, imdsv2_required=True)
        self.backend = self._guest("backend", BACK)
        self.service = _listen(self.node.namespace, SERVICE)
        site.stack.callback(self.service.close)

    def _guest(self, name: str, subnet: Subnet, *, imdsv2_required: bool = False) -> Guest:
        vm = self.node.create(name, subnet.id, imdsv2_required=imdsv2_required)
        guest = self.node.guest(vm, subnet.bridge_name)
        guest.configure(vm.ip)
        run(guest.namespace, "ip", "route", "add", "default", "via", subnet.gateway)
        if subnet.cidr6 is not None:
            with Links(guest.namespace) as links:
                links.allow_ipv6("eth0")
            run(guest.namespace, "ip", "address", "add", f"{vm.ip6}/64", "dev", "eth0", "nodad")
            run(guest.namespace, "ip", "route", "add", "default", "via", str(subnet.gateway6))
        return guest

    def container(self) -> Guest:
        """A machine behind the careful guest, which routes for it under its own address."""
        inner = Guest(self.site.namespace("container"), "52:54:00:00:00:88")
        with Links(self.careful.namespace) as links, Links(inner.namespace) as there:
            links.ensure_veth("inner", "eth0", inner.namespace, peer_mac=inner.mac)
            links.add_address("inner", "172.18.0.1/24")
            links.up("inner")
            there.add_address("eth0", "172.18.0.2/24")
            there.up("eth0")
            there.ensure_route("0.0.0.0/0", via="172.18.0.1")
        sysctl("net/ipv4/ip_forward", "1", self.careful.namespace)
        nft.run_blocking(MASQUERADE, self.careful.namespace)
        return inner

    def reaches(self, subnet: str, *what: str) -> None:
        self.node.call(given.NODE_CHANGE_SUBNET, {"subnet": subnet}, given.ChangeSubnet(reaches=what))

    def restart(self) -> None:
        self.node.kill()
        self.node.start()


@pytest.fixture(scope="module", params=["0", "1"], ids=["bridged", "through iptables"])
def lab(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with a_site(tmp_path_factory.mktemp("attacks")) as site:
        yield Lab(site, request.param)


def _listen(namespace: str, port: int, kind: socket.SocketKind = socket.SOCK_STREAM) -> socket.socket:
    listening = namespaces.socket_in(namespace, socket.AF_INET6, kind)
    listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    listening.bind(("::", port))
    if kind is socket.SOCK_STREAM:
        listening.listen()
    return listening


def connects(guest: Guest, ip: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    with namespaces.socket_in(guest.namespace, family, socket.SOCK_STREAM) as client:
        client.settimeout(QUICK_S)
        try:
            client.connect((ip, port))
        except OSError:
            return False
        return True


def datagram_arrives(sender: Guest, receiver: str, ip: str) -> bool:
    """Without a connection: whether one packet gets there at all."""
    with (
        _listen(receiver, 5353, socket.SOCK_DGRAM) as there,
        namespaces.socket_in(sender.namespace, socket.AF_INET, socket.SOCK_DGRAM) as here,
    ):
        there.settimeout(0.15)
        with contextlib.suppress(OSError):
            here.sendto(b"one", (ip, 5353))
            return there.recv(16) == b"one"
    return False


# --- services of the host


@pytest.mark.parametrize("ip", [FRONT.gateway, BACK.gateway, NODE_OUTSIDE, str(FRONT.gateway6)])
def test_a_guest_reaches_no_service_of_its_host_on_any_address(lab: Lab, ip: str) -> None:
    assert connects(lab.outside, NODE_OUTSIDE, SERVICE), "there is a service"
    assert not connects(lab.mallory, ip, SERVICE)
    if ":" not in ip:
        assert not datagram_arrives(lab.mallory, lab.node.namespace, ip)


def test_a_guest_reaches_what_its_gateway_has_for_guests_and_its_own_subnet(lab: Lab) -> None:
    assert lab.mallory.lease()["ip"] == MALLORY
    assert lab.mallory.metadata("/latest/meta-data/local-ipv4") == (200, MALLORY)
    assert connects(lab.mallory, METADATA_IP, 53)
    assert connects(lab.mallory, METADATA_IP, API)
    assert lab.mallory.pings(FRONT.gateway)
    with lab.victim.listen(80):
        assert connects(lab.mallory, VICTIM, 80)
    assert datagram_arrives(lab.mallory, lab.victim.namespace, VICTIM)


def test_the_host_and_the_world_reach_guests_and_get_answers(lab: Lab) -> None:
    with lab.victim.listen(80):
        assert connects(lab.outside, VICTIM, 80)
        assert connects(Guest(lab.node.namespace, ""), VICTIM, 80)


# --- other subnets, and outside


@pytest.fixture
def joins(lab: Lab) -> Iterator[Callable[..., None]]:
    yield lab.reaches
    lab.reaches("front")


def test_subnets_are_apart_until_they_are_joined_and_then_one_way(
    lab: Lab, joins: Callable[..., None]
) -> None:
    with lab.backend.listen(80), lab.victim.listen(80):
        assert not connects(lab.mallory, BACKEND, 80)
        assert not datagram_arrives(lab.mallory, lab.backend.namespace, BACKEND)
        joins("front", "back")
        assert connects(lab.mallory, BACKEND, 80)
        assert datagram_arrives(lab.mallory, lab.backend.namespace, BACKEND)
        assert not connects(lab.backend, VICTIM, 80)
        assert not connects(lab.mallory, BACK.gateway, SERVICE), "the host is in no subnet"
        lab.restart()
        assert connects(lab.mallory, BACKEND, 80)
        joins("front")
        assert not connects(lab.mallory, BACKEND, 80)


def test_what_is_outside_is_reached_where_it_was_opened(lab: Lab, joins: Callable[..., None]) -> None:
    with lab.outside.listen(80), lab.backend.listen(80):
        assert not connects(lab.mallory, OUTSIDE, 80)
        joins("front", "192.0.2.0/24")
        assert not connects(lab.mallory, OUTSIDE, 80)
        joins("front", "198.51.100.0/24", "198.51.0.0/16")
        assert connects(lab.mallory, OUTSIDE, 80)
        assert not connects(lab.mallory, NODE_OUTSIDE, SERVICE)
        joins("front", "0.0.0.0/0")
        assert connects(lab.mallory, OUTSIDE, 80)
        assert not connects(lab.mallory, BACKEND, 80), "another subnet is joined by its name alone"
        assert not connects(lab.backend, OUTSIDE, 80)


def test_guests_are_kept_apart_while_no_agent_runs(lab: Lab) -> None:
    lab.node.kill()
    with lab.backend.listen(80):
        assert not connects(lab.mallory, BACKEND, 80)
        assert not connects(lab.mallory, NODE_OUTSIDE, SERVICE)
    lab.node.start()


def test_what_goes_from_guest_to_guest_is_not_tracked(lab: Lab) -> None:
    """Else one guest could fill the node's table of connections, and all others would be cut off."""
    assert datagram_arrives(lab.mallory, lab.victim.namespace, VICTIM)
    with namespaces.socket_in(lab.mallory.namespace, socket.AF_INET, socket.SOCK_DGRAM) as flood:
        for port in range(10000, 11000):
            flood.sendto(b"x", (VICTIM, port))
            with contextlib.suppress(OSError):
                flood.sendto(b"x", (BACKEND, port))
    assert tracked(lab) < 100


def test_one_guest_does_not_use_up_the_connections_of_all(lab: Lab, joins: Callable[..., None]) -> None:
    joins("front", "198.51.100.0/24")
    with namespaces.socket_in(lab.mallory.namespace, socket.AF_INET, socket.SOCK_DGRAM) as flood:
        for port in range(10000, 10000 + CONNECTIONS + 1000):
            with contextlib.suppress(OSError):
                flood.sendto(b"x", (OUTSIDE, port))
    assert CONNECTIONS // 2 < tracked(lab) <= CONNECTIONS + 100
    with lab.outside.listen(80):
        assert not connects(lab.mallory, OUTSIDE, 80)
        assert connects(lab.victim, OUTSIDE, 80)


def tracked(lab: Lab) -> int:
    """The connections that the node knows of."""
    counted = Path("/proc/sys/net/netfilter/nf_conntrack_count")
    return int(namespaces.inside(lab.node.namespace, counted.read_text))


# --- in the place of the DHCP server, or of a router


class Heard:
    """All frames that come to a guest, while it is open."""

    def __init__(self, guest: Guest) -> None:
        protocol = socket.htons(ETH_P_ALL)
        self._socket = namespaces.socket_in(guest.namespace, socket.AF_PACKET, socket.SOCK_RAW, protocol)
        self._socket.settimeout(0.1)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._listen)
        self.frames: list[bytes] = []

    def __enter__(self) -> Heard:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._socket.close()

    def _listen(self) -> None:
        while True:
            try:
                frame, (_, _, kind, *_) = self._socket.recvfrom(4096)
            except TimeoutError:
                if self._over.is_set():
                    return
                continue
            if kind != socket.PACKET_OUTGOING:
                self.frames.append(frame)

    def ports(self) -> set[int]:
        """Those that datagrams were for."""
        found = set()
        for frame in self.frames:
            for parse in (ipv4.parse, lambda frame: ipv6.parse_udp(ipv6.parse(frame))):
                with contextlib.suppress(codec.BadPacket):
                    found.add(parse(frame).target_port)
        return found


def send(guest: Guest, *frames: bytes) -> None:
    with namespaces.socket_in(guest.namespace, socket.AF_PACKET, socket.SOCK_RAW) as wire:
        for frame in frames:
            wire.sendto(frame, ("eth0", 0))


def solicit(mac: str) -> bytes:
    """A question to all DHCP servers over IPv6."""
    client = struct.pack("!HHHH", 1, 10, 3, 1) + bytes.fromhex(mac.replace(":", ""))
    body = b"\x01" + secrets.token_bytes(3) + client + struct.pack("!HHIII", 3, 12, 1, 0, 0)
    return udp6(mac, ipv6.multicast_mac("ff02::1:2"), "ff02::1:2", (546, 547), body)


def udp6(mac: str, target_mac: str, target: str, ports: tuple[int, int], payload: bytes) -> bytes:
    """Without a checksum: who is to drop it comes before anybody who looks at that."""
    datagram = struct.pack("!HHHH", *ports, 8 + len(payload), 0) + payload
    return ipv6.build(ipv6.Packet(mac, target_mac, link_local(mac), target, 17, datagram))


def test_nobody_but_our_server_hears_what_a_guest_asks_of_dhcp(lab: Lab) -> None:
    with Heard(lab.mallory) as heard:
        assert lab.victim.lease()["serverid"] == METADATA_IP
        send(lab.victim, solicit(lab.victim.mac))
        assert lab.victim.pings(MALLORY)
    assert heard.frames, "it hears its neighbour"
    assert heard.ports().isdisjoint({67, 547})


def rogue_offers(lab: Lab, marker: bytes) -> list[bytes]:
    """Answers of a DHCP server, from every port that could pass, to everybody and to the victim itself."""
    offer = codec.build(
        Message(
            op=codec.BOOT_REPLY,
            xid=7,
            chaddr=bytes.fromhex(lab.victim.mac.replace(":", "")).ljust(16, b"\0"),
            yiaddr="10.61.0.99",
            options={Code.MESSAGE_TYPE: bytes([Kind.OFFER]), Code.ROUTER: socket.inet_aton(MALLORY)},
        )
    )
    source = lab.mallory.mac
    frames = []
    for port in (67, 68, 547, 1067, 40000):
        for mac, ip in ((ALL_MACS, "255.255.255.255"), (lab.victim.mac, VICTIM)):
            frames.append(ipv4.build(ipv4.Datagram(source, mac, MALLORY, ip, port, 68, offer + marker)))
        for mac, ip in (("33:33:00:00:00:01", "ff02::1"), (lab.victim.mac, link_local(lab.victim.mac))):
            frames.append(udp6(source, mac, ip, (port, 546), b"\x02" + marker))
    return frames


def test_no_answer_of_a_dhcp_server_or_router_comes_from_a_neighbour(lab: Lab) -> None:
    marker, honest = secrets.token_bytes(16), secrets.token_bytes(16)
    advert = router_adverts(lab.mallory.mac, marker)
    greeting = ipv4.build(
        ipv4.Datagram(lab.mallory.mac, ALL_MACS, MALLORY, "255.255.255.255", 5000, 5001, honest)
    )
    with Heard(lab.victim) as heard:
        send(lab.mallory, *rogue_offers(lab, marker), *advert, greeting)
        assert lab.mallory.pings(VICTIM)
    assert any(honest in frame for frame in heard.frames), "what is honest arrives"
    assert not any(marker in frame for frame in heard.frames)


def router_adverts(mac: str, marker: bytes) -> list[bytes]:
    """A router's advertisement: plain, and behind each header that could hide it."""
    source = socket.inet_pton(socket.AF_INET6, link_local(mac))
    everybody = socket.inet_pton(socket.AF_INET6, "ff02::1")
    advert = struct.pack("!BBHBBHII", 134, 0, 0, 64, 0, 1800, 0, 0) + marker
    headers = {
        58: b"",
        0: bytes((58, 0, 5, 2, 0, 0, 1, 0)),
        60: bytes((58, 0, 1, 4, 0, 0, 0, 0)),
        43: bytes((58, 0, 0, 0, 0, 0, 0, 0)),
        44: struct.pack("!BBHI", 58, 0, 1, 7),
        51: struct.pack("!BBHII", 58, 1, 0, 1, 1),
        135: bytes((58, 0, 0, 0, 0, 0, 0, 0)),
    }
    frames = []
    for first, header in headers.items():
        for excess in (0, 4):
            payload = header + advert
            head = struct.pack("!IHBB", 6 << 28, len(payload) + excess, first, 255) + source + everybody
            ethernet = bytes.fromhex("333300000001" + mac.replace(":", "") + "86dd")
            frames.append(ethernet + head + payload)
    return frames


# --- metadata from behind a guest


def ask(guest: Guest, request: str, *headers: str, ip: str = METADATA_IP) -> tuple[int, str]:
    """Status and body of a metadata answer; 0 when there is none."""
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    with namespaces.socket_in(guest.namespace, family, socket.SOCK_STREAM) as client:
        client.settimeout(QUICK_S)
        client.connect((ip, 80))
        lines = (f"{request} HTTP/1.0", "Host: m", *headers, "", "")
        client.sendall("\r\n".join(lines).encode())
        try:
            reply = b"".join(iter(lambda: client.recv(65536), b"")).decode()
        except TimeoutError:
            return 0, ""
    head, _, body = reply.partition("\r\n\r\n")
    return int(head.split()[1]), body


PUT, TTL = "PUT /latest/api/token", "X-aws-ec2-metadata-token-ttl-seconds: 60"
GET, HEADER = "GET /latest/meta-data/local-ipv4", "X-aws-ec2-metadata-token: {}"


@pytest.mark.parametrize(("ip", "hops_at"), [(METADATA_IP, 22), (METADATA_IP6, 21)])
def test_a_token_is_needed_and_goes_no_farther_than_the_guest(lab: Lab, ip: str, hops_at: int) -> None:
    assert ask(lab.careful, GET, ip=ip)[0] == 401
    with Heard(lab.careful) as heard:
        status, token = ask(lab.careful, PUT, TTL, ip=ip)
    assert status == 200
    assert {frame[hops_at] for frame in heard.frames if token.encode() in frame} == {1}
    assert ask(lab.careful, GET, HEADER.format(token), ip=ip) == (200, CAREFUL)


def test_who_is_behind_a_guest_gets_neither_token_nor_metadata(lab: Lab) -> None:
    container = lab.container()
    assert ask(container, GET)[0] == 401, "it reaches the service"
    assert ask(container, PUT, TTL) == (0, "")
    assert ask(lab.careful, PUT, TTL)[0] == 200
