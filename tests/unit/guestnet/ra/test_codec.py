from __future__ import annotations

import ipaddress

import pytest
from msgspec import structs

from atoll.guestnet.frames import ipv6 as packets6
from atoll.guestnet.frames.ipv6 import ICMPV6, BadPacket, Packet
from atoll.guestnet.ra.codec import advertisement, parse_solicitation
from atoll.model.network import METADATA_IP6, Subnet, link_local

GUEST, PORT, ROUTER = "52:54:0a:01:00:05", "02:a7:00:00:00:01", "02:a8:00:00:00:01"
SUBNET = Subnet("lan", "10.1.0.0/24", "10.1.0.1", mtu=1400, cidr6="fd00:1::/64", gateway6="fd00:1::1")


PLAIN = structs.replace(SUBNET, resolver=False)


def solicitation(kind: int = 133, hops: int = 255, body: bytes = bytes(4)) -> bytes:
    source = link_local(GUEST)
    payload = packets6.icmp(source, "ff02::2", kind, body)
    return packets6.build(Packet(GUEST, "33:33:00:00:00:02", source, "ff02::2", ICMPV6, payload, hops))


def test_an_advertisement_names_router_network_and_mtu() -> None:
    packet = packets6.parse(advertisement(PLAIN, ROUTER, PORT, (GUEST, link_local(GUEST))))
    assert (packet.source_mac, packet.target_mac) == (PORT, GUEST)
    assert (packet.source_ip, packet.hop_limit) == (link_local(ROUTER), 255)
    data = packet.payload
    assert (data[0], data[5] & 0xC0, int.from_bytes(data[6:8], "big")) == (134, 0xC0, 1800)
    options = {data[at]: data[at : at + 8 * data[at + 1]] for at in (16, 24, 32)}
    assert options[1][2:] == bytes.fromhex(ROUTER.replace(":", ""))
    assert int.from_bytes(options[5][4:], "big") == 1400
    assert (options[3][2], options[3][3]) == (64, 0xC0)
    assert ipaddress.IPv6Address(options[3][16:]) == ipaddress.IPv6Address("fd00:1::")
    assert len(data) == 64


def test_where_the_router_is_no_way_out_all_but_its_lifetime_is_told() -> None:
    target = (GUEST, link_local(GUEST))
    ways = [
        packets6.parse(advertisement(PLAIN, ROUTER, PORT, target, is_default_route=way)).payload
        for way in (True, False)
    ]
    assert [int.from_bytes(way[6:8], "big") for way in ways] == [1800, 0]
    # After the checksum, and that number, they are the same.
    assert ways[0][8:] == ways[1][8:]
    assert ways[0][:2] + ways[0][4:6] == ways[1][:2] + ways[1][4:6]


def test_guests_are_told_that_we_are_their_dns_server_where_the_router_is_their_way_out() -> None:
    target = (GUEST, link_local(GUEST))

    def told(subnet: Subnet, way: bool = True) -> bytes:
        return packets6.parse(advertisement(subnet, ROUTER, PORT, target, is_default_route=way)).payload[64:]

    server = ipaddress.IPv6Address(METADATA_IP6).packed
    assert told(SUBNET) == bytes((25, 3, 0, 0)) + (1800).to_bytes(4, "big") + server
    assert told(SUBNET, way=False) == b""
    assert told(structs.replace(SUBNET, dns=("10.1.0.2",))) == b""


def test_guests_are_told_not_to_make_up_an_address_where_the_subnet_says_so() -> None:
    quiet = Subnet(
        "lan", "10.1.0.0/24", "10.1.0.1", cidr6="fd00:1::/64", gateway6="fd00:1::1", autoconf6=False
    )
    packet = packets6.parse(advertisement(quiet, ROUTER, PORT, (GUEST, link_local(GUEST))))
    assert packet.payload[32 + 3] == 0x80


def test_a_guest_that_looks_for_its_router_is_understood() -> None:
    assert parse_solicitation(solicitation()).source_mac == GUEST


@pytest.mark.parametrize(
    "frame", [solicitation(kind=134), solicitation(hops=64), solicitation(body=b""), solicitation()[:40]]
)
def test_what_is_not_a_solicitation_from_this_link_is_a_bad_packet(frame: bytes) -> None:
    with pytest.raises(BadPacket):
        parse_solicitation(frame)
