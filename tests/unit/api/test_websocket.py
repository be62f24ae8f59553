from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.api.websocket import (
    BINARY,
    CLOSE,
    MOST_MESSAGE,
    PING,
    TEXT,
    Message,
    Reader,
    bulk,
    handshake,
    masked,
)
from atoll.errors import Unreachable


def served(kind: int, data: bytes, *, final: bool = True) -> bytes:
    """A frame as services send them: without a mask."""
    size = len(data)
    head = bytes(((0x80 if final else 0) | kind,))
    if size < 126:
        return head + bytes((size,)) + data
    if size < 1 << 16:
        return head + b"\x7e" + size.to_bytes(2, "big") + data
    return head + b"\x7f" + size.to_bytes(8, "big") + data


MESSAGES = st.lists(
    st.builds(Message, st.sampled_from([TEXT, BINARY, PING, CLOSE]), st.binary(max_size=300)), max_size=8
)


@given(MESSAGES, st.data())
def test_messages_are_understood_in_pieces_of_any_size(messages: list[Message], data: st.DataObject) -> None:
    stream = b"".join(served(each.kind, each.data) for each in messages)
    reader, found = Reader(), []
    while stream:
        cut = data.draw(st.integers(1, len(stream)))
        found += reader.feed(stream[:cut])
        stream = stream[cut:]
    assert found == messages


def test_a_message_in_parts_is_one_and_a_ping_may_come_between() -> None:
    stream = served(BINARY, b"a", final=False) + served(PING, b"?") + served(0, b"b")
    assert Reader().feed(stream) == [Message(PING, b"?"), Message(BINARY, b"ab")]


@given(st.binary(max_size=2000))
def test_no_bytes_break_the_reader(data: bytes) -> None:
    try:
        for message in Reader().feed(data):
            assert len(message.data) <= MOST_MESSAGE
    except Unreachable:
        pass


@pytest.mark.parametrize(
    "stream",
    [
        b"\x82\x81" + bytes(5),  # masked
        b"\xf2\x00",  # reserved bits
        b"\x83\x00",  # no known kind
        b"\x80\x00",  # goes on with nothing
        b"\x02\x00\x82\x00",  # begins twice
        b"\x09\x00",  # a ping in parts
        b"\x82\x7f" + (MOST_MESSAGE + 1).to_bytes(8, "big"),
    ],
)
def test_what_is_no_websocket_is_refused(stream: bytes) -> None:
    with pytest.raises(Unreachable):
        Reader().feed(stream)


@given(st.sampled_from([TEXT, BINARY]), st.binary(max_size=70_000), st.binary(min_size=4, max_size=4))
def test_a_frame_of_ours_is_masked_and_whole(kind: int, data: bytes, mask: bytes) -> None:
    frame = masked(kind, data, mask)
    size, at = frame[1] & 0x7F, 2
    if size >= 126:
        at = 4 if size == 126 else 10
        size = int.from_bytes(frame[2:at], "big")
    assert (frame[0], frame[1] & 0x80, size) == (0x80 | kind, 0x80, len(data))
    assert frame[at : at + 4] == mask
    assert bytes(byte ^ mask[n % 4] for n, byte in enumerate(frame[at + 4 :])) == data


@given(st.lists(st.binary(max_size=70_000), max_size=3))
def test_bytes_in_bulk_are_one_frame_whose_mask_changes_nothing(parts: list[bytes]) -> None:
    data = b"".join(parts)
    assert bulk(*parts) == masked(BINARY, data, bytes(4))


def test_the_handshake_is_that_of_the_standard() -> None:
    request, accept = handshake("node:6976", "/v1/vms/web/exec")
    assert request.startswith(b"GET /v1/vms/web/exec HTTP/1.1\r\nHost: node:6976\r\n")
    assert len(accept) == 28
