"""The life of a VM: which action its state allows, and what comes of it. Pure: one table.

    create ──► starting ───────► running ─── stop ───► stopping ──► stopped
                 ▲  │              │ └── guest powers off ────────────▲
                 │  │              └── guest or machine dies ──► crashed
                 │  └── it fails ──► failed-to-start
                 └── start ◄── stopped, crashed, failed-to-start

    any state ── destroy ──► destroying ──► gone
    any state ── its record cannot be read ──► damaged

What may be asked for (`·` is so already: a success, and nothing is done; `-` is refused):

state            start     stop      reboot    alter            destroy
---------------------------------------------------------------------------
starting         -         -         -         -                destroying
running          ·         stopping  stopping  -                destroying
failed-to-start  starting  ·         -         failed-to-start  destroying
stopping         -         stopping  -         -                destroying
stopped          starting  ·         -         stopped          destroying
crashed          starting  ·         -         crashed          destroying
destroying       -         -         -         -                destroying
damaged          -         -         -         -                destroying

What can happen to it:

state            launched  failed           powered-off  died     ended
---------------------------------------------------------------------------
starting         running   failed-to-start  -            -        -
running          -         -                stopped      crashed  -
stopping         -         -                -            -        stopped
destroying       -         -                -            -        gone

A create that fails leaves nothing; a reboot is a stop and a start; `alter` is any change that only a machine
which is down can take. One thing at a time is done to a VM: one that is found starting, stopping or destroying
while nothing is being done to it is one whose last action failed half-way. A stop finishes a stop, a destroy
finishes everything.
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

_ASKED: dict[Action, dict[VmState, VmState]] = {
    Action.START: dict.fromkeys(DOWN, VmState.STARTING),
    Action.STOP: dict.fromkeys((VmState.RUNNING, VmState.STOPPING), VmState.STOPPING),
    Action.REBOOT: {VmState.RUNNING: VmState.STOPPING},
    Action.ALTER: {state: state for state in DOWN},
    Action.DESTROY: dict.fromkeys(VmState, VmState.DESTROYING),
}
_SO_ALREADY: dict[Action, frozenset[VmState]] = {
    Action.START: frozenset({VmState.RUNNING}),
    Action.STOP: DOWN,
}
_HAPPENED: dict[tuple[VmState, Happening], VmState | None] = {
    (VmState.STARTING, Happening.LAUNCHED): VmState.RUNNING,
    (VmState.STARTING, Happening.FAILED): VmState.FAILED_TO_START,
    (VmState.RUNNING, Happening.POWERED_OFF): VmState.STOPPED,
    (VmState.RUNNING, Happening.DIED): VmState.CRASHED,
    (VmState.STOPPING, Happening.ENDED): VmState.STOPPED,
    (VmState.DESTROYING, Happening.ENDED): None,
}


def begin(action: Action, name: str, state: VmState) -> VmState | None:
    """The state that an action puts the VM into; None when it is so already. Conflict when it may not be."""
    if state in _SO_ALREADY.get(action, ()):
        return None
    if state not in _ASKED[action]:
        states = ", ".join(sorted(_ASKED[action]))
        raise Conflict(
            f"cannot {action} VM {name}: it is {state}",
            hint=f"a VM can be asked to {action} when it is {states}"
            if action is not Action.ALTER
            else f"this needs a VM that is {states}; see: atoll vm stop {name}",
            details={"state": str(state), "action": str(action)},
        )
    return _ASKED[action][state]


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
