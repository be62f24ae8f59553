"""The rules of the firewall, by what the kernel does with frames: a bridge with ports of VMs, a LAN and our servers.

    vm ──► at-0a010005 ─┐       what the VM sends is seen, or not, at the other ends of these
    other ◄─ at-0a010006 ┤ br0
    lan ◄─────────── p0 ─┤
    service ◄───── as-0 ─┘

All of it twice: with bridged frames shown to the host's iptables, and without.
"""

from __future__ import annotations

import ipaddress
import os
import secrets
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import structs

from atoll.errors import HostFailure
from atoll.model.network import METADATA_IP, METADATA_IP6, link_local
from atoll.plan import firewall
from atoll.plan.firewall import DHCP_PER_S, Port, change, elements
from atoll.system import namespaces, nft
from atoll.system.links import Links, sysctl

SERVICE = "06:00:00:00:00:fe"
LAN_MAC, OTHER_MAC, ALL = "02:00:00:00:00:01", "52:54:0a:01:00:06", "ff:ff:ff:ff:ff:ff"
VM = Port("at-0a010005", "52:54:0a:01:00:05", "10.1.0.5", SERVICE)
VM6 = structs.replace(VM, ip6="fd00::5054:aff:fe01:5")
LOCAL6 = link_local(VM.mac)
EVERYWHERE = {"other", "lan", "service"}
NOWHERE: set[str] = set()
SERVICE_ONLY = {"service"}
ETH_P_ALL = 3
SO_RCVBUFFORCE = 33
CALLS_IPTABLES = "net/bridge/bridge-nf-call-iptables"


class Lab:
    """The bridge above. `received` is what came out at each end, in order."""

    def __init__(self) -> None:
        self.bridge = f"xfw{os.getpid()}{secrets.token_hex(2)}b"
        self.ends = f"{self.bridge[:-1]}e"
        for name in (self.bridge, self.ends):
            namespaces.ensure(name)
        with Links(self.bridge) as links:
            links.ensure_bridge("br0", "0a:00:00:00:00:01", 1500)
            for port, end, mac in (
                (VM.link, "vm", VM.mac),
                ("at-0a010006", "other", OTHER_MAC),
                ("p0", "lan", LAN_MAC),
                ("as-0", "service", SERVICE),
            ):
                links.ensure_veth(port, end, self.ends, peer_mac=mac, master="br0")
            links.set_fdb("as-0", SERVICE)
        self._socket = namespaces.socket_in(
            self.ends, socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL)
        )
        self._socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
        self._socket.settimeout(10)
        self.apply(firewall.RULES)

    def close(self) -> None:
        self._socket.close()
        for name in (self.bridge, self.ends):
            namespaces.delete(name)

    def apply(self, script: str) -> None:
        nft.run_blocking(script, self.bridge)

    def plug(self, port: Port, instead_of: Port | None = None) -> None:
        self.apply(change(elements(instead_of) if instead_of else (), elements(port)))

    def send(self, *frames: bytes, end: str = "vm") -> None:
        for frame in frames:
            self._socket.sendto(frame, (end, 0))

    def received(self) -> dict[str, list[bytes]]:
        """What has come out since the last look: an honest frame of the LAN ends it."""
        end = secrets.token_bytes(24)
        self.send(ethernet(LAN_MAC, ALL, 0x88B5, end), end="lan")
        seen: dict[str, list[bytes]] = {"other": [], "lan": [], "service": []}
        waiting = {"other", "service"}
        while waiting:
            frame, (link, _, kind, *_) = self._socket.recvfrom(4096)
            if end in frame:
                waiting.discard(link)
            elif link in seen and kind != socket.PACKET_OUTGOING:
                seen[link].append(frame)
        return seen

    def where(self, frame: bytes) -> set[str]:
        """The ends at which a frame of the VM comes out."""
        self.send(frame)
        return {end for end, frames in self.received().items() if frames}


@pytest.fixture(scope="module", params=["0", "1"], ids=["bridged", "through iptables"])
def wires(request: pytest.FixtureRequest) -> Iterator[Lab]:
    lab = Lab()
    try:
        if Path("/proc/sys", CALLS_IPTABLES).exists():
            for key in (CALLS_IPTABLES, CALLS_IPTABLES.replace("iptables", "ip6tables")):
                sysctl(key, request.param, lab.bridge)
        elif request.param == "1":
            pytest.skip("this kernel has no br_netfilter")
        yield lab
    finally:
        lab.close()


@pytest.fixture
def lab(wires: Lab) -> Iterator[Lab]:
    """With the VM plugged, without IPv6."""
    wires.plug(VM)
    yield wires
    wires.apply(change(elements(VM), ()))
    wires.apply("flush set bridge atoll asking\nflush set bridge atoll connecting\n")


@pytest.fixture
def lab6(wires: Lab) -> Iterator[Lab]:
    """With the VM plugged, with IPv6."""
    wires.plug(VM6)
    yield wires
    wires.apply(change(elements(VM6), ()))
    wires.apply("flush set bridge atoll asking\nflush set bridge atoll connecting\n")


# --- frames


def mac(text: str) -> bytes:
    return bytes.fromhex(text.replace(":", ""))


def ethernet(source: str, target: str, kind: int, payload: bytes) -> bytes:
    return mac(target) + mac(source) + struct.pack("!H", kind) + payload


def checksum(data: bytes) -> int:
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return 0xFFFF - total


def ipv4(
    protocol: int, payload: bytes, source: str = VM.ip, target: str = "10.1.0.255", **more: int
) -> bytes:
    """`fragment`: its flags and offset; `options`: words of them; `excess`: what its length says too much."""
    options = b"\x01" * 4 * more.get("options", 0)
    head = struct.pack(
        "!BBHHHBBH4s4s",
        0x45 + more.get("options", 0),
        0,
        20 + len(options) + len(payload) + more.get("excess", 0),
        1,
        more.get("fragment", 0),
        64,
        protocol,
        0,
        ipaddress.IPv4Address(source).packed,
        ipaddress.IPv4Address(target).packed,
    )
    head += options
    return head[:10] + struct.pack("!H", checksum(head)) + head[12:] + payload


def udp(source: int, target: int) -> bytes:
    return struct.pack("!HHHH", source, target, 12, 0) + b"data"


def syn(port: int = 80) -> bytes:
    return struct.pack("!HHIIBBHHH", 40000, port, 1, 0, 5 << 4, 2, 1024, 0, 0)


def v4(payload: bytes, source_mac: str = VM.mac, target_mac: str = ALL) -> bytes:
    return ethernet(source_mac, target_mac, 0x0800, payload)


def arp(sender_ip: str, sender_mac: str = VM.mac, target_ip: str = "10.1.0.9", **more: int) -> bytes:
    head = struct.pack(
        "!HHBBH",
        more.get("htype", 1),
        more.get("ptype", 0x0800),
        more.get("hlen", 6),
        more.get("plen", 4),
        more.get("operation", 1),
    )
    sender = mac(sender_mac) + ipaddress.IPv4Address(sender_ip).packed
    body = head + sender + bytes(6) + ipaddress.IPv4Address(target_ip).packed
    return ethernet(VM.mac, ALL, 0x0806, body)


def ipv6(
    next_header: int, payload: bytes, source: str = VM6.ip6, target: str = "ff02::1", excess: int = 0
) -> bytes:
    head = struct.pack("!IHBB", 6 << 28, len(payload) + excess, next_header, 255)
    return head + ipaddress.IPv6Address(source).packed + ipaddress.IPv6Address(target).packed + payload


def v6(payload: bytes, source_mac: str = VM.mac) -> bytes:
    return ethernet(source_mac, "33:33:00:00:00:01", 0x86DD, payload)


def icmp6(kind: int, target: str = VM6.ip6) -> bytes:
    return struct.pack("!BBHI", kind, 0, 0, 0) + ipaddress.IPv6Address(target).packed


def behind(header: bytes, first: int, payload: bytes, **addresses: str) -> bytes:
    """A packet with an extension header of this kind."""
    return v6(ipv6(first, header + payload, **addresses))


DHCP = v4(ipv4(17, udp(68, 67), "0.0.0.0", "255.255.255.255"))
DHCP6 = v6(ipv6(17, udp(546, 547), LOCAL6, "ff02::1:2"))
METADATA = v4(ipv4(6, syn(), target=METADATA_IP), target_mac=LAN_MAC)
METADATA6 = v6(ipv6(6, syn(), target=METADATA_IP6))
HOP_BY_HOP = bytes((58, 0, 5, 2, 0, 0, 1, 0))
FRAGMENT = struct.pack("!BBHI", 58, 0, 0, 7)
LATER_FRAGMENT = struct.pack("!BBHI", 58, 0, 8 << 3, 7)
AUTHENTICATION = struct.pack("!BBHII", 58, 1, 0, 1, 1)
OPTIONS = bytes((58, 0, 1, 4, 0, 0, 0, 0))
ROUTER_ADVERT, REDIRECT, SOLICIT, ADVERT, QUERY, REPORT, REPORT2 = 134, 137, 135, 136, 130, 131, 143

# --- what it may do


@pytest.mark.parametrize(
    "frame",
    {
        "UDP": v4(ipv4(17, udp(5000, 5001))),
        "TCP": v4(ipv4(6, syn())),
        "with options": v4(ipv4(17, udp(5000, 5001), options=2)),
        "a later fragment": v4(ipv4(17, b"x" * 16, fragment=8)),
        "ARP": arp(VM.ip),
        "an answer by ARP": arp(VM.ip, operation=2),
        "an ARP probe": arp("0.0.0.0"),
        "an IGMP report": v4(ipv4(2, b"\x16\0\0\0\xe0\0\0\xfb")),
        "a report of IGMP version 3": v4(ipv4(2, b"\x22\0\0\0\0\0\0\x01" + bytes(8), options=1)),
        "leaves a group of IGMP": v4(ipv4(2, b"\x17\0\0\0\xe0\0\0\xfb")),
        "pings": v4(ipv4(1, b"\x08\0\0\0\0\x01\0\x01")),
    }.items(),
    ids=lambda one: one[0],
)
def test_what_a_vm_sends_as_itself_goes_where_it_is_sent(lab: Lab, frame: tuple[str, bytes]) -> None:
    assert lab.where(frame[1]) == EVERYWHERE


FORGED = {
    "another MAC": v4(ipv4(17, udp(5000, 5001)), source_mac="52:54:0a:01:00:07"),
    "the MAC of another VM": v4(ipv4(17, udp(5000, 5001)), source_mac=OTHER_MAC),
    "another IP": v4(ipv4(17, udp(5000, 5001), source="10.1.0.6")),
    "no IP": v4(ipv4(17, udp(5000, 5001), source="0.0.0.0")),
    "a later fragment of another IP": v4(ipv4(17, b"x" * 16, source="10.1.0.6", fragment=8)),
    "an ARP of another IP": arp("10.1.0.6"),
    "an ARP of another MAC": arp(VM.ip, sender_mac=OTHER_MAC),
    "an ARP probe of another MAC": arp("0.0.0.0", sender_mac=OTHER_MAC),
    "an ARP of another kind of link": arp(VM.ip, htype=6),
    "an ARP with short addresses": arp(VM.ip, hlen=5),
    "a reverse ARP": arp(VM.ip, operation=3),
    "DHCP of another IP": v4(ipv4(17, udp(68, 67), source="10.1.0.6", target="255.255.255.255")),
    "DHCP of a relay": v4(ipv4(17, udp(67, 67), target="255.255.255.255")),
    "an answer of a DHCP server": v4(ipv4(17, udp(67, 68), target="255.255.255.255")),
    "such an answer from another port": v4(ipv4(17, udp(5000, 68), target="255.255.255.255")),
    "such an answer with options": v4(ipv4(17, udp(67, 68), target="255.255.255.255", options=3)),
    "such an answer in pieces": v4(ipv4(17, udp(67, 68), target="255.255.255.255", fragment=0x2000)),
    "an IGMP query": v4(ipv4(2, b"\x11\x64\0\0\0\0\0\0", target="224.0.0.1")),
    "an answer of a DHCP server that is cut short": v4(
        ipv4(17, udp(67, 68), target="255.255.255.255", excess=1)
    ),
    "an answer of a DHCP server with a version of its own": v4(
        b"\x55" + ipv4(17, udp(67, 68), target="255.255.255.255")[1:]
    ),
    "an IGMP query with the option that queries have": v4(
        ipv4(2, b"\x11\x64\0\0\0\0\0\0", target="224.0.0.1", options=1)
    ),
    "a query of IGMP version 3": v4(ipv4(2, b"\x11\x64" + bytes(10), target="224.0.0.1", options=1)),
    "an IGMP query in pieces": v4(ipv4(2, b"\x11\x64\0\0\0\0\0\0", target="224.0.0.1", fragment=0x2000)),
    "a multicast router of DVMRP": v4(ipv4(2, b"\x13\x01\0\0\0\0\0\0", target="224.0.0.4")),
    "a multicast router that makes itself known": v4(ipv4(2, b"\x30\x14\0\0\0\0\0\0", target="224.0.0.106")),
    "a multicast router of PIM": v4(ipv4(103, b"\x20\0\0\0" + bytes(4), target="224.0.0.13")),
    "a router of ICMP": v4(ipv4(1, b"\x09\0\0\0\x01\x02\0\x1e" + bytes(8))),
    "a redirect": v4(ipv4(1, b"\x05\x01\0\0\x0a\x01\0\x05" + bytes(28))),
    "metadata as another": v4(ipv4(6, syn(), source="10.1.0.6", target=METADATA_IP)),
    "metadata in pieces": v4(ipv4(6, syn(), target=METADATA_IP, fragment=0x2000)),
    "a VLAN": ethernet(VM.mac, ALL, 0x8100, b"\0\x05\x08\0" + ipv4(17, udp(5000, 5001))),
    "an unknown kind of frame": ethernet(VM.mac, ALL, 0x88B5, b"x" * 46),
    "spanning tree": ethernet(VM.mac, "01:80:c2:00:00:00", 38, b"\x42\x42\x03" + bytes(43)),
    "IPv6 where there is none": v6(ipv6(17, udp(5000, 5001), LOCAL6)),
}


@pytest.mark.parametrize("frame", FORGED)
def test_nothing_else_leaves_its_port(lab: Lab, frame: str) -> None:
    assert lab.where(FORGED[frame]) == NOWHERE


def test_what_it_asks_of_dhcp_goes_to_our_server_and_to_nobody_else(lab: Lab) -> None:
    lab.send(DHCP)
    seen = lab.received()
    assert {end for end, frames in seen.items() if frames} == SERVICE_ONLY
    (frame,) = seen["service"]
    assert frame[:6] == mac(SERVICE)
    assert frame[6:] == DHCP[6:]
    assert lab.where(v4(ipv4(17, udp(68, 67), target=METADATA_IP), target_mac=LAN_MAC)) == SERVICE_ONLY


def test_metadata_goes_to_our_server_whatever_the_route_was(lab: Lab) -> None:
    assert lab.where(METADATA) == SERVICE_ONLY
    assert lab.where(arp(VM.ip, target_ip=METADATA_IP)) == SERVICE_ONLY


def test_a_flood_of_requests_is_cut_off_and_another_port_has_a_share_of_its_own(lab: Lab) -> None:
    other = Port("at-0a010006", OTHER_MAC, "10.1.0.6", SERVICE)
    lab.plug(other)
    lab.send(*[DHCP] * 500)
    assert 2 * DHCP_PER_S <= len(lab.received()["service"]) < 10 * DHCP_PER_S
    lab.send(v4(ipv4(17, udp(68, 67), "0.0.0.0", "255.255.255.255"), source_mac=OTHER_MAC), end="other")
    assert len(lab.received()["service"]) == 1
    lab.send(*[METADATA] * 1200)
    assert 400 <= len(lab.received()["service"]) < 1100
    lab.apply(change(elements(other), ()))


def test_a_flood_of_anything_else_is_not_our_business(lab: Lab) -> None:
    lab.send(*[v4(ipv4(17, udp(5000, 5001)))] * 500)
    assert len(lab.received()["lan"]) == 500


# --- IPv6


@pytest.mark.parametrize(
    "frame",
    {
        "its own": v6(ipv6(17, udp(5000, 5001))),
        "link-local": v6(ipv6(17, udp(5000, 5001), LOCAL6)),
        "looks for a router": v6(ipv6(58, struct.pack("!BBHI", 133, 0, 0, 0), LOCAL6)),
        "asks for a neighbour": v6(ipv6(58, icmp6(SOLICIT, "fd00::1"))),
        "answers for itself": v6(ipv6(58, icmp6(ADVERT))),
        "is it free": v6(ipv6(58, icmp6(SOLICIT), "::")),
        "pings": v6(ipv6(58, struct.pack("!BBHI", 128, 0, 0, 0))),
        "joins a group": behind(HOP_BY_HOP, 0, icmp6(REPORT, "ff02::fb"), source=LOCAL6),
        "tells its groups": behind(HOP_BY_HOP, 0, icmp6(REPORT2, "ff02::fb"), source=LOCAL6),
    }.items(),
    ids=lambda one: one[0],
)
def test_with_ipv6_a_vm_may_send_as_itself_over_that_too(lab6: Lab, frame: tuple[str, bytes]) -> None:
    assert lab6.where(frame[1]) == EVERYWHERE


FORGED6 = {
    "another IP": v6(ipv6(17, udp(5000, 5001), "fd00::6")),
    "another link-local": v6(ipv6(17, udp(5000, 5001), "fe80::1")),
    "no IP": v6(ipv6(17, udp(5000, 5001), "::")),
    "another MAC": v6(ipv6(17, udp(5000, 5001)), source_mac=OTHER_MAC),
    "a router": v6(ipv6(58, icmp6(ROUTER_ADVERT), LOCAL6)),
    "a redirect": v6(ipv6(58, icmp6(REDIRECT), LOCAL6)),
    "a multicast querier": v6(ipv6(58, icmp6(QUERY), LOCAL6)),
    "answers for others": v6(ipv6(58, icmp6(ADVERT, "fd00::1"))),
    "claims another's": v6(ipv6(58, icmp6(SOLICIT, "fd00::1"), "::")),
    "an answer of a DHCP server": v6(ipv6(17, udp(547, 546), LOCAL6)),
    "such an answer from another port": v6(ipv6(17, udp(5000, 546), LOCAL6)),
    "a router behind hop-by-hop options": behind(HOP_BY_HOP, 0, icmp6(ROUTER_ADVERT), source=LOCAL6),
    "a querier behind hop-by-hop options": behind(HOP_BY_HOP, 0, icmp6(QUERY), source=LOCAL6),
    "a router behind other options": behind(OPTIONS, 60, icmp6(ROUTER_ADVERT), source=LOCAL6),
    "a router in a fragment": behind(FRAGMENT, 44, icmp6(ROUTER_ADVERT), source=LOCAL6),
    "a later fragment": behind(LATER_FRAGMENT, 44, icmp6(ROUTER_ADVERT), source=LOCAL6),
    "a router behind authentication": behind(AUTHENTICATION, 51, icmp6(ROUTER_ADVERT), source=LOCAL6),
    "a router behind an unknown header": behind(OPTIONS, 253, icmp6(ROUTER_ADVERT), source=LOCAL6),
    "a router that is cut short": v6(ipv6(58, icmp6(ROUTER_ADVERT), LOCAL6, excess=1)),
    "an answer of a DHCP server that is cut short": v6(ipv6(17, udp(547, 546), LOCAL6, excess=1)),
    "a router with a version of its own": v6(b"\x50" + ipv6(58, icmp6(ROUTER_ADVERT), LOCAL6)[1:]),
    "a multicast router that makes itself known": v6(ipv6(58, icmp6(151), LOCAL6)),
    "a router behind two headers": behind(
        bytes((60, 0, 1, 4, 0, 0, 0, 0)) + OPTIONS, 0, icmp6(ROUTER_ADVERT), source=LOCAL6
    ),
    "a router behind a route": behind(
        bytes((58, 0, 0, 0, 0, 0, 0, 0)), 43, icmp6(ROUTER_ADVERT), source=LOCAL6
    ),
    "an answer of a DHCP server in a fragment": behind(
        struct.pack("!BBHI", 17, 0, 0, 7), 44, udp(547, 546), source=LOCAL6
    ),
    "an answer of a DHCP server behind options": behind(
        bytes((17, 0, 1, 4, 0, 0, 0, 0)), 60, udp(547, 546), source=LOCAL6
    ),
    "an answer of a DHCP server behind authentication": behind(
        struct.pack("!BBHII", 17, 1, 0, 1, 1), 51, udp(547, 546), source=LOCAL6
    ),
    "a question to a DHCP server in a fragment": behind(
        struct.pack("!BBHI", 17, 0, 0, 7), 44, udp(546, 547), source=LOCAL6
    ),
    "a report of another": behind(HOP_BY_HOP, 0, icmp6(REPORT), source="fe80::1"),
}


@pytest.mark.parametrize("frame", FORGED6)
def test_with_ipv6_nothing_else_leaves_its_port(lab6: Lab, frame: str) -> None:
    assert lab6.where(FORGED6[frame]) == NOWHERE


def test_over_ipv6_our_servers_are_reached_and_nobody_else_is_asked(lab6: Lab) -> None:
    for frame in (DHCP6, METADATA6, v6(ipv6(58, icmp6(SOLICIT, METADATA_IP6)))):
        assert lab6.where(frame) == SERVICE_ONLY
    assert lab6.where(v6(ipv6(6, syn(), "fd00::6", METADATA_IP6))) == NOWHERE
    assert lab6.where(v6(ipv6(6, syn(), target="fd00:ec2::253"))) == EVERYWHERE


@pytest.mark.parametrize("frame", [name for name in FORGED if "IPv6" not in name])
def test_with_ipv6_the_rules_of_ipv4_are_the_same(lab6: Lab, frame: str) -> None:
    assert lab6.where(FORGED[frame]) == NOWHERE


# --- ports


def test_a_port_that_is_not_plugged_is_closed_whatever_it_sends(wires: Lab) -> None:
    for frame in (v4(ipv4(17, udp(5000, 5001))), DHCP, arp(VM.ip), METADATA):
        assert wires.where(frame) == NOWHERE


def test_a_port_that_changes_is_open_as_what_it_is_now_and_closed_as_what_it_was(lab: Lab) -> None:
    moved = structs.replace(VM, ip="10.1.0.77", service_mac="06:00:00:00:00:aa")
    lab.plug(moved, instead_of=VM)
    assert lab.where(v4(ipv4(17, udp(5000, 5001)))) == NOWHERE
    assert lab.where(v4(ipv4(17, udp(5000, 5001), source=moved.ip))) == EVERYWHERE
    lab.send(v4(ipv4(6, syn(), source=moved.ip, target=METADATA_IP)))
    assert {frame[:6] for frames in lab.received().values() for frame in frames} == {mac(moved.service_mac)}
    lab.plug(VM, instead_of=moved)


def test_an_address_is_a_ports_own_and_may_be_anothers_elsewhere(lab: Lab) -> None:
    """Two ports with one IP and one MAC, as on two bridges: each is held to its own."""
    twin = structs.replace(VM, link="at-0a010006")
    lab.plug(twin)
    lab.apply(change(elements(VM), ()))
    assert lab.where(v4(ipv4(17, udp(5000, 5001)))) == NOWHERE
    lab.send(v4(ipv4(17, udp(5000, 5001))), end="other")
    assert len(lab.received()["lan"]) == 1
    lab.plug(VM)
    lab.apply(change(elements(twin), ()))
    assert lab.where(v4(ipv4(17, udp(5000, 5001)))) == EVERYWHERE


def test_the_rules_anew_leave_ports_open_all_the_while(lab: Lab) -> None:
    for _ in range(20):
        lab.send(*[v4(ipv4(17, udp(5000, 5001)))] * 20)
        lab.apply(firewall.RULES)
        lab.send(*[v4(ipv4(17, udp(5000, 5001)))] * 20)
    assert len(lab.received()["lan"]) == 800


def test_what_is_taken_away_twice_is_a_success_and_bad_words_change_nothing(lab: Lab) -> None:
    gone = structs.replace(VM, link="at-0a010007")
    lab.plug(gone)
    lab.apply(change(elements(gone), ()))
    lab.apply(change(elements(gone), ()))
    with pytest.raises(HostFailure):
        lab.apply(change(elements(VM), ()) + "add element bridge atoll nonsense { 1 }\n")
    assert lab.where(v4(ipv4(17, udp(5000, 5001)))) == EVERYWHERE


def test_frames_that_come_from_elsewhere_are_left_alone(lab: Lab) -> None:
    frames = [v4(ipv4(17, udp(67, 68), "10.1.0.1"), LAN_MAC), ethernet(LAN_MAC, ALL, 0x88B5, b"x" * 46)]
    lab.send(*frames, end="lan")
    assert len(lab.received()["other"]) == 2
