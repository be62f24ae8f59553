"""The named steps of everything that changes a node: the moments between two effects, where a fault may strike.

`step` does nothing, unless the process was started with faults: `ATOLL_FAULT=<name>:<n>[:<kind>]`, several of them
with commas between, or with `>` where the second waits for the first. Each strikes once, when its step is passed for
the n-th time, by its kind:

    (none)    the process ends itself by SIGKILL
    TERM      the process is told to stop, by SIGTERM
    ENOSPC    the disk is full there
    ERROR     the host fails the operation there: what was begun is undone

So `create.launched:1:ERROR>halt.killed:1` ends the process while it undoes a create. Tests go through `STEPS`, which is
all of them.
"""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping

from msgspec import Struct

from atoll.errors import HostFailure, Invalid

VARIABLE = "ATOLL_FAULT"
STRUCK = "a fault strikes at step "
FAILED = "a fault was told to strike here"

STEPS = frozenset(
    {
        # a record, or any other file that must survive
        *("write.begin", "write.spared", "write.written", "write.renamed"),
        *("discard.renamed", "discard.removed"),
        # create
        *("create.claimed", "create.saved", "create.user-data", "create.credential", "create.volumes"),
        *("create.launched", "create.committed"),
        # a machine: its cgroup, its place in the network, its process; and their removal
        *("launch.limited", "launch.plugged", "launch.started"),
        *("halt.killed", "halt.unplugged", "halt.released", "halt.discarded"),
        "qemu.folder-served",
        *("qemu.spawned", "qemu.recorded", "qemu.connected", "qemu.cleared", "qemu.restored"),
        *("qemu.unwatched", "qemu.ended", "qemu.forgotten"),
        *("docker.named", "docker.imported", "docker.created", "docker.recorded", "docker.cleaned"),
        *(
            "docker.noted",
            "docker.staged",
            "docker.started",
            "docker.plugged",
            "docker.ended",
            "docker.removed",
        ),
        # start, stop, destroy
        *("start.noted", "start.launched", "start.running"),
        *("stop.noted", "stop.asked", "stop.halted", "stop.stopped"),
        *("destroy.noted", "destroy.halted", "destroy.discarded", "destroy.forgotten"),
        *("exit.noted", "exit.halted"),
        # suspend, to memory or to disk, and resume
        *("suspend.noted", "suspend.frozen", "suspend.saved", "suspend.suspended", "suspend.halted"),
        *("resume.noted", "resume.thawed", "resume.running"),
        *("restore.noted", "restore.restored", "restore.running", "restore.thawed", "restore.forgotten"),
        # change, also of the address
        *("change.user-data", "change.recorded", "change.shrunk", "change.grown"),
        *("move.noted", "move.carried", "move.renamed", "move.recorded"),
        *(
            "volume.claimed",
            "volume.made",
            "volume.finished",
            "volume.loosened",
            "volume.forgotten",
            "volume.removed",
            "volume.grows",
            "volume.grown",
        ),
        # what the node was given: changed, and taken away with all that serves it
        *(
            "subnet.changed",
            "subnet.forgotten",
            "subnet.bridge-gone",
            "subnet.gone",
            "subnet.routed",
            "addresses.forgotten",
        ),
        *("quota.recorded", "node.changed", "share.allowed", "share.denied"),
        # ports of the node that lead to guests, and the process that carries them
        *("publish.opened", "publish.recorded", "publish.carried", "publish.forgotten", "publish.dropped"),
        *("publish.pointed", "publisher.started", "publisher.recorded"),
        # templates and what is made of them
        *("template.begun", "template.limited", "template.made", "template.recorded", "template.dropped"),
        *("fork.forked", "fork.identified"),
        *("handover.limited", "handover.plugged", "handover.identified"),
        *("pool.begun", "pool.forked", "pool.rehearsed", "pool.parked", "pool.halted", "pool.discarded"),
        # what agents of one host share: ids of users, images
        *("ids.begun", "ids.claimed", "ids.given-back"),
        *("image.held", "image.let-go", "image.removed"),
        # bytes by their hash: many files at once
        *("bulk.begun", "bulk.written", "bulk.synced", "bulk.named", "bulk.done", "object.removed"),
        # a tree that is made of objects
        *("tree.begun", "tree.entry", "tree.filled", "tree.synced", "tree.named"),
        # a node on a machine, by the command
        *("install.recorded", "install.certified", "install.configured", "install.started", "install.given"),
        *("uninstall.stopped", "uninstall.ended", "uninstall.unplugged", "uninstall.removed"),
        # forwarding of the host for clouds with NAT, by the command
        *("switches.claimed", "switches.set", "switches.back"),
        # in the background
        *("duty.begun", "relaunch.begun", "trash.removed", "credentials.issued"),
        # by the signer, for those who log in by SSH, and for the SSH servers of guests
        *("ssh.admitted", "ssh.certified"),
        # by the signer, for somebody who was invited
        "invitation.taken",
        # what the next agent does about it all
        *("recovery.seen", "recovery.one", "recovery.undone", "recovery.begun", "recovery.done"),
    }
)
"""All that there are."""


Act = Callable[[], None]


class Fault(Struct):
    """What is to go wrong, and how many times its step is still passed before."""

    step: str
    left: int
    """0: it has struck."""
    kind: str
    act: Act
    then: Fault | None = None
    """Waits for this one."""


_armed: list[Fault] = []
_passing = threading.Lock()
"""Steps are passed by threads too."""


def step(name: str) -> None:
    """This step has been passed."""
    if _armed:
        _strike(name)


def arm(text: str, acts: Mapping[str, Act] | None = None) -> tuple[Fault, ...]:
    """What `ATOLL_FAULT` says; empty is nothing. `acts`: what else the kinds mean, where agents are no processes."""
    _armed[:] = parse(text, ACTS | dict(acts or {}))
    return tuple(fault for first in _armed for fault in _in_turn(first))


def parse(text: str, acts: Mapping[str, Act]) -> list[Fault]:
    """Faults as they are written. Pure."""
    return [_parse_chain(part, acts) for part in text.split(",")] if text else []


def _parse_chain(text: str, acts: Mapping[str, Act]) -> Fault:
    first, *others = (_parse_one(part, acts) for part in text.split(">"))
    last = first
    for other in others:
        last.then = other
        last = other
    return first


def _in_turn(fault: Fault | None) -> Iterator[Fault]:
    while fault is not None:
        yield fault
        fault = fault.then


def _parse_one(text: str, acts: Mapping[str, Act]) -> Fault:
    name, _, rest = text.partition(":")
    times, _, kind = rest.partition(":")
    if name not in STEPS or not times.isascii() or not times.isdigit() or int(times) < 1:
        raise Invalid(
            VARIABLE, text, "must be <step>:<n>, of a step that there is", hint="see STEPS in steps.py"
        )
    if kind not in acts:
        kinds = ", ".join(sorted(filter(None, acts)))
        raise Invalid(VARIABLE, text, f"must be one of {kinds}", hint="leave it out to end the process")
    return Fault(name, int(times), kind, acts[kind])


def _strike(name: str) -> None:
    assert name in STEPS, name
    with _passing:
        struck = None
        for fault in [fault for fault in _armed if fault.step == name]:
            fault.left -= 1
            if fault.left == 0:
                _armed.remove(fault)
                struck = fault
        if struck is not None and struck.then is not None:
            _armed.append(struck.then)
    if struck is not None:
        import logging  # the command line uses this module too, and must not pay for what it does not use

        logging.getLogger(__name__).warning("%s%s:%s", STRUCK, name, struck.kind)
        struck.act()


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _tell_to_stop() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def _fill_the_disk() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _fail() -> None:
    raise HostFailure(FAILED, hint="expected in a test")


ACTS: dict[str, Act] = {"": _kill, "TERM": _tell_to_stop, "ENOSPC": _fill_the_disk, "ERROR": _fail}
"""What becomes of a process, by the kind of fault."""

arm(os.environ.get(VARIABLE, ""))
