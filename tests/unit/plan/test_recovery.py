from __future__ import annotations

import itertools
import re

import pytest

from atoll.plan import recovery
from atoll.plan.recovery import Remedy, Want, remedy

FLAGS = [False, True]
# What can be seen of a machine: (running, exited).
SEEN = {"running": (True, False), "exited": (False, True), "not seen": (False, False)}
ALL = list(itertools.product(FLAGS, Want, FLAGS, SEEN, FLAGS, FLAGS))


def table() -> dict[str, list[str]]:
    """The table at the top of the module: the words of a row, and its three cells."""
    lines = (recovery.__doc__ or "").partition("-----\n")[2].partition("\n\n")[0].splitlines()
    rows = [re.split(r"\s{2,}", line) for line in lines]
    return {words: cells for words, *cells in rows}


def row_of(committed: bool, want: Want, same_boot: bool, on_disk: bool) -> str:
    if not committed:
        return "not acknowledged"
    boot = "same boot" if same_boot else "rebooted"
    if want is Want.SUSPENDED:
        return "held on disk" if on_disk else f"held in memory, {boot}"
    if want is Want.RUNNING:
        return f"wanted running, {boot}"
    return f"wanted {want}"


@pytest.mark.parametrize(("committed", "want", "noted", "seen", "same_boot", "on_disk"), ALL)
def test_the_table_in_the_module_is_what_is_done(
    committed: bool, want: Want, noted: bool, seen: str, same_boot: bool, on_disk: bool
):
    cell = table()[row_of(committed, want, same_boot, on_disk)][list(SEEN).index(seen)]
    fresh, _, known = cell.partition(", if noted: ")
    expected = known if noted and known else fresh
    running, exited = SEEN[seen]
    taken = remedy(
        committed=committed,
        want=want,
        noted=noted,
        running=running,
        exited=exited,
        same_boot=same_boot,
        on_disk=on_disk,
    )
    assert taken.name == expected


def test_every_step_is_in_the_table():
    words = {word for cells in table().values() for cell in cells for word in re.findall(r"[A-Z_]{3,}", cell)}
    assert words == {one.name for one in Remedy}


def test_a_machine_that_runs_and_is_wanted_is_never_touched():
    for noted, same_boot in itertools.product(FLAGS, FLAGS):
        assert (
            remedy(
                committed=True,
                want=Want.RUNNING,
                noted=noted,
                running=True,
                exited=False,
                same_boot=same_boot,
            )
            is Remedy.ADOPT
        )
