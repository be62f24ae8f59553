from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.guestnet.metadata.tokens import (
    BAD_TTL,
    FORWARDED,
    FORWARDED_HEADER,
    MAX_TTL_S,
    TOKEN_HEADER,
    TTL_HEADER,
    Tokens,
)

TOKENS = Tokens(b"k" * 32)


def given_for(ttl: str, holder: str = "i-1", now_s: float = 1000) -> str:
    found = TOKENS.give({TTL_HEADER: ttl}, holder, now_s)
    assert found.status == 200
    assert found.headers == {TTL_HEADER: str(int(ttl))}
    return found.body.decode()


@pytest.mark.parametrize("ttl", ["1", "60", "021", str(MAX_TTL_S)])
def test_a_token_holds_until_its_time_is_over(ttl: str) -> None:
    token = given_for(ttl)

    assert TOKENS.holds(token, "i-1", 1000)
    assert TOKENS.holds(token, "i-1", 1000 + int(ttl) - 0.001)
    assert not TOKENS.holds(token, "i-1", 1000 + int(ttl))


@pytest.mark.parametrize(
    "ttl", ["", "0", "21601", "-1", "+1", "1.5", " 1", "1 ", "x", "1e3", "٣", "99999999"]
)
def test_a_life_out_of_bounds_is_refused(ttl: str) -> None:
    assert TOKENS.give({TTL_HEADER: ttl}, "i-1", 0) == BAD_TTL


def test_no_life_at_all_is_refused_and_so_is_a_proxy() -> None:
    assert TOKENS.give({}, "i-1", 0) == BAD_TTL
    assert TOKENS.give({TTL_HEADER: "60", FORWARDED_HEADER: ""}, "i-1", 0) == FORWARDED
    assert (BAD_TTL.status, FORWARDED.status) == (400, 403)


def test_a_token_is_of_one_vm_and_of_one_agent() -> None:
    token = given_for("60")

    assert not TOKENS.holds(token, "i-2", 1000)
    assert not Tokens().holds(token, "i-1", 1000)


@given(st.text(max_size=80) | st.binary(max_size=60).map(lambda raw: raw.decode("latin-1")))
def test_nothing_that_we_did_not_give_holds(text: str) -> None:
    assert not TOKENS.holds(text, "i-1", 1000)


@given(st.integers(0, 55), st.sampled_from("ABCabc012_-="))
def test_a_changed_token_does_not_hold(at: int, char: str) -> None:
    token = given_for("60")
    changed = token[:at] + char + token[at + 1 :]

    assert TOKENS.holds(changed, "i-1", 1000) == (changed == token)


@pytest.mark.parametrize(
    ("headers", "required", "admitted"),
    [
        ({}, False, True),
        ({}, True, False),
        ({TOKEN_HEADER: "bad"}, False, False),
        ({TOKEN_HEADER: ""}, False, False),
        ({TOKEN_HEADER: given_for("60")}, True, True),
        ({TOKEN_HEADER: given_for("60")}, False, True),
    ],
)
def test_a_token_must_be_good_where_there_is_one_and_be_there_where_it_is_required(
    headers: dict[str, str], required: bool, admitted: bool
) -> None:
    assert TOKENS.admits(headers, "i-1", 1000, required=required) is admitted
