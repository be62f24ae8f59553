from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from atoll.cli.cloud.keeper import FIRST_PAUSE_S, LAST_PAUSE_S, SETTLED_S, pause_after


def test_an_agent_that_keeps_failing_is_started_less_and_less_often():
    pauses, pause = [], 0.0
    for _ in range(10):
        pause = pause_after(pause, ran_s=0.5)
        pauses.append(pause)
    assert pauses == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0]


def test_one_that_ran_well_is_started_at_once():
    assert pause_after(LAST_PAUSE_S, ran_s=SETTLED_S) == FIRST_PAUSE_S


@given(st.floats(0, 1e6), st.floats(0, 1e6))
def test_a_pause_is_never_too_short_nor_too_long(pause: float, ran: float) -> None:
    assert FIRST_PAUSE_S <= pause_after(pause, ran) <= LAST_PAUSE_S
