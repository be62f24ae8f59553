"""DHCP messages survive the way to bytes and back; bytes that are no message are refused in one way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.guestnet.dhcp import codec
from atoll.guestnet.dhcp.codec import BadPacket, Code, Kind, Message

FIXED_BYTES = 236
SNAME_AT, FILE_AT = 44, 108
COOKIE = b"\x63\x82\x53\x63"
MAC = bytes.fromhex("52540a000005").ljust(16, b"\0")

ips = st.ip_addresses(v=4).map(str)
octets = st.integers(0, 255)
sized = {
    Code.SUBNET_MASK: 4,
    Code.REQUESTED_IP: 4,
    Code.LEASE_TIME: 4,
    Code.MESSAGE_TYPE: 1,
    Code.SERVER_ID: 4,
    Code.MAX_SIZE: 2,
}
free_codes = octets.filter(lambda code: code not in (0, 52, 255) and code not in sized)


@st.composite
def messages(draw: st.DrawFn, longest: int = 40, most: int = 5) -> Message:
    options = dict(
        draw(
            st.lists(
                st.tuples(free_codes, st.binary(max_size=longest)), max_size=most, unique_by=lambda o: o[0]
            )
        )
    )
    for code, length in draw(
        st.fixed_dictionaries({}, optional={c: st.just(n) for c, n in sized.items()})
    ).items():
        options[code] = draw(st.binary(min_size=length, max_size=length))
    text = st.binary(max_size=60).map(lambda raw: raw.rstrip(b"\0"))
    return Message(
        op=draw(octets),
        htype=draw(octets),
        hlen=draw(octets),
        hops=draw(octets),
        xid=draw(st.integers(0, 0xFFFFFFFF)),
        secs=draw(st.integers(0, 0xFFFF)),
        flags=draw(st.integers(0, 0xFFFF)),
        ciaddr=draw(ips),
        yiaddr=draw(ips),
        siaddr=draw(ips),
        giaddr=draw(ips),
        chaddr=draw(st.binary(min_size=16, max_size=16)),
        sname=draw(text),
        file=draw(text),
        options=options,
    )


def raw(options: bytes, sname: bytes = b"", file: bytes = b"") -> bytes:
    data = bytearray(FIXED_BYTES)
    data[SNAME_AT : SNAME_AT + len(sname)] = sname
    data[FILE_AT : FILE_AT + len(file)] = file
    return bytes(data) + COOKIE + options


@given(messages())
def test_a_message_comes_back_as_it_went(message: Message) -> None:
    assert codec.parse(codec.build(message, 1400)) == message


@given(messages(longest=700, most=3))
def test_an_option_of_more_than_255_bytes_is_split_and_joined_again(message: Message) -> None:
    assert codec.parse(codec.build(message, 9000)) == message


@given(messages(longest=120, most=6), st.integers(548, 900))
def test_a_built_message_keeps_to_its_limit_and_everything_that_arrives_is_right(
    message: Message, limit: int
) -> None:
    data = codec.build(message, limit)
    assert 300 <= len(data) <= limit
    arrived = codec.parse(data).options
    assert arrived.items() <= message.options.items()


@given(st.binary(max_size=600))
def test_random_bytes_are_a_message_or_a_bad_packet(data: bytes) -> None:
    for candidate in (data, raw(data), raw(data[:40], file=data[:128], sname=data[:64])):
        try:
            message = codec.parse(candidate)
        except BadPacket:
            continue
        assert isinstance(message, Message)


@given(messages(), st.data())
def test_a_cut_or_changed_message_is_a_message_or_a_bad_packet(message: Message, data: st.DataObject) -> None:
    packet = bytearray(codec.build(message, 1400))
    for _ in range(data.draw(st.integers(1, 4))):
        packet[data.draw(st.integers(0, len(packet) - 1))] = data.draw(octets)
    try:
        codec.parse(bytes(packet[: data.draw(st.integers(0, len(packet)))]))
    except BadPacket:
        return


def test_options_that_find_no_room_move_to_the_free_fields() -> None:
    options = {
        Code.MESSAGE_TYPE: b"\x05",
        Code.DOMAIN: b"d" * 250,
        Code.HOST_NAME: b"h" * 63,
        Code.DNS: b"\x0a" * 40,
    }
    message = Message(op=2, xid=1, chaddr=MAC, options=options)
    data = codec.build(message)
    assert len(data) <= codec.SMALLEST_LIMIT
    assert data[FILE_AT] == Code.HOST_NAME
    assert codec.parse(data) == message


def test_a_field_in_use_is_not_overloaded_and_the_last_option_is_left_out() -> None:
    options = {Code.MESSAGE_TYPE: b"\x05", Code.DOMAIN: b"d" * 250, Code.HOST_NAME: b"h" * 63}
    message = Message(op=2, xid=1, chaddr=MAC, sname=b"boot", file=b"kernel", options=options)
    arrived = codec.parse(codec.build(message))
    assert (arrived.sname, arrived.file) == (b"boot", b"kernel")
    assert list(arrived.options) == [Code.MESSAGE_TYPE, Code.DOMAIN]


def test_pads_are_skipped_and_what_follows_the_end_mark_is_not_read() -> None:
    message = codec.parse(raw(b"\0\0\x35\x01\x03\0\xff\x32\x04abcd"))
    assert message.kind is Kind.REQUEST
    assert message.requested_ip is None


def test_a_missing_end_mark_is_forgiven() -> None:
    assert codec.parse(raw(b"\x35\x01\x01")).kind is Kind.DISCOVER


def test_an_option_in_two_parts_is_joined() -> None:
    assert codec.parse(raw(b"\x37\x02\x01\x03\x35\x01\x01\x37\x01\x06\xff")).parameters == b"\x01\x03\x06"


@pytest.mark.parametrize(
    ("overload", "requested", "server"),
    [(1, "1.2.3.4", None), (2, None, "9.8.7.6"), (3, "1.2.3.4", "9.8.7.6")],
)
def test_overloaded_fields_are_read_as_options(overload: int, requested: str, server: str) -> None:
    file, sname = b"\x32\x04\x01\x02\x03\x04\xff", b"\x36\x04\x09\x08\x07\x06\xff"
    message = codec.parse(raw(bytes((52, 1, overload, 255)), sname=sname, file=file))
    assert (message.requested_ip, message.server_id) == (requested, server)
    assert (message.file == b"", message.sname == b"") == (bool(overload & 1), bool(overload & 2))
    assert Code.OVERLOAD not in message.options


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(bytes(239), id="short"),
        pytest.param(bytes(300), id="no cookie"),
        pytest.param(raw(b"\x35"), id="no length"),
        pytest.param(raw(b"\x35\x05\x01"), id="option cut off"),
        pytest.param(raw(b"\x35\x00\xff"), id="kind of no bytes"),
        pytest.param(raw(b"\x35\x02\x01\x01\xff"), id="kind of two bytes"),
        pytest.param(raw(b"\x35\x01\x01\x35\x01\x03\xff"), id="two kinds"),
        pytest.param(raw(b"\x32\x03abc\xff"), id="short address"),
        pytest.param(raw(b"\x39\x01\x05\xff"), id="short size"),
        pytest.param(raw(b"\x34\x01\x04\xff"), id="overload of 4"),
        pytest.param(raw(b"\x34\x01\x01\xff", file=b"\x34\x01\x01\xff"), id="overload twice"),
        pytest.param(raw(b"\x34\x01\x01\xff", file=b"\x0c\xff"), id="overloaded field cut off"),
    ],
)
def test_what_cannot_be_read_is_a_bad_packet(data: bytes) -> None:
    with pytest.raises(BadPacket):
        codec.parse(data)


def test_an_unknown_kind_is_none() -> None:
    assert codec.parse(raw(b"\x35\x01\x63\xff")).kind is None
    assert codec.parse(raw(b"\xff")).kind is None
