from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.guestnet.frames import ipv6 as packets6
from atoll.guestnet.frames.ipv6 import BadPacket, Datagram, Packet
from atoll.model.network import link_local

MAC, OTHER = "52:54:0a:01:00:05", "02:a7:00:00:00:01"
payloads = st.binary(max_size=200)


@given(payloads)
def test_a_datagram_is_read_back(payload: bytes) -> None:
    source, target = link_local(MAC), link_local(OTHER)
    datagram = Datagram(546, 547, payload)
    packet = Packet(MAC, OTHER, source, target, packets6.UDP, packets6.udp(source, target, datagram), 64)
    found = packets6.parse(packets6.build(packet) + b"\0" * 5)
    assert found == packet
    assert packets6.parse_udp(found) == datagram


@given(payloads)
def test_the_checksum_of_what_is_sent_adds_up(body: bytes) -> None:
    source, target = link_local(MAC), "ff02::1"
    sent = packets6.icmp(source, target, 134, body)
    # The sum over everything, the checksum included, is all ones, of which the complement is 0.
    assert packets6.checksum(source, target, packets6.ICMPV6, sent) in (0, 0xFFFF)


@given(st.binary(max_size=80))
def test_any_bytes_are_a_packet_or_a_bad_one(data: bytes) -> None:
    try:
        packets6.parse_udp(packets6.parse(data))
    except BadPacket:
        return


@pytest.mark.parametrize(("at", "value"), [(12, 8), (14, 0x45), (18, 0xFF)])
def test_what_is_not_whole_ipv6_is_a_bad_packet(at: int, value: int) -> None:
    good = packets6.build(Packet(MAC, OTHER, "::", "ff02::2", packets6.ICMPV6, b"x" * 20))
    with pytest.raises(BadPacket):
        packets6.parse(good[:at] + bytes((value,)) + good[at + 1 :])


def test_groups_have_macs_of_their_own() -> None:
    assert packets6.multicast_mac("ff02::1:2") == "33:33:00:01:00:02"
