from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from atoll.api.hands import FIRST_WINDOW, MOST_DATA, WINDOW
from atoll.api.running import Window


def test_before_the_service_has_said_anything_little_is_sent_in_small_frames() -> None:
    window = Window()
    pieces = window.pieces(bytes(window.room))

    assert sum(map(len, pieces)) == FIRST_WINDOW
    assert max(map(len, pieces)) == FIRST_WINDOW // 8
    assert window.room == 0


def test_a_service_that_takes_no_large_frames_gets_none() -> None:
    window = Window()
    window.pieces(bytes(FIRST_WINDOW))
    window.taken(FIRST_WINDOW)

    assert max(map(len, window.pieces(bytes(FIRST_WINDOW)))) == FIRST_WINDOW // 8


def test_once_there_is_more_room_frames_are_large() -> None:
    window = Window()
    window.taken(WINDOW - FIRST_WINDOW)

    assert [len(piece) for piece in window.pieces(bytes(2 * MOST_DATA + 1))] == [MOST_DATA, MOST_DATA, 1]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3 * WINDOW))))
def test_the_room_is_never_more_than_the_window_and_nothing_is_lost(said: list[tuple[bool, int]]) -> None:
    window = Window()
    for is_taken, size in said:
        if is_taken:
            window.taken(size)
        else:
            data = bytes(min(size, window.room))
            assert b"".join(window.pieces(data)) == data
        assert 0 <= window.room <= WINDOW
