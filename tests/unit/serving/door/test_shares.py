"""Shares of a door: nobody takes more than theirs, strangers take nothing from who is known, and all is given back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.serving.door.shares import Entry, Limits, Shares, guests_limits, operators_limits

LIMITS = Limits(
    strangers=6, strangers_per_source=3, known=4, known_per_source=2, new_per_source_per_s=5, new_per_s=9
)
IN, TOO_MANY, TOO_FAST = Entry.ADMITTED, Entry.TOO_MANY, Entry.TOO_FAST


def test_a_source_has_so_many_connections_and_another_its_own() -> None:
    shares = Shares(LIMITS)
    assert [shares.enter("a", 0) for _ in range(4)] == [IN, IN, IN, TOO_MANY]
    assert shares.enter("b", 0) is IN
    shares.leave("a", known=False)
    assert shares.enter("a", 0) is IN


def test_a_source_makes_so_many_a_second_also_when_it_closes_them() -> None:
    shares = Shares(LIMITS)
    for _ in range(5):
        assert shares.enter("a", 7) is IN
        shares.leave("a", known=False)
    assert shares.enter("a", 7) is TOO_FAST
    assert shares.enter("b", 7) is IN
    assert shares.enter("a", 8) is IN


def test_all_sources_together_make_so_many_a_second() -> None:
    shares = Shares(LIMITS)
    entries = [shares.enter(f"s{number // 3}", 1) for number in range(12)]
    assert entries == [IN] * 9 + [TOO_FAST] * 3


def test_one_more_stranger_than_there_is_room_for_is_seen() -> None:
    shares = Shares(LIMITS)
    for number in range(6):
        shares.enter(f"s{number}", 0)
    assert not shares.full_of_strangers
    shares.enter("one more", 0)
    assert shares.full_of_strangers


def test_who_is_known_leaves_its_place_to_strangers() -> None:
    shares = Shares(LIMITS)
    for _ in range(3):
        shares.enter("a", 0)
    assert shares.know("a")
    assert (shares.strangers, shares.known) == (2, 1)
    assert shares.enter("a", 0) is IN


def test_where_there_is_no_place_among_the_known_a_caller_stays_a_stranger() -> None:
    shares = Shares(LIMITS)
    known = [(shares.enter("a", 0), shares.know("a"))[1] for _ in range(3)]
    assert known == [True, True, False]
    assert (shares.strangers, shares.known) == (1, 2)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["enter", "know", "leave"])), max_size=80))
def test_what_came_has_left_in_the_end(events: list[tuple[str, str]]) -> None:
    shares = Shares(LIMITS)
    here: list[tuple[str, bool]] = []
    for second, (source, event) in enumerate(events):
        if event == "enter" and shares.enter(source, second) is IN:
            here.append((source, False))
        elif event == "know" and (source, False) in here and shares.know(source):
            here[here.index((source, False))] = (source, True)
        elif event == "leave" and (mine := [one for one in here if one[0] == source]):
            here.remove(mine[0])
            shares.leave(source, known=mine[0][1])
        for one in "abc":
            assert sum(known for who, known in here if who == one) <= LIMITS.known_per_source
            assert sum(not known for who, known in here if who == one) <= LIMITS.strangers_per_source
        assert shares.known <= LIMITS.known
    for source, known in here:
        shares.leave(source, known=known)
    assert (shares.strangers, shares.known) == (0, 0)


@pytest.mark.parametrize("descriptors", [256, 1024, 4096, 20_000, 1 << 20])
def test_both_doors_together_leave_more_than_half_of_the_descriptors(descriptors: int) -> None:
    doors = operators_limits(descriptors), guests_limits(descriptors)
    assert sum(door.strangers + door.known for door in doors) <= descriptors / 2
    for door in doors:
        assert 1 <= door.strangers_per_source <= door.strangers / 2
        assert 1 <= door.known_per_source <= door.known / 2
