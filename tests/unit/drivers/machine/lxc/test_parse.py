"""What LXC and /proc say."""

from __future__ import annotations

import pytest

from atoll.drivers.machine.base import Exit
from atoll.drivers.machine.lxc import parse

PREFIX = "lxc-start vm 20261115204123.535"
STARTED = f'{PREFIX} NOTICE   start - ../src/lxc/start.c:post_start:2205 - Started "/sbin/init" with pid "9"'
HALTED = f"{PREFIX} INFO     error - ../src/lxc/error.c:set:34 - Child <9> ended on signal Interrupt(2)"
KILLED = f"{PREFIX} INFO     error - ../src/lxc/error.c:set:34 - Child <9> ended on signal Killed(9)"
FAILED = f"{PREFIX} INFO     error - ../src/lxc/error.c:set:31 - Child <9> ended on error (3)"
REBOOTED = f"{PREFIX} INFO     error - ../src/lxc/error.c:set:34 - Child <9> ended on signal Hangup(1)"


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ([STARTED, HALTED, "monitor ended 0"], Exit.POWERED_OFF),
        ([STARTED, "monitor ended 0"], Exit.POWERED_OFF),
        ([STARTED, FAILED, "monitor ended 0"], Exit.CRASHED),
        ([STARTED, KILLED, "monitor ended 0"], Exit.CRASHED),
        ([STARTED, "monitor ended 137"], Exit.CRASHED),
        ([STARTED], Exit.CRASHED),
        ([], Exit.CRASHED),
        ([STARTED, REBOOTED, STARTED, HALTED, "monitor ended 0"], Exit.POWERED_OFF),
        ([STARTED, HALTED, "monitor ended 0", STARTED, FAILED, "monitor ended 0"], Exit.CRASHED),
    ],
)
def test_why_a_container_ended_is_what_its_monitor_said_last(lines: list[str], reason: Exit) -> None:
    assert parse.exit_of("\n".join(lines)) is reason


def test_a_failed_start_is_told_by_the_first_error() -> None:
    messages = (
        "lxc-start vm 1.0 INFO     start - ../src/lxc/start.c:init:881 - initialized\n"
        "lxc-start vm 1.0 ERROR    network - ../src/lxc/network.c:x:1 - No such device - Failed to find link\n"
        "lxc-start vm 1.0 ERROR    start - ../src/lxc/start.c:y:2 - Failed to spawn container\n"
    )
    assert parse.first_error(messages) == "No such device - Failed to find link"
    assert parse.first_error("") == ""


def test_an_init_is_process_1_of_a_namespace_below() -> None:
    status = "Name:\tinit\nPPid:\t77\nNSpid:\t{}\n"
    assert parse.is_init(status.format("4711\t1"))
    assert not parse.is_init(status.format("4711\t2"))
    assert not parse.is_init(status.format("1"))
    assert not parse.is_init("")
    assert (parse.parent_of(status), parse.name_of(status)) == (77, "init")


def test_the_console_is_the_terminal_that_the_monitor_made_first() -> None:
    opened = [(9, "/dev/ptmx"), (3, "socket:[1]"), (6, "/dev/pts/ptmx"), (8, "/dev/pts/0")]
    assert parse.has_terminal(opened) == 6
    assert parse.has_terminal([(3, "socket:[1]")]) is None
