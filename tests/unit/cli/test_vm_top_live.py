from __future__ import annotations

import argparse
from functools import reduce

from hypothesis import given
from hypothesis import strategies as st

from atoll.cli.vm_top import Rates
from atoll.cli.vm_top_live import MOST_TYPED, Looks, last_line, picture, pressed, shown


def after(*keys: str) -> Looks:
    return reduce(pressed, keys, Looks())


def using(name: str, cpus: float, memory_mib: int = 64) -> Rates:
    return Rates(name, "10.0.0.1" if name != "(node)" else "-", "running", cpus, memory_mib, 0, 0, 0, 0, 0)


ALL = [using("(node)", 1.5), using("web", 0.1, 256), using("db", 0.9), using("web-2", 0.4, 512)]
OPTIONS = argparse.Namespace(output="table", columns=None, sort=None, no_header=False)


def names(looks: Looks) -> list[str]:
    return [line.split()[0] for line in picture(ALL, looks, OPTIONS).splitlines()[1:]]


def test_the_busiest_comes_first_below_the_node():
    assert names(Looks()) == ["(node)", "db", "web-2", "web"]


def test_keys_sort_and_the_same_again_turns_it_round():
    assert names(after("m")) == ["(node)", "web-2", "web", "db"]
    assert names(after("m", "m")) == ["(node)", "db", "web", "web-2"]
    assert names(after("n")) == ["(node)", "db", "web", "web-2"]


def test_a_filter_is_typed_kept_and_dropped():
    typed = after("/", "w", "x", "\x7f", "e")
    assert (typed.filter, typed.typing) == ("we", True)
    assert names(typed) == ["(node)", "web-2", "web"]
    kept = pressed(typed, "\n")
    assert (kept.filter, kept.typing) == ("we", False)
    assert pressed(kept, "\x1b").filter == ""
    assert pressed(typed, "\x1b") == Looks()


def test_q_ends_it_unless_it_is_typed():
    assert after("q").is_over
    assert not after("/", "q").is_over
    assert after("/", "q").filter == "q"


@given(st.lists(st.characters(), max_size=200))
def test_no_key_breaks_it(keys):
    looks = reduce(pressed, keys, Looks())
    assert len(looks.filter) <= MOST_TYPED
    assert shown(ALL, looks)[0].name == "(node)"
    assert last_line(looks).isprintable()
