from __future__ import annotations

import errno
import os
import re
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import atoll
from atoll.errors import HostFailure, Invalid
from atoll.system import steps


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    steps.arm("")


def test_every_step_is_passed_in_one_place_and_every_place_is_listed():
    sources = (path.read_text() for path in Path(atoll.__file__).parent.rglob("*.py"))
    passed = Counter(name for text in sources for name in re.findall(r'steps\.step\("([^"]+)"\)', text))
    assert passed.keys() == steps.STEPS
    assert set(passed.values()) == {1}


def test_a_step_does_nothing_without_a_fault():
    steps.arm("")
    steps.step("no such step")


def test_a_full_disk_is_found_the_time_it_is_said_and_not_again():
    steps.arm("write.begin:2:ENOSPC")
    steps.step("write.begin")
    steps.step("write.renamed")
    with pytest.raises(OSError, match="No space left") as full:
        steps.step("write.begin")
    assert full.value.errno == errno.ENOSPC
    steps.step("write.begin")


def test_a_process_is_killed_by_itself(monkeypatch: pytest.MonkeyPatch):
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, sign: killed.append((pid, sign)))
    steps.arm("create.saved:1")
    steps.step("create.claimed")
    assert killed == []
    steps.step("create.saved")
    assert killed == [(os.getpid(), signal.SIGKILL)]


def test_a_process_is_told_to_stop_by_itself(monkeypatch: pytest.MonkeyPatch):
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, sign: told.append((pid, sign)))
    steps.arm("create.saved:1:TERM")
    steps.step("create.saved")
    assert told == [(os.getpid(), signal.SIGTERM)]


def test_an_error_fails_the_operation():
    steps.arm("halt.killed:1:ERROR")
    with pytest.raises(HostFailure, match=steps.FAILED):
        steps.step("halt.killed")
    steps.step("halt.killed")


def test_several_faults_are_armed_at_once_also_at_one_step():
    faults = steps.arm("create.saved:1:ERROR,halt.killed:2:ERROR,halt.killed:1:ERROR")
    for name in ("halt.killed", "halt.killed", "create.saved"):
        with pytest.raises(HostFailure):
            steps.step(name)
    assert [fault.left for fault in faults] == [0, 0, 0]


def test_a_fault_that_waits_for_another_counts_from_there_on():
    first, second = steps.arm("create.launched:1:ERROR>halt.killed:1:ERROR")
    steps.step("halt.killed")
    with pytest.raises(HostFailure):
        steps.step("create.launched")
    assert (first.left, second.left) == (0, 1)
    with pytest.raises(HostFailure):
        steps.step("halt.killed")


def test_a_kind_can_mean_something_else_where_agents_are_no_processes():
    struck: list[str] = []
    steps.arm(
        "create.saved:1,create.saved:2:CUT",
        {"": lambda: struck.append("killed"), "CUT": lambda: struck.append("cut")},
    )
    steps.step("create.saved")
    steps.step("create.saved")
    assert struck == ["killed", "cut"]


@pytest.mark.parametrize(
    "text",
    [
        *("create.saved", "create.saved:0", "create.saved:x", "nowhere:1", "create.saved:1:EIO"),
        *("create.saved:1,", "create.saved:1>", "nowhere:1,create.saved:1"),
    ],
)
def test_a_fault_that_makes_no_sense_is_refused(text: str):
    with pytest.raises(Invalid, match="ATOLL_FAULT"):
        steps.arm(text)
