from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.guestnet.tftp import codec
from atoll.guestnet.tftp.codec import Ack, BadPacket, Data, Error, Mode, Options, Request

words = st.text(st.characters(min_codepoint=1, max_codepoint=0x7E), min_size=1, max_size=20)
options = st.dictionaries(words.map(str.lower), words, max_size=5)
numbers = st.integers(0, 0xFFFF)
packets = st.one_of(
    st.builds(Request, words, st.sampled_from(Mode), options, st.booleans()),
    st.builds(Data, numbers, st.binary(max_size=600)),
    st.builds(Ack, numbers),
    st.builds(Options, options.filter(bool)),
    st.builds(Error, numbers, words),
)


@given(packets)
def test_what_is_built_is_read_back(packet: codec.Packet) -> None:
    assert codec.parse(codec.build(packet)) == packet


@given(st.binary(max_size=80))
def test_any_bytes_are_a_packet_or_a_bad_one(data: bytes) -> None:
    try:
        codec.parse(data)
    except BadPacket:
        return


def test_a_request_is_read_as_firmware_sends_it() -> None:
    packet = b"\0\1/pxelinux.0\0OCTET\0TSIZE\x000\0blksize\x001456\0"
    assert codec.parse(packet) == Request("/pxelinux.0", Mode.OCTET, {"tsize": "0", "blksize": "1456"})


def test_zeros_behind_a_request_are_padding() -> None:
    assert codec.parse(b"\0\1file\0octet\0\0\0\0") == Request("file", Mode.OCTET)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0",
        b"\0\7",
        b"\0\4\0",
        b"\0\1file\0octet",
        b"\0\1file\0",
        b"\0\1\0octet\0",
        b"\0\1file\0mail\0",
        b"\0\1file\0octet\0blksize\0",
        b"\0\1file\0octet\0a\x001\0A\x002\0",
        b"\0\1\xff\xfe\0octet\0",
        b"\0\1" + b"a" * codec.LARGEST_REQUEST + b"\0octet\0",
        b"\0\1f\0octet\0" + b"".join(b"%d\x000\0" % number for number in range(17)),
    ],
)
def test_what_is_damaged_is_a_bad_packet(data: bytes) -> None:
    with pytest.raises(BadPacket):
        codec.parse(data)


def test_text_has_the_line_ends_of_netascii() -> None:
    assert codec.netascii(b"a\nb\r\nc\r") == b"a\r\nb\r\0\r\nc\r\0"
