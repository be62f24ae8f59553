"""Folding: a few of each kind are told, the rest is a number, and nothing grows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from atoll.system.folding import OTHERS, Folding


def test_the_first_of_a_kind_are_told_and_the_rest_is_a_number() -> None:
    folding = Folding(most=2, window_s=10, kinds=8)
    assert [folding.tell("a", now) for now in range(5)] == ["a", "a", None, None, None]
    assert folding.tell("b", 5) == "b"
    assert folding.over(9.9) == []
    assert folding.over(10) == [("a", 3)]
    assert folding.tell("a", 11) == "a"


def test_a_kind_that_was_told_whole_has_no_number() -> None:
    folding = Folding(most=2, window_s=10, kinds=8)
    folding.tell("a", 0)
    assert folding.over(20) == []


def test_more_kinds_than_are_kept_apart_are_one() -> None:
    folding = Folding(most=1, window_s=10, kinds=2)
    assert [folding.tell(kind, 0) for kind in "abcd"] == ["a", "b", OTHERS, None]
    assert folding.over(10) == [(OTHERS, 1)]


@given(st.lists(st.tuples(st.text(max_size=2), st.floats(0, 3)), max_size=200))
def test_each_is_told_or_counted_and_no_more_is_kept_than_allowed(events: list[tuple[str, float]]) -> None:
    folding = Folding(most=2, window_s=5, kinds=3)
    now, told, counted = 0.0, 0, 0
    for kind, pause in events:
        now += pause
        counted += sum(count for _, count in folding.over(now))
        told += folding.tell(kind, now) is not None
        assert len(folding._seen) <= 4
    counted += sum(count for _, count in folding.over(now + 5))
    assert told + counted == len(events)
