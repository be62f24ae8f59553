"""How ports are written behind a VM's name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.cli.local_port import HOST
from atoll.cli.port_mapping import Mapping, parse_mapping, parse_place
from atoll.errors import Invalid


@pytest.mark.parametrize(
    ("text", "mapping"),
    [
        ("80", Mapping("127.0.0.1", 80, 80)),
        ("8080:80", Mapping("127.0.0.1", 8080, 80)),
        ("0:80", Mapping("127.0.0.1", 0, 80)),
        ("localhost:8080:80", Mapping("127.0.0.1", 8080, 80)),
        ("0.0.0.0:8080:80", Mapping("0.0.0.0", 8080, 80)),
        ("[::1]:8080:80", Mapping("::1", 8080, 80)),
    ],
)
def test_a_port_is_had_at_the_same_number_of_loopback_unless_it_is_said_where(
    text: str, mapping: Mapping
) -> None:
    assert parse_mapping(text, HOST) == mapping


@pytest.mark.parametrize(
    "text", ["", ":", "80:", ":80", "0", "8080:0", "70000", "80:70000", "a:80", "1:2:3:4", "-1", "٣"]
)
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(Invalid, match="is not") as refusal:
        parse_mapping(text, HOST)
    assert "8080:80" in str(refusal.value.hint)


def test_what_is_tcp_may_say_so_and_nothing_else() -> None:
    assert parse_mapping("8080:80/tcp", "") == Mapping("", 8080, 80)
    with pytest.raises(Invalid, match="only TCP is carried"):
        parse_mapping("53:53/udp", "")


@pytest.mark.parametrize(("text", "place"), [("8080", ("", 8080)), ("[::1]:8080/tcp", ("::1", 8080))])
def test_a_place_is_a_port_with_or_without_an_address(text: str, place: tuple[str, int]) -> None:
    assert parse_place(text) == place
    for wrong in ("", "a:80", "0", "80:"):
        with pytest.raises(Invalid, match=r"is not \[ADDRESS:\]PORT"):
            parse_place(wrong)


@given(st.text())
def test_no_text_is_more_than_refused(text: str) -> None:
    try:
        mapping = parse_mapping(text, HOST)
    except Invalid:
        return
    assert 0 <= mapping.here <= 65535
    assert 1 <= mapping.guest <= 65535
