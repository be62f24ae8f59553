from __future__ import annotations

import argparse
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.cli.choosing import Choice, choose
from atoll.errors import Malformed

NAMES = ("remote", "node", "dir", "cert", "key", "ca")


def options(**given: str) -> argparse.Namespace:
    return argparse.Namespace(**(dict.fromkeys(NAMES) | given))


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """Somebody who said `atoll remote use kept`."""
    (tmp_path / "atoll").mkdir()
    (tmp_path / "atoll" / "remote").write_text("kept\n")
    return {"XDG_CONFIG_HOME": str(tmp_path)}


@pytest.mark.parametrize(
    ("given", "variables", "choice"),
    [
        (
            {"remote": "a"},
            {"ATOLL_REMOTE": "b", "ATOLL_NODE": "n", "ATOLL_DIR": "/d"},
            Choice("a", "--remote"),
        ),
        ({"remote": "a", "node": "n", "cert": "c"}, {}, Choice("a", "--remote")),
        ({"remote": "local"}, {"ATOLL_REMOTE": "b"}, Choice("local", "--remote")),
        ({"remote": "local", "dir": "/d"}, {}, Choice("local", "--remote")),
        ({"node": "n"}, {"ATOLL_REMOTE": "b"}, Choice("local", "--node")),
        ({"dir": "/d"}, {"ATOLL_REMOTE": "b"}, Choice("local", "--dir")),
        ({}, {"ATOLL_REMOTE": "b", "ATOLL_NODE": "n", "ATOLL_CERT": "c"}, Choice("b", "ATOLL_REMOTE")),
        ({"cert": "c"}, {"ATOLL_REMOTE": "b"}, Choice("b", "ATOLL_REMOTE")),
        ({}, {"ATOLL_NODE": "n"}, Choice("local", "ATOLL_NODE")),
        ({}, {"ATOLL_DIR": "/d", "ATOLL_REMOTE": ""}, Choice("local", "ATOLL_DIR")),
        ({}, {"ATOLL_CERT": "c"}, Choice("local", "ATOLL_CERT")),
        ({}, {}, Choice("kept", "atoll remote use")),
        ({"cert": "c"}, {}, Choice("kept", "atoll remote use")),
    ],
)
def test_the_nearest_word_counts(home, given, variables, choice):
    assert choose(options(**given), home | variables) == choice


def test_without_a_word_it_is_the_cloud_on_this_machine(tmp_path):
    assert choose(options(), {"HOME": str(tmp_path)}) == Choice("local", "default")
    assert choose(options(), {}) == Choice("local", "default")


def test_two_clouds_at_once_are_refused():
    with pytest.raises(Malformed, match="two clouds"):
        choose(options(remote="a", dir="/d"), {})


words = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(["a", "local"]))


@given(words, words)
def test_an_option_is_never_overruled_by_the_environment(given, variables):
    environment = {f"ATOLL_{name.upper()}": value for name, value in variables.items()}
    told = given.keys() & {"remote", "node", "dir"}
    if not told or {"remote", "dir"} <= told:
        return
    assert choose(options(**given), environment) == choose(options(**given), {})
