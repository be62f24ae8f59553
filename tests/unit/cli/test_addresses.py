from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.cli.addresses import parse_addresses, parse_ips, show_ranges
from atoll.errors import Invalid
from atoll.model.network import Address


def test_addresses_may_be_single_ranges_and_pairs():
    assert parse_addresses(["10.0.0.255-10.0.1.0", "10.0.0.9", "52:54:00:00:00:01", "10.0.0.8"]) == (
        Address("10.0.0.255", "52:54:0a:00:00:ff"),
        Address("10.0.1.0", "52:54:0a:00:01:00"),
        Address("10.0.0.9", "52:54:00:00:00:01"),
        Address("10.0.0.8", "52:54:0a:00:00:08"),
    )


@pytest.mark.parametrize(
    "words",
    [
        ["10.0.0.300"],
        ["10.0.0.2-10.0.0.1"],
        ["10.0.0.0-10.2.0.0"],
        ["10.0.0.1-"],
        ["52:54:00:00:00:01"],
        ["10.0.0.1-10.0.0.2", "52:54:00:00:00:01"],
        ["10.0.0.1", "52:54:00:00:00:01", "52:54:00:00:00:02"],
        ["10.0.0.1", "53:54:00:00:00:01"],
        ["10.0.0.1", "10.0.0.1"],
    ],
)
def test_other_addresses_are_refused(words):
    with pytest.raises(Invalid):
        parse_addresses(words)


@given(st.sets(st.integers(0, 40), min_size=1))
def test_addresses_are_shown_as_they_can_be_written(lasts: set[int]) -> None:
    shown = show_ranges(f"10.0.0.{last}" for last in lasts)
    written = [ip for word in shown.split(", ") for ip in parse_ips(word)]
    assert written == [f"10.0.0.{last}" for last in sorted(lasts)]
