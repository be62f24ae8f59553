"""The named steps of everything that changes a node: the moments between two effects, where a fault may strike.

`step` does nothing, unless the process was started with a fault: `ATOLL_FAULT=<name>:<n>` ends it by SIGKILL when
that step is passed for the n-th time; `ATOLL_FAULT=<name>:<n>:ENOSPC` finds the disk full there. Tests go through
`STEPS`, which is all of them.
"""

from __future__ import annotations

import errno
import os
import signal

from msgspec import Struct

from atoll.errors import Invalid

VARIABLE = "ATOLL_FAULT"

STEPS = frozenset(
    {
        # a record, or any other file that must survive
        *("write.begin", "write.written", "write.renamed"),
        *("discard.renamed", "discard.removed"),
        # create
        *("create.claimed", "create.saved", "create.user-data", "create.credential", "create.volumes"),
        *("create.launched", "create.committed"),
        # a machine: its cgroup, its place in the network, its process; and their removal
        *("launch.limited", "launch.plugged", "launch.started"),
        *("halt.killed", "halt.unplugged", "halt.released"),
        *("qemu.spawned", "qemu.recorded", "qemu.connected", "qemu.restored"),
        *("qemu.unwatched", "qemu.ended", "qemu.forgotten"),
        # start, stop, destroy
        *("start.noted", "start.launched", "start.running"),
        *("stop.noted", "stop.asked", "stop.halted", "stop.stopped"),
        *("destroy.noted", "destroy.halted", "destroy.discarded", "destroy.forgotten"),
        *("exit.noted", "exit.halted"),
        # change, also of the address
        *("change.user-data", "change.recorded"),
        *("move.noted", "move.carried", "move.renamed", "move.recorded"),
        *("volume.claimed", "volume.made", "volume.finished", "volume.forgotten", "volume.removed"),
        # templates and what is made of them
        *("template.begun", "template.limited", "template.made", "template.recorded", "template.dropped"),
        *("fork.forked", "fork.identified"),
        *("handover.limited", "handover.plugged", "handover.identified"),
        *("pool.begun", "pool.forked", "pool.rehearsed", "pool.parked", "pool.halted", "pool.discarded"),
        # what the next agent does about it all
        *("recovery.seen", "recovery.one", "recovery.undone", "recovery.begun", "recovery.done"),
    }
)
"""All that there are."""


class Fault(Struct):
    """What is to go wrong, and how many times its step is still passed before."""

    step: str
    left: int
    error: int = 0


_armed: dict[str, Fault] = {}


def step(name: str) -> None:
    """This step has been passed."""
    if _armed:
        _strike(name)


def arm(text: str) -> None:
    """What `ATOLL_FAULT` says; empty is nothing."""
    _armed.clear()
    if text:
        fault = parse(text)
        _armed[fault.step] = fault


def parse(text: str) -> Fault:
    """A fault as it is written. Pure."""
    name, _, rest = text.partition(":")
    times, _, kind = rest.partition(":")
    if name not in STEPS or not times.isascii() or not times.isdigit() or int(times) < 1:
        raise Invalid(
            VARIABLE, text, "must be <step>:<n>, of a step that there is", hint="see STEPS in steps.py"
        )
    if kind not in ("", "ENOSPC"):
        raise Invalid(VARIABLE, text, "can be nothing but ENOSPC", hint="leave it out to end the process")
    return Fault(name, int(times), errno.ENOSPC if kind else 0)


def _strike(name: str) -> None:
    assert name in STEPS, name
    fault = _armed.get(name)
    if fault is None:
        return
    fault.left -= 1
    if fault.left:
        return
    del _armed[name]
    if fault.error:
        raise OSError(fault.error, os.strerror(fault.error))
    os.kill(os.getpid(), signal.SIGKILL)


arm(os.environ.get(VARIABLE, ""))
