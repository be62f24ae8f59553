"""What to do with each VM when the agent starts. Pure: (what the record says, what runs) -> one remedy.

record                      seen running     seen exited      not seen
----------------------------------------------------------------------------------------
not acknowledged            UNDO             UNDO             UNDO
wanted gone                 FINISH_DESTROY   FINISH_DESTROY   FINISH_DESTROY
wanted stopped              FINISH_STOP      NOTE_STOPPED     NOTE_STOPPED
wanted running, same boot   ADOPT            NOTE_EXIT        NOTE_CRASH, if noted: LEAVE
wanted running, rebooted    ADOPT            NOTE_EXIT        RELAUNCH
held in memory, same boot   KEEP_HELD        NOTE_EXIT        NOTE_CRASH, if noted: LEAVE
held in memory, rebooted    KEEP_HELD        NOTE_EXIT        NOTE_LOST
held on disk                KEEP_ON_DISK     KEEP_ON_DISK     KEEP_ON_DISK

A VM is held from the moment on at which it is suspended for good: a suspend that was cut short is undone, and one that
is held on disk has not gone on before its record says so.
"""

from __future__ import annotations

from enum import StrEnum


class Want(StrEnum):
    """The last thing that was asked for."""

    RUNNING = "running"
    STOPPED = "stopped"
    SUSPENDED = "suspended"
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
    KEEP_HELD = "keep-held"
    KEEP_ON_DISK = "keep-on-disk"
    NOTE_LOST = "note-lost"
    LEAVE = "leave"


def remedy(
    *,
    committed: bool,
    want: Want,
    noted: bool,
    running: bool,
    exited: bool,
    same_boot: bool,
    on_disk: bool = False,
) -> Remedy:
    """The remedy for one VM. `noted`: the record says already that it is down, and why. `on_disk`: of one that is
    wanted suspended, its memory is in a file."""
    if not committed:
        return Remedy.UNDO
    if want is Want.GONE:
        return Remedy.FINISH_DESTROY
    if want is Want.STOPPED:
        return Remedy.FINISH_STOP if running else Remedy.NOTE_STOPPED
    if want is Want.SUSPENDED and on_disk:
        return Remedy.KEEP_ON_DISK
    if running:
        return Remedy.KEEP_HELD if want is Want.SUSPENDED else Remedy.ADOPT
    if exited:
        return Remedy.NOTE_EXIT
    if not same_boot:
        return Remedy.NOTE_LOST if want is Want.SUSPENDED else Remedy.RELAUNCH
    return Remedy.LEAVE if noted else Remedy.NOTE_CRASH
