"""When credentials are due, and what of them is still shown."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from msgspec import structs

from atoll.hypervisor.credentials import is_due, past_half, without_the_ended
from atoll.identity.roles import CloudCredential, RoleCredentials

START = datetime(2026, 1, 1, tzinfo=UTC)
CLOUD = CloudCredential("ASIA", "s", "t", START, START + timedelta(hours=1))
HELD = RoleCredentials("web", {}, {}, START, START + timedelta(hours=4), cloud=CLOUD)


@pytest.mark.parametrize(
    ("minutes", "due", "due_with_a_broker"),
    [(0, False, False), (29, False, False), (30, False, True), (119, False, True), (120, True, True)],
)
def test_each_is_due_at_half_of_its_life(minutes: int, due: bool, due_with_a_broker: bool) -> None:
    now = START + timedelta(minutes=minutes)

    assert is_due(HELD, False, now) is due
    assert is_due(HELD, True, now) is due_with_a_broker


def test_what_is_missing_is_due_at_once() -> None:
    assert is_due(None, False, START)
    assert is_due(structs.replace(HELD, cloud=None), True, START)
    assert not is_due(structs.replace(HELD, cloud=None), False, START)


def test_nothing_is_shown_after_its_end() -> None:
    assert without_the_ended(HELD, START + timedelta(minutes=59)) == HELD
    assert without_the_ended(HELD, START + timedelta(hours=1)) == structs.replace(HELD, cloud=None)
    assert without_the_ended(HELD, START + timedelta(hours=4)) is None


def test_a_renewal_has_half_a_life_to_succeed_in() -> None:
    moment = START + timedelta(hours=2)
    assert past_half(HELD, moment)
    assert not past_half(HELD, moment - timedelta(seconds=1))
