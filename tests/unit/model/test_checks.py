from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import Invalid
from atoll.model import checks
from atoll.model.checks import (
    check_image,
    check_ip,
    check_mac,
    check_name,
    check_principal,
    check_range,
    check_tags,
    network_of,
)

TEXT_CHECKS = [check_name, check_image, check_ip, check_mac, check_principal]
GOOD = {
    check_name: ["a", "web-1", "0", "a" * 63],
    check_image: ["appliance", "debian-12.5", "a_b", "a" * 128],
    check_ip: ["0.0.0.0", "10.1.2.3", "255.255.255.255"],
    check_mac: ["52:54:0a:01:02:03", "00:00:00:00:00:00"],
    check_principal: ["ann", "ann.lee@example.org", "_apt", "X"],
}
BAD = {
    check_name: ["", "-a", "a-", "A", "a_b", "a.b", "a" * 64],
    check_image: ["", "a/b", "../a", "a..b", ".a", "A", "a b", "a" * 129],
    check_ip: ["1.2.3", "01.2.3.4", "256.1.1.1", "1.2.3.4/24", "::1", "1.2.3.4 ", "\u0661.2.3.4"],
    check_mac: ["52-54-0a-01-02-03", "52:54:0A:01:02:03", "01:00:5e:00:00:01", "52:54:0a:01:02", "ff" * 6],
    check_principal: ["", ".a", "a b", "a/b", "a\0", "a" * 129],
}


@pytest.mark.parametrize("check", TEXT_CHECKS, ids=lambda check: check.__name__)
def test_what_is_good_comes_back_unchanged(check: Callable[[str, str], str]):
    assert [check("field", value) for value in GOOD[check]] == GOOD[check]


@pytest.mark.parametrize(
    ("check", "value"),
    [
        (check, value)
        for check in TEXT_CHECKS
        for value in [*BAD[check], *(f"{good}\n" for good in GOOD[check]), "a/../b", "\n", "a\0b", "Ä"]
    ],
)
def test_what_is_bad_is_refused_with_field_and_value(check: Callable[[str, str], str], value: str):
    with pytest.raises(Invalid) as refusal:
        check("the field", value)
    assert refusal.value.brief.startswith("the field '")
    assert refusal.value.exit_status == 2


@given(st.text())
def test_no_text_that_passes_as_a_name_can_leave_its_directory(text: str):
    for check in (check_name, check_image, check_ip, check_mac, check_principal):
        try:
            check("field", text)
        except Invalid:
            continue
        assert "/" not in text
        assert text not in (".", "..")
        assert text.isprintable()


@given(st.ip_addresses(v=4).map(str))
def test_every_ipv4_address_passes(ip: str):
    assert check_ip("ip", ip) == ip


@given(st.text(alphabet="0123456789.", min_size=5, max_size=17))
def test_an_ip_passes_just_when_the_library_takes_it(text: str):
    try:
        ipaddress.IPv4Address(text)
        known = True
    except ValueError:
        known = False
    try:
        check_ip("ip", text)
        ours = True
    except Invalid:
        ours = False
    assert ours == known


@given(st.integers(0, 2**32 - 1), st.integers(8, 30))
def test_a_network_passes_just_when_it_has_no_host_bits(number: int, prefix: int):
    text = f"{ipaddress.IPv4Address(number)}/{prefix}"
    if number & ((1 << (32 - prefix)) - 1):
        with pytest.raises(Invalid, match="host bits"):
            network_of("cidr", text)
    else:
        assert str(network_of("cidr", text)) == text


@pytest.mark.parametrize(
    "cidr", ["10.0.0.0", "10.0.0.0/7", "10.0.0.0/31", "10.0.0.0/032", "fe80::/64", "x/8"]
)
def test_a_network_of_another_size_or_shape_is_refused(cidr: str):
    with pytest.raises(Invalid):
        network_of("cidr", cidr)


def test_host_bits_are_refused_with_the_network_that_was_meant():
    with pytest.raises(Invalid) as refusal:
        network_of("cidr", "10.1.2.3/24")
    assert refusal.value.hint == "the network is 10.1.2.0/24"


@given(st.integers(-100, 100), st.integers(-100, 0), st.integers(0, 100))
def test_a_range_takes_just_what_is_inside(value: int, low: int, high: int):
    if low <= value <= high:
        assert check_range("n", value, low, high) == value
    else:
        with pytest.raises(Invalid, match=f"from {low} to {high} MiB"):
            check_range("n", value, low, high, "MiB")


@pytest.mark.parametrize("value", [True, 1.0, "1", None])
def test_a_range_takes_whole_numbers_only(value: object):
    with pytest.raises(Invalid):
        check_range("n", value, 0, 10)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "tags",
    [
        {"": "v"},
        {"a b": "v"},
        {"k": "line\n"},
        {"k": "x" * 257},
        {"k" * 65: "v"},
        {str(i): "v" for i in range(65)},
    ],
    ids=["no key", "blank in key", "newline", "long value", "long key", "65 tags"],
)
def test_bad_tags_are_refused(tags: dict[str, str]):
    with pytest.raises(Invalid, match="tag"):
        check_tags("tag", tags)


def test_tags_may_be_what_people_write():
    tags = {"role": "web", "example.org/owner": "Zoë", "empty": ""}
    assert check_tags("tag", tags) is tags


WIRE = [
    (checks.Name, check_name),
    (checks.Ip, check_ip),
    (checks.Mac, check_mac),
    (checks.Principal, check_principal),
]


@given(st.text(max_size=20) | st.from_regex(checks.NAME_PATTERN) | st.from_regex(checks.IP_PATTERN))
def test_the_wire_schema_takes_all_that_a_constructor_takes(text: str):
    for kind, check in WIRE:
        try:
            check("field", text)
        except Invalid:
            continue
        assert msgspec.convert(text, kind) == text


@given(st.sampled_from([pattern for name, pattern in vars(checks).items() if name.endswith("_PATTERN")]))
def test_every_wire_pattern_is_anchored(pattern: str):
    assert pattern.startswith("^")
    assert pattern.endswith("$")
    assert re.compile(pattern)
