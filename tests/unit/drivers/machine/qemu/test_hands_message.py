from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.drivers.machine.qemu.hands_message import (
    CREDIT,
    HEAD,
    MOST,
    MOST_BEFORE_HELLO,
    Frame,
    Kind,
    Reader,
    frame,
    hello,
    start,
)
from atoll.errors import HostFailure
from atoll.model.command import MAX_BYTES, MAX_VARIABLES, MAX_WORDS, Command, Size

NONCE = bytes(range(16))
SAID = st.lists(
    st.builds(
        Frame,
        st.sampled_from([Kind.OUTPUT, Kind.ERRORS, Kind.TAKEN, Kind.EXIT]),
        st.integers(0, 65_535),
        st.binary(max_size=200),
    ),
    max_size=6,
)


def greeted() -> Reader:
    reader = Reader(NONCE)
    assert reader.feed(frame(Kind.HELLO, 0, NONCE)) == []
    assert reader.greeted
    return reader


@given(st.binary(max_size=400), SAID, st.data())
def test_frames_are_found_behind_whatever_was_left_on_the_way(
    left: bytes, said: list[Frame], data: st.DataObject
) -> None:
    stream = left + frame(Kind.HELLO, 0, NONCE)
    stream += b"".join(frame(Kind(each.kind), each.session, each.data) for each in said)
    reader, found = Reader(NONCE), []
    while stream:
        cut = data.draw(st.integers(1, len(stream)))
        found += reader.feed(stream[:cut])
        stream = stream[cut:]
    assert found == said


@given(st.binary(max_size=2000))
def test_no_bytes_of_a_guest_break_the_reader(data: bytes) -> None:
    try:
        for said in greeted().feed(data):
            assert len(said.data) <= MOST
    except HostFailure:
        pass


def test_a_guest_that_says_everything_but_hello_is_not_listened_to_for_ever() -> None:
    reader = Reader(NONCE)
    with pytest.raises(HostFailure):
        for _ in range(MOST_BEFORE_HELLO // 4096 + 2):
            reader.feed(b"x" * 4096)


@pytest.mark.parametrize(
    "head",
    [
        (Kind.START, 0, 1, 0),
        (99, 0, 1, 0),
        (0, 0, 0, 0),
        (Kind.OUTPUT, 1, 1, 0),
        (Kind.OUTPUT, 0, 1, MOST + 1),
    ],
)
def test_what_is_no_frame_of_a_guest_is_refused(head: tuple[int, int, int, int]) -> None:
    with pytest.raises(HostFailure):
        greeted().feed(struct.pack("!BBHI", *head))


def test_a_greeting_ends_what_was_half_said_whatever_that_was() -> None:
    zeros = hello(NONCE).removesuffix(frame(Kind.HELLO, 0, NONCE))
    assert zeros == bytes(HEAD + MOST)


def test_the_largest_command_fits_into_a_frame() -> None:
    words = ("x",) * (MAX_WORDS - 1)
    variables = {f"V{n}": "" for n in range(MAX_VARIABLES)}
    room = MAX_BYTES - 2 * len(words) - sum(len(name) + 2 for name in variables) - 4097
    command = Command(
        (*words, "y" * (room - 1)), variables, "u" * 32, "/" + "d" * 4095, True, Size(4096, 4096)
    )
    assert HEAD < len(start(1, command)) <= HEAD + MOST


def test_a_command_is_sent_with_the_number_of_its_words() -> None:
    sent = start(7, Command(("ls", "-l"), {"A": "b"}, "joe", "/tmp", terminal=Size(3, 4)))
    assert sent[:HEAD] == struct.pack("!BBHI", Kind.START, 0, 7, len(sent) - HEAD)
    assert sent[HEAD:] == struct.pack("!5H", 3, 4, 0, 2, 1) + b"joe\0/tmp\0ls\0-l\0A=b\0"


def test_what_a_guest_may_send_ahead_is_more_than_a_frame() -> None:
    assert CREDIT >= 2 * MOST
