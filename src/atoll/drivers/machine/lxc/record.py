"""What a VM's directory holds of its container, to be found again by the next agent. Reads and writes there.

`lxc/` while it runs: `record.json` (which process, of which boot), `config` and `seccomp` for LXC, `messages`
once the monitor has ended, `reset` while it is to begin anew. After an exit that nobody asked for,
`record.json` stays and says why, until the next start or kill. `disk/` (see roots.py) and `console.log` stay
as long as the VM.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec
from msgspec import Struct

from atoll.drivers.machine.base import Exit, Machine
from atoll.errors import AtollError
from atoll.system import files, host
from atoll.system.processes import Pid

_LIMIT = 64 * 1024


class Record(Struct, frozen=True):
    """A container that was started: its keeper, and the boot that tells whether it can still be there."""

    pid: int
    started: int
    boot_id: str
    exit: Exit | None = None

    def process(self) -> Pid:
        return Pid(self.pid, self.started)


def directory(machine: Machine) -> Path:
    return machine.directory / "lxc"


def config_path(machine: Machine) -> Path:
    return directory(machine) / "config"


def seccomp_path(machine: Machine) -> Path:
    return directory(machine) / "seccomp"


def messages_path(machine: Machine) -> Path:
    return directory(machine) / "messages"


def reset_path(machine: Machine) -> Path:
    return directory(machine) / "reset"


def console_log_path(machine: Machine) -> Path:
    return machine.directory / "console.log"


def read(machine: Machine) -> Record | None:
    """The record, if it can be read and is of this boot: no process outlives the host."""
    try:
        record = msgspec.json.decode(files.read_limited(_path(machine), _LIMIT), type=Record)
    except (OSError, AtollError, msgspec.DecodeError):
        return None
    return record if record.boot_id == host.boot_id() else None


def write(machine: Machine, process: Pid) -> None:
    """Record that this process keeps the container."""
    _replace(_path(machine), Record(process.pid, process.started, host.boot_id()))


def write_exit(machine: Machine, process: Pid, reason: Exit) -> None:
    """Record that this process kept the container, and why it does so no longer."""
    record = Record(process.pid, process.started, host.boot_id(), reason)
    with contextlib.suppress(OSError):  # a full disk must not keep the exit from being reported
        _replace(_path(machine), record)


def messages(machine: Machine) -> str:
    """What the monitor said; nothing while it runs."""
    try:
        return files.read_limited(messages_path(machine), _LIMIT).decode(errors="replace")
    except (OSError, AtollError):
        return ""


def forget(machine: Machine) -> None:
    """Remove all of it but disk and console.log. Nothing there is fine."""
    if machine.directory.is_dir():
        files.remove_tree(directory(machine))


def _replace(path: Path, record: Record) -> None:
    # At once, but not synced: it is of no use after a power cut.
    new = path.with_suffix(".new")
    new.write_bytes(msgspec.json.encode(record))
    new.replace(path)


def _path(machine: Machine) -> Path:
    return directory(machine) / "record.json"
