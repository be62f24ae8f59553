from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.model.vm import RestartPolicy
from atoll.plan import policies
from atoll.plan.policies import Backoff, Due, Duty, Verdict, after_exit, next_due, within

NOW = datetime(2024, 1, 1, tzinfo=UTC)
BACKOFF = Backoff(first_s=1, longest_s=60, limit=5, window_s=600)


def ago(*seconds: float) -> tuple[datetime, ...]:
    return tuple(NOW - timedelta(seconds=each) for each in seconds)


def verdict(policy: RestartPolicy = RestartPolicy.ON_CRASH, **changes: Any) -> Verdict:
    settings: dict[str, Any] = {
        "powered_off": False,
        "destroy_on_power_down": False,
        "protected": False,
        "restarted_at": (),
        "now": NOW,
        "backoff": BACKOFF,
    }
    return after_exit(policy, **settings | changes)


def table() -> dict[tuple[str, bool], str]:
    """The table at the top of the module: (policy, powered off) -> what becomes of it."""
    text = (policies.__doc__ or "").partition("-----\n")[2].partition("\n\n")[0]
    rows = [re.split(r"\s{2,}", line) for line in text.splitlines()]
    return {(row[0], off): row[1 if off else 2] for row in rows for off in (True, False)}


@pytest.mark.parametrize("powered_off", [True, False])
@pytest.mark.parametrize("policy", RestartPolicy)
def test_what_goes_down_is_started_again_as_the_table_says(policy: RestartPolicy, powered_off: bool):
    said = table()[policy, powered_off]
    assert (verdict(policy, powered_off=powered_off).restart_at is not None) == (said == "starts again")


def test_each_restart_waits_twice_as_long_as_the_one_before_it():
    waits = []
    for count in range(5):
        found = verdict(restarted_at=ago(*range(count)))
        assert found.restart_at is not None
        waits.append((found.restart_at - NOW).total_seconds())
        assert found.note == f"restart {count + 1} of 5 in {waits[-1]:g} s"
    assert waits == [1, 2, 4, 8, 16]


def test_one_that_goes_down_too_often_stays_down_and_says_so():
    assert verdict(restarted_at=ago(1, 2, 3, 4, 5)) == Verdict(note="given up after 5 restarts in 10 min")


def test_restarts_of_long_ago_do_not_count():
    assert verdict(restarted_at=ago(601, 602, 603, 604, 605)).restart_at == NOW + timedelta(seconds=1)
    assert within(ago(10, 599, 600), NOW, BACKOFF) == ago(10, 599)


@given(st.integers(0, 10_000))
def test_no_restart_waits_longer_than_the_longest(restarts: int):
    assert BACKOFF.first_s <= BACKOFF.delay_s(restarts) <= BACKOFF.longest_s


def test_one_that_is_destroyed_on_power_down_goes_when_its_guest_powers_off_and_not_when_it_dies():
    assert verdict(powered_off=True, destroy_on_power_down=True) == Verdict(destroy=True)
    assert not verdict(powered_off=False, destroy_on_power_down=True).destroy


def test_protection_is_stronger_than_destroy_on_power_down():
    kept = verdict(powered_off=True, destroy_on_power_down=True, protected=True)
    assert kept == Verdict(note="kept, since it is protected")


def due(**changes: Any) -> Due | None:
    settings: dict[str, Any] = dict.fromkeys(("acknowledge_by", "expires_at", "restart_at"))
    return next_due(**settings | {"protected": False, "drained": False} | changes)


def test_the_first_of_its_duties_is_the_next():
    later = NOW + timedelta(seconds=1)
    assert due() is None
    assert due(expires_at=later, restart_at=NOW) == Due(Duty.RESTART, NOW)
    assert due(expires_at=NOW, restart_at=later) == Due(Duty.EXPIRE, NOW)
    assert due(acknowledge_by=NOW, expires_at=NOW, restart_at=NOW) == Due(Duty.UNDO, NOW)


def test_what_is_protected_does_not_expire():
    assert due(expires_at=NOW, protected=True) is None


def test_a_drained_node_starts_nothing_again():
    assert due(restart_at=NOW, drained=True) is None
    assert due(restart_at=NOW, expires_at=NOW, drained=True) == Due(Duty.EXPIRE, NOW)
