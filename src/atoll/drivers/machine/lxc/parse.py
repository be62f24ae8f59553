"""What LXC and /proc say, understood. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from signal import SIGINT

from atoll.drivers.machine.base import Exit

MONITOR_ENDED = "monitor ended"
"""What the keeper adds to the monitor's messages, with its exit status."""

_STARTED = re.compile(r'Started "[^"]*" with pid')
_CHILD = re.compile(r"Child <\d+> ended on (error|signal) [^\d]*(\d+)")
_ERROR = re.compile(r" ERROR +\S+ - \S+ - (.*)$")


def exit_of(messages: str) -> Exit:
    """Why a container ended, from the messages of its monitor.

    An init powers off by reboot(2), which the monitor sees as SIGINT, or it ends with status 0, of which the
    monitor says nothing. Everything else is a crash, the end of the monitor itself included.
    """
    lines = messages.splitlines()
    starts = [number for number, line in enumerate(lines) if _STARTED.search(line)]
    last = lines[starts[-1] :] if starts else []
    if f"{MONITOR_ENDED} 0" not in last:
        return Exit.CRASHED
    found = next((match for line in last if (match := _CHILD.search(line))), None)
    if found is None or (found[1], int(found[2])) == ("signal", SIGINT):
        return Exit.POWERED_OFF
    return Exit.CRASHED


def first_error(messages: str) -> str:
    """The first thing that went wrong, in LXC's words; what comes after follows from it."""
    found = (match[1] for line in messages.splitlines() if (match := _ERROR.search(line)))
    return next(found, "")


def is_init(status: str) -> bool:
    """Whether a /proc/PID/status is that of process 1 of a namespace below ours."""
    for line in status.splitlines():
        if line.startswith("NSpid:"):
            numbers = line.split()[1:]
            return len(numbers) > 1 and numbers[-1] == "1"
    return False


def parent_of(status: str) -> int:
    return int(_field(status, "PPid"))


def name_of(status: str) -> str:
    return _field(status, "Name")


def _field(status: str, key: str) -> str:
    return next((line.partition("\t")[2] for line in status.splitlines() if line.startswith(f"{key}:")), "")


def has_terminal(descriptors: Iterable[tuple[int, str]]) -> int | None:
    """Of the open files of a monitor, with what they are links to, the one that is the console's."""
    return next((number for number, target in sorted(descriptors) if target.endswith("/ptmx")), None)
