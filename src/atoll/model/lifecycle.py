"""The life of a VM: which action its state allows, and what comes of it. Pure: one table.

    create ──► starting ───────► running ─── stop ───► stopping ──► stopped
                 ▲  │              │ └── guest powers off ────────────▲
                 │  │              └── guest or machine dies ──► crashed
                 │  └── it fails ──► failed-to-start
                 └── start ◄── stopped, crashed, failed-to-start

    running ── suspend ──► suspending ──► suspended ── resume ──► resuming ──► running

    any state ── destroy ──► destroying ──► gone
    any state ── its record cannot be read ──► damaged

What may be asked for (`·` is so already: a success, and nothing is done; `-` is refused):

state            start     stop      reboot    suspend     resume    alter            destroy
---------------------------------------------------------------------------------------------
starting         -         -         -         -           -         -                destroying
running          ·         stopping  stopping  suspending  ·         -                destroying
failed-to-start  starting  ·         -         -           -         failed-to-start  destroying
stopping         -         stopping  -         -           -         -                destroying
stopped          starting  ·         -         -           -         stopped          destroying
crashed          starting  ·         -         -           -         crashed          destroying
suspending       -         stopping  -         suspending  resuming  -                destroying
suspended        -         stopping  -         ·           resuming  -                destroying
resuming         -         stopping  -         -           resuming  -                destroying
destroying       -         -         -         -           -         -                destroying
damaged          -         -         -         -           -         -                destroying

What can happen to it:

state            launched  failed           powered-off  died     ended
---------------------------------------------------------------------------
starting         running   failed-to-start  -            -        -
running          -         -                stopped      crashed  -
stopping         -         -                -            -        stopped
suspending       -         running          stopped      crashed  suspended
suspended        -         -                stopped      crashed  -
resuming         running   suspended        stopped      crashed  -
destroying       -         -                -            -        gone

A create that fails leaves nothing; a reboot is a stop and a start; `alter` is any change that only a machine
which is down can take. One that is suspended has its machine, held still, or its memory in a file (ADR 66). One thing
at a time is done to a VM: one that is found starting, stopping, suspending, resuming or destroying while nothing is
being done to it is one whose last action failed half-way. A stop finishes a stop, a destroy finishes everything.
"""

from __future__ import annotations

from enum import StrEnum

from atoll.errors import Conflict
from atoll.model.vm import VM, VmState


class Action(StrEnum):
    """What may be asked for."""

    START = "start"
    STOP = "stop"
    REBOOT = "reboot"
    SUSPEND = "suspend"
    RESUME = "resume"
    ALTER = "alter"
    DESTROY = "destroy"


class Happening(StrEnum):
    """What can become of it by itself, or of what was asked for."""

    LAUNCHED = "launched"
    FAILED = "failed"
    POWERED_OFF = "powered-off"
    DIED = "died"
    ENDED = "ended"


DOWN = frozenset({VmState.STOPPED, VmState.CRASHED, VmState.FAILED_TO_START})
"""Nothing of it runs, and nobody is at work on it."""

HELD = (VmState.SUSPENDING, VmState.SUSPENDED, VmState.RESUMING)
"""Its memory is kept, here or on disk, and its guest does not get on."""

_ASKED: dict[Action, dict[VmState, VmState]] = {
    Action.START: dict.fromkeys(DOWN, VmState.STARTING),
    Action.STOP: dict.fromkeys((VmState.RUNNING, VmState.STOPPING, *HELD), VmState.STOPPING),
    Action.REBOOT: {VmState.RUNNING: VmState.STOPPING},
    Action.SUSPEND: dict.fromkeys((VmState.RUNNING, VmState.SUSPENDING), VmState.SUSPENDING),
    Action.RESUME: dict.fromkeys(HELD, VmState.RESUMING),
    Action.ALTER: {state: state for state in DOWN},
    Action.DESTROY: dict.fromkeys(VmState, VmState.DESTROYING),
}
_SO_ALREADY: dict[Action, frozenset[VmState]] = {
    Action.START: frozenset({VmState.RUNNING}),
    Action.STOP: DOWN,
    Action.SUSPEND: frozenset({VmState.SUSPENDED}),
    Action.RESUME: frozenset({VmState.RUNNING}),
}
_HAPPENED: dict[tuple[VmState, Happening], VmState | None] = {
    (VmState.STARTING, Happening.LAUNCHED): VmState.RUNNING,
    (VmState.STARTING, Happening.FAILED): VmState.FAILED_TO_START,
    (VmState.RUNNING, Happening.POWERED_OFF): VmState.STOPPED,
    (VmState.RUNNING, Happening.DIED): VmState.CRASHED,
    (VmState.STOPPING, Happening.ENDED): VmState.STOPPED,
    (VmState.SUSPENDING, Happening.ENDED): VmState.SUSPENDED,
    (VmState.SUSPENDING, Happening.FAILED): VmState.RUNNING,
    (VmState.RESUMING, Happening.LAUNCHED): VmState.RUNNING,
    (VmState.RESUMING, Happening.FAILED): VmState.SUSPENDED,
    **{(state, Happening.POWERED_OFF): VmState.STOPPED for state in HELD},
    **{(state, Happening.DIED): VmState.CRASHED for state in HELD},
    (VmState.DESTROYING, Happening.ENDED): None,
}


def begin(action: Action, name: str, state: VmState) -> VmState | None:
    """The state that an action puts the VM into; None when it is so already. Conflict when it may not be."""
    if state in _SO_ALREADY.get(action, ()):
        return None
    if state not in _ASKED[action]:
        raise Conflict(
            f"cannot {action} VM {name}: it is {state}",
            hint=_hint(action, name, state),
            details={"state": str(state), "action": str(action)},
        )
    return _ASKED[action][state]


def _hint(action: Action, name: str, state: VmState) -> str:
    """What to do instead."""
    states = ", ".join(sorted(_ASKED[action]))
    if state is VmState.SUSPENDED:
        return f"let it go on: atoll vm resume {name}; or end it without its memory: atoll vm stop --force {name}"
    if action is Action.ALTER:
        return f"this needs a VM that is {states}; see: atoll vm stop {name}"
    return f"a VM can be asked to {action} when it is {states}"


def how_to_run(vm: VM) -> str:
    """What makes a VM run that does not: for hints."""
    if vm.state in HELD:
        return f"let it go on first: atoll vm resume {vm.name}"
    return f"start it first: atoll vm start {vm.name}"


def check_not_protected(vm: VM) -> None:
    """Refuse to destroy what its owner protected, whatever state it is in."""
    if vm.protected:
        raise Conflict(
            f"cannot destroy VM {vm.name}: it is protected",
            hint=f"lift that first: atoll vm change {vm.name} --no-protect",
            details={"protected": True, "action": str(Action.DESTROY)},
        )


def after(state: VmState, happening: Happening) -> VmState | None:
    """The state that follows; None is gone. What cannot happen in this state is a KeyError: a bug of ours."""
    return _HAPPENED[state, happening]
