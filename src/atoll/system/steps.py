"""The named steps of everything that changes a node: the moments between two effects, where a fault may strike.

`step` does nothing, unless the process was started with a fault: `ATOLL_FAULT=<name>:<n>` ends it by SIGKILL when
that step is passed for the n-th time; `ATOLL_FAULT=<name>:<n>:ENOSPC` finds the disk full there. Tests go through
`STEPS`, which is all of them.
"""

from __future__ import annotations

import errno
import itertools
import os
import signal
from collections.abc import Iterator

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
        *("halt.killed", "halt.unplugged", "halt.released", "halt.discarded"),
        *("qemu.spawned", "qemu.recorded", "qemu.connected", "qemu.restored"),
        *("qemu.unwatched", "qemu.ended", "qemu.forgotten"),
        *("docker.named", "docker.imported", "docker.created", "docker.recorded", "docker.cleaned"),
        *("docker.noted", "docker.started", "docker.plugged", "docker.ended", "docker.removed"),
        # start, stop, destroy
        *("start.noted", "start.launched", "start.running"),
        *("stop.noted", "stop.asked", "stop.halted", "stop.stopped"),
        *("destroy.noted", "destroy.halted", "destroy.discarded", "destroy.forgotten"),
        *("exit.noted", "exit.halted"),
        # change, also of the address
        *("change.user-data", "change.recorded", "change.shrunk", "change.grown"),
        *("move.noted", "move.carried", "move.renamed", "move.recorded"),
        *("volume.claimed", "volume.made", "volume.finished", "volume.forgotten", "volume.removed"),
        # what the node was given: changed, and taken away with all that serves it
        *("subnet.changed", "subnet.forgotten", "subnet.bridge-gone", "subnet.gone", "addresses.forgotten"),
        # templates and what is made of them
        *("template.begun", "template.limited", "template.made", "template.recorded", "template.dropped"),
        *("fork.forked", "fork.identified"),
        *("handover.limited", "handover.plugged", "handover.identified"),
        *("pool.begun", "pool.forked", "pool.rehearsed", "pool.parked", "pool.halted", "pool.discarded"),
        # what agents of one host share: ids of users, images
        *("ids.begun", "ids.claimed", "ids.given-back"),
        *("image.held", "image.let-go", "image.removed"),
        # a node on a machine, by the command
        *("install.recorded", "install.certified", "install.configured", "install.started", "install.given"),
        *("uninstall.stopped", "uninstall.ended", "uninstall.unplugged", "uninstall.removed"),
        # what the next agent does about it all
        *("recovery.seen", "recovery.one", "recovery.undone", "recovery.begun", "recovery.done"),
    }
)
"""All that there are."""


class Fault(Struct, frozen=True):
    """What is to go wrong, and at which passing of its step."""

    step: str
    nth: int
    error: int = 0


_armed: dict[str, tuple[Fault, Iterator[int]]] = {}
"""The fault, and what counts how often its step was passed. Steps are passed in threads too: the count must not
be lost between them, and `next` of a counter is one act."""


def step(name: str) -> None:
    """This step has been passed."""
    if _armed:
        _strike(name)


def arm(text: str) -> None:
    """What `ATOLL_FAULT` says; empty is nothing."""
    _armed.clear()
    if text:
        fault = parse(text)
        _armed[fault.step] = fault, itertools.count(1)


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
    if name not in _armed:
        return
    fault, passed = _armed[name]
    if next(passed) != fault.nth:
        return
    if fault.error:
        raise OSError(fault.error, os.strerror(fault.error))
    os.kill(os.getpid(), signal.SIGKILL)


arm(os.environ.get(VARIABLE, ""))
