"""What to do with each VM when the agent starts. Pure: (what the record says, what runs) -> one step.

record                      seen running     seen exited      not seen
----------------------------------------------------------------------------------------
not acknowledged            UNDO             UNDO             UNDO
wanted gone                 FINISH_DESTROY   FINISH_DESTROY   FINISH_DESTROY
wanted stopped              FINISH_STOP      NOTE_STOPPED     NOTE_STOPPED
wanted running, same boot   ADOPT            NOTE_EXIT        NOTE_CRASH, if noted: LEAVE
wanted running, rebooted    ADOPT            NOTE_EXIT        RELAUNCH
"""

from __future__ import annotations

from enum import StrEnum


class Want(StrEnum):
    """The last thing that was asked for."""

    RUNNING = "running"
    STOPPED = "stopped"
    GONE = "gone"


class Step(StrEnum):
    UNDO = "undo"
    FINISH_DESTROY = "finish-destroy"
    FINISH_STOP = "finish-stop"
    NOTE_STOPPED = "note-stopped"
    NOTE_EXIT = "note-exit"
    NOTE_CRASH = "note-crash"
    ADOPT = "adopt"
    RELAUNCH = "relaunch"
    LEAVE = "leave"


def step(*, committed: bool, want: Want, noted: bool, running: bool, exited: bool, same_boot: bool) -> Step:
    """The step for one VM. `noted`: the record says already that it is down, and why."""
    if not committed:
        return Step.UNDO
    if want is Want.GONE:
        return Step.FINISH_DESTROY
    if want is Want.STOPPED:
        return Step.FINISH_STOP if running else Step.NOTE_STOPPED
    if running:
        return Step.ADOPT
    if exited:
        return Step.NOTE_EXIT
    if not same_boot:
        return Step.RELAUNCH
    return Step.LEAVE if noted else Step.NOTE_CRASH
