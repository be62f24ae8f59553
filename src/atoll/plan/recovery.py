"""What to do with each VM when the agent starts. Pure: (what the record says, what runs) -> one remedy.

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


class Remedy(StrEnum):
    UNDO = "undo"
    FINISH_DESTROY = "finish-destroy"
    FINISH_STOP = "finish-stop"
    NOTE_STOPPED = "note-stopped"
    NOTE_EXIT = "note-exit"
    NOTE_CRASH = "note-crash"
    ADOPT = "adopt"
    RELAUNCH = "relaunch"
    LEAVE = "leave"


def remedy(
    *, committed: bool, want: Want, noted: bool, running: bool, exited: bool, same_boot: bool
) -> Remedy:
    """The remedy for one VM. `noted`: the record says already that it is down, and why."""
    if not committed:
        return Remedy.UNDO
    if want is Want.GONE:
        return Remedy.FINISH_DESTROY
    if want is Want.STOPPED:
        return Remedy.FINISH_STOP if running else Remedy.NOTE_STOPPED
    if running:
        return Remedy.ADOPT
    if exited:
        return Remedy.NOTE_EXIT
    if not same_boot:
        return Remedy.RELAUNCH
    return Remedy.LEAVE if noted else Remedy.NOTE_CRASH
