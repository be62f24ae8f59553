from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.cli.install.configuration import changed
from atoll.errors import Conflict
from atoll.hypervisor.settings import template

PATH = Path("/etc/atoll/node.toml")
OURS = template({"name": "one", "ip": "10.0.0.1", "pki": {"ca": "/ca"}})


def test_a_setting_is_changed_in_its_line_and_all_else_stays():
    after = changed(f"# mine\n{OURS}", PATH, {"name": "two"}, {})
    assert after == f"# mine\n{OURS}".replace('name = "one"', 'name = "two"')


def test_a_bridge_is_added_to_those_that_are_there():
    first = changed(OURS, PATH, {}, {"br-eth1": "eth1"})
    second = changed(first, PATH, {}, {"br.2": "eth2", "br-eth1": "eth1"})
    assert tomllib.loads(second)["bridges"] == {"br-eth1": "eth1", "br.2": "eth2"}
    assert changed(second, PATH, {}, {"br.2": "eth2"}) == second


@pytest.mark.parametrize(
    "text",
    [
        'name = """\none"""\n',
        '"name" = "one"\n',
        'x = """\nname = "decoy"\n"""\nname = "one"\n',
    ],
)
def test_what_is_not_as_we_wrote_it_is_left_to_its_owner(text: str) -> None:
    with pytest.raises(Conflict, match="changing name in"):
        changed(text, PATH, {"name": "two"}, {})


NAMES = st.text("abcdef-", min_size=1, max_size=6)


@given(NAMES, NAMES, st.dictionaries(NAMES, NAMES, max_size=3), st.dictionaries(NAMES, NAMES, max_size=3))
def test_afterwards_it_says_what_was_wished_for_and_what_it_said_before(
    name: str, ip: str, before: dict[str, str], bridges: dict[str, str]
) -> None:
    text = template({"name": "one", "ip": "10.0.0.1", "region": "r", "bridges": before})
    after = tomllib.loads(changed(text, PATH, {"name": name, "ip": ip}, bridges))
    expected = {"name": name, "ip": ip, "region": "r"}
    if before or bridges:
        expected |= {"bridges": {**before, **bridges}}
    assert after == expected
