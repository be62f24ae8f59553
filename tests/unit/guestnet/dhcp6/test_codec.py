from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.guestnet.dhcp6 import codec
from atoll.guestnet.dhcp6.codec import Code, Ia, Message
from atoll.guestnet.frames.ipv6 import BadPacket

options = st.lists(st.tuples(st.integers(30, 65535), st.binary(max_size=40)), max_size=8).map(tuple)


@given(st.integers(1, 11), st.binary(min_size=3, max_size=3), options)
def test_what_is_built_is_read_back(
    kind: int, transaction: bytes, options: tuple[tuple[int, bytes], ...]
) -> None:
    message = Message(kind, transaction, options)
    assert codec.parse(codec.build(message)) == message


@given(st.binary(max_size=120))
def test_any_bytes_are_a_message_or_a_bad_packet(data: bytes) -> None:
    try:
        codec.parse(b"\1abc" + data)
    except BadPacket:
        return


def test_associations_are_read_with_their_addresses() -> None:
    asked = codec.association(7, 0, 0, codec.address("fd00::5", 0, 0), codec.address("fd00::6", 0, 0))
    message = codec.parse(codec.build(Message(3, b"abc", (asked, codec.association(8, 0, 0)))))
    assert message.associations() == (Ia(7, ("fd00::5", "fd00::6")), Ia(8))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\1ab",
        b"\0abc",
        b"\x0cabc",
        b"\1abc\0",
        b"\1abc\0\1\0\5x",
        b"\1abc\0\1\0\1x",
        b"\1abc\0\3\0\4abcd",
        b"\1abc\0\3\0\x14" + bytes(12) + b"\0\5\0\4abcd",
        b"\1abc\0\x19\0\4abcd",
        b"\1abc" + b"\0\x40\0\0" * 129,
    ],
)
def test_what_is_damaged_is_a_bad_packet(data: bytes) -> None:
    with pytest.raises(BadPacket):
        codec.parse(data)


def test_a_domain_is_written_as_dns_does() -> None:
    assert codec.domains("atoll.internal") == (Code.DOMAINS, b"\5atoll\x08internal\0")
