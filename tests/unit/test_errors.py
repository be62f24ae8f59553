from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import AtollError, Invalid, NoCapacity, NotFound, PoolEmpty, from_wire


def tree(root: type[AtollError] = AtollError) -> list[type[AtollError]]:
    """All errors that have a code of their own; a module may refine one for itself, under the same code."""
    below = [found for child in root.__subclasses__() for found in tree(child)]
    return [root, *below] if "code" in vars(root) else below


# The statuses that scripts rely on: 0 and 130 are not errors.
EXITS = {
    "internal": 1,
    "host_failure": 1,
    "invalid": 2,
    "malformed": 2,
    "too_large": 2,
    "not_found": 3,
    "conflict": 4,
    "unauthenticated": 5,
    "denied": 5,
    "no_capacity": 6,
    "pool_empty": 6,
    "over_quota": 6,
    "unreachable": 7,
    "timed_out": 8,
    "too_many": 9,
}


def test_every_code_has_the_exit_status_that_scripts_rely_on():
    assert {kind.code: kind.exit_status for kind in tree()} == EXITS


def test_no_two_errors_share_a_code():
    codes = [kind.code for kind in tree()]
    assert len(codes) == len(set(codes))


@pytest.mark.parametrize("kind", tree(), ids=lambda kind: kind.code)
def test_an_error_arrives_as_the_type_that_was_sent(kind: type[AtollError]):
    arrived = from_wire(kind.code, "creating x: no", "do y", {"a": 1})
    assert isinstance(arrived, kind)
    assert (arrived.code, arrived.exit_status) == (kind.code, kind.exit_status)
    assert (arrived.brief, arrived.hint, arrived.details) == ("creating x: no", "do y", {"a": 1})
    assert str(arrived) == "creating x: no"


def test_a_code_of_a_newer_peer_stays_an_error_with_its_text():
    arrived = from_wire("quantum_noise", "no", "wait", {})
    assert type(arrived) is AtollError
    assert arrived.exit_status == 1
    assert arrived.brief == "no"


def test_an_empty_pool_is_a_lack_of_capacity():
    assert issubclass(PoolEmpty, NoCapacity)
    assert PoolEmpty("x").exit_status == NoCapacity("x").exit_status


def test_invalid_names_field_value_and_reason():
    error = Invalid("name", "a/b", "must be plain", hint="drop the /")
    assert error.brief == "name 'a/b': must be plain"
    assert error.details == {"field": "name", "value": "'a/b'", "why": "must be plain"}


@given(st.one_of(st.text(), st.binary(), st.integers()))
def test_invalid_shows_any_value_on_one_short_line(value: object):
    brief = Invalid("field", value, "no").brief
    assert brief.isprintable()
    assert len(brief) < 120


def test_invalid_never_shows_bytes():
    assert "secret" not in Invalid("user_data", b"secret", "too long").brief


def test_details_of_two_errors_are_apart():
    first, second = NotFound("a"), NotFound("b")
    first.details["x"] = 1
    assert second.details == {}
