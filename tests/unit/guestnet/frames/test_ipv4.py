"""Frames survive the way to bytes and back; bytes that are no UDP frame are refused."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.guestnet.dhcp.codec import BadPacket
from atoll.guestnet.frames import ipv4 as frames
from atoll.guestnet.frames.ipv4 import Datagram

ips = st.ip_addresses(v=4).map(str)
macs = st.binary(min_size=6, max_size=6).map(lambda raw: raw.hex(":"))
ports = st.integers(0, 65535)
datagrams = st.builds(
    Datagram,
    source_mac=macs,
    target_mac=macs,
    source_ip=ips,
    target_ip=ips,
    source_port=ports,
    target_port=ports,
    payload=st.binary(max_size=64),
)
HELLO = frames.build(
    Datagram("52:54:0a:00:00:01", "52:54:0a:00:00:02", "10.0.0.1", "10.0.0.2", 68, 67, b"hello")
)


def folded(data: bytes) -> int:
    """The sum of 16-bit words with end-around carry, as RFC 1071 has it."""
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def changed(at: int, value: bytes) -> bytes:
    return HELLO[:at] + value + HELLO[at + len(value) :]


@given(datagrams, st.binary(max_size=20))
def test_a_datagram_comes_back_as_it_went_and_padding_is_cut(datagram: Datagram, padding: bytes) -> None:
    assert frames.parse(frames.build(datagram) + padding) == datagram


@given(datagrams)
def test_the_checksums_are_those_that_a_receiver_expects(datagram: Datagram) -> None:
    frame = frames.build(datagram)
    header, udp = frame[14:34], frame[34:]
    assert folded(header) == 0xFFFF
    assert folded(header[12:20] + struct.pack("!HH", 17, len(udp)) + udp) == 0xFFFF
    assert udp[6:8] != b"\0\0"


@given(st.binary(max_size=100), st.data())
def test_anything_is_a_datagram_or_a_bad_packet(noise: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(HELLO)))
    for candidate in (noise, HELLO[:at], HELLO[:at] + noise, changed(at, noise)):
        try:
            frames.parse(candidate)
        except BadPacket:
            continue


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(HELLO[:41], id="short"),
        pytest.param(changed(12, b"\x86\xdd"), id="IPv6"),
        pytest.param(changed(14, b"\x65"), id="version 6"),
        pytest.param(changed(14, b"\x44"), id="header of 16 bytes"),
        pytest.param(changed(14, b"\x4f"), id="header beyond the packet"),
        pytest.param(changed(16, b"\x00\x1b"), id="no room for UDP"),
        pytest.param(changed(16, b"\x00\x22"), id="longer than the frame"),
        pytest.param(changed(20, b"\x20\x00"), id="more fragments"),
        pytest.param(changed(20, b"\x00\x01"), id="fragment offset"),
        pytest.param(changed(23, b"\x06"), id="TCP"),
        pytest.param(changed(38, b"\x00\x07"), id="UDP of 7 bytes"),
        pytest.param(changed(38, b"\x00\x0e"), id="UDP longer than the packet"),
    ],
)
def test_what_is_not_a_whole_udp_datagram_is_refused(frame: bytes) -> None:
    with pytest.raises(BadPacket):
        frames.parse(frame)


def test_ip_options_are_skipped() -> None:
    frame = HELLO[:14] + b"\x46\x00\x00\x25" + HELLO[18:34] + b"\x01\x01\x01\x00" + HELLO[34:]
    assert frames.parse(frame).payload == b"hello"


def test_jumps_of_the_filter_stay_inside_it() -> None:
    program = frames.udp_filter(67)
    instructions = [struct.unpack_from("=HBBI", program, at) for at in range(0, len(program), 8)]
    for at, (_, when_true, when_false, _) in enumerate(instructions):
        assert at + 1 + max(when_true, when_false) <= len(instructions)
    assert instructions[-1] == (0x06, 0, 0, 0)
