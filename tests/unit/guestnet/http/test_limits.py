"""What one caller of the metadata server can take from the others."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from atoll.guestnet.http.limits import Limits, Shares

A, B = "10.1.0.5", "10.1.0.6"


def test_a_caller_fills_its_own_share_and_leaves_the_others_theirs() -> None:
    shares = Shares(Limits(connections_per_guest=2))
    assert [shares.enter(A, 1) for _ in range(3)] == [True, True, False]
    assert shares.enter(B, 1)


def test_who_leaves_makes_room_for_one_more() -> None:
    shares = Shares(Limits(connections_per_guest=1))
    shares.enter(A, 1)
    shares.leave(A)
    assert [shares.enter(A, 1), shares.enter(A, 1)] == [True, False]


def test_all_together_stay_under_the_total() -> None:
    shares = Shares(Limits(connections=3))
    assert [shares.enter(f"10.1.0.{n}", 1) for n in range(5)] == [True, True, True, False, False]


def test_a_caller_above_its_pace_waits_for_the_next_second() -> None:
    shares = Shares(Limits(per_guest_per_s=2))
    assert [shares.spend(A, 1) for _ in range(3)] == [True, True, False]
    assert shares.spend(B, 1)
    assert shares.spend(A, 2)


def test_connections_count_towards_the_pace() -> None:
    shares = Shares(Limits(per_guest_per_s=2))
    for _ in range(2):
        shares.enter(A, 1)
        shares.leave(A)
    assert not shares.enter(A, 1)
    assert shares.enter(A, 2)


@given(st.lists(st.tuples(st.sampled_from([A, B]), st.booleans())))
def test_no_sequence_of_comings_and_goings_exceeds_or_leaks(steps: list[tuple[str, bool]]) -> None:
    shares = Shares(Limits(connections_per_guest=3, connections=4))
    inside = {A: 0, B: 0}
    for ip, comes in steps:
        if comes:
            room = inside[ip] < 3 and sum(inside.values()) < 4
            assert shares.enter(ip, 1) == room
            inside[ip] += room
        elif inside[ip]:
            shares.leave(ip)
            inside[ip] -= 1
