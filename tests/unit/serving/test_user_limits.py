from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import TooMany
from atoll.serving import user_limits
from atoll.serving.user_limits import Pace, Shares, too_fast


@given(st.integers(1, 50), st.integers(1, 20), st.lists(st.floats(0, 2), max_size=200))
def test_in_any_time_there_are_never_more_than_the_burst_and_what_the_pace_allows(
    per_s: int, burst: int, pauses: list[float]
):
    pace, now, went = Pace(per_s, burst), 0.0, 0
    for pause in pauses:
        now += pause
        went += pace.wait_s("ann", now) == 0
        assert went <= burst + now * per_s + 1e-3


@given(st.integers(1, 50), st.integers(1, 20))
def test_who_waits_as_long_as_told_goes_ahead(per_s: int, burst: int):
    pace, now = Pace(per_s, burst), 100.0
    assert [pace.wait_s("ann", now) for _ in range(burst)] == [0] * burst
    wait = pace.wait_s("ann", now)
    assert 0 < wait <= 1 / per_s + 1e-9
    assert pace.wait_s("bob", now) == 0
    assert pace.wait_s("ann", now + wait) == 0


def test_users_who_are_quiet_are_forgotten(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(user_limits, "_REMEMBERED", 10)
    pace = Pace(1, 1)
    for number in range(100):
        assert pace.wait_s(f"user{number}", 10.0 * number) == 0
    assert len(pace._paid_until) <= 10
    assert pace.wait_s("user99", 990.0) > 0


def test_shares_are_apart_by_user_and_kind_and_are_given_back():
    shares = Shares()
    shares.enter("ann", "streams", 1)
    shares.enter("ann", "launches", 1)
    shares.enter("bob", "streams", 1)
    with pytest.raises(TooMany, match="ann has 1 streams open, and may have 1") as refusal:
        shares.enter("ann", "streams", 1)
    assert refusal.value.details == {"retry_after_s": 5}
    shares.enter("ann", "streams", None)
    for _ in range(2):
        shares.leave("ann", "streams")
    shares.enter("ann", "streams", 1)


def test_a_wait_is_told_in_whole_seconds():
    assert too_fast("ann", 5, 0.01).details == {"retry_after_s": 1}
    assert too_fast("ann", 5, 1.2).details == {"retry_after_s": 2}
