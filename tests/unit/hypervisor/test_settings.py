from __future__ import annotations

import tomllib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from atoll.hypervisor import settings
from atoll.hypervisor.config import problems

WORDS = st.text("abcdefgh/.-_ \"'\\{}%é", max_size=12)
NAMES = st.text("abcd.-_", min_size=1, max_size=8)
VALUES = st.fixed_dictionaries(
    {},
    optional={
        "name": WORDS,
        "ip": WORDS,
        "listen": st.lists(WORDS, max_size=3),
        "port": st.integers(-(2**40), 2**40),
        "pki": st.fixed_dictionaries({"ca": WORDS}),
        "overcommit": st.fixed_dictionaries(
            {}, optional={"cpus": st.floats(0, 100), "memory": st.integers(0, 9)}
        ),
        "stores": st.dictionaries(NAMES, WORDS, min_size=1, max_size=3),
        "bridges": st.dictionaries(NAMES, WORDS, min_size=1, max_size=3),
        "roles": st.fixed_dictionaries({"lifetime_s": st.integers(0, 99)}),
    },
)


@given(VALUES)
def test_a_file_that_explains_everything_says_what_it_was_told_and_nothing_else(
    values: dict[str, Any],
) -> None:
    said = {key: value for key, value in values.items() if value != {}}
    assert tomllib.loads(settings.template(values)) == said


def test_every_setting_is_explained() -> None:
    # What the tables of others hold is explained at the head of the table.
    unexplained = [one.key for one in settings.settings() if not one.text and one.key.count(".") == 0]
    assert unexplained == []


def test_the_defaults_in_the_file_are_those_that_are_used() -> None:
    lines = settings.template({}).splitlines()
    defaults = [line.removeprefix("#: ") for line in lines if line.startswith("#: ") and "..." not in line]
    found = tomllib.loads("\n".join(defaults))
    assert (found["templates"], found["overcommit"], found["listen"]) == (
        8,
        {"cpus": 1.0, "memory": 1.0},
        ["0.0.0.0"],
    )
    wrong = [one.key for one in problems(found) if one.why != "is missing"]
    assert [key for key in wrong if not key.startswith(("pki", "roles", "hooks", "shares", "uplink"))] == []
