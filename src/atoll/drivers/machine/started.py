"""Which process runs a machine, noted in the VM's directory for the next agent. Reads and writes there."""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec import Struct

from atoll.drivers.machine.base import Exit
from atoll.errors import AtollError
from atoll.system import files, host
from atoll.system.failures import failing
from atoll.system.processes import Pid

_LIMIT = 4096


class Started(Struct, frozen=True):
    """A process that was started. The boot tells whether it can still be there."""

    pid: int
    started: int
    boot_id: str
    exit: Exit | None = None

    def process(self) -> Pid:
        return Pid(self.pid, self.started)


def read(path: Path) -> Started | None:
    """The note, if it can be read and is of this boot: no process outlives the host."""
    try:
        noted = msgspec.json.decode(files.read_limited(path, _LIMIT), type=Started)
    except (OSError, AtollError, msgspec.DecodeError):
        return None
    return noted if noted.boot_id == host.boot_id() else None


def write(path: Path, process: Pid, exit_: Exit | None = None) -> None:
    """Note that this process runs the machine; or why it does so no longer."""
    noted = Started(process.pid, process.started, host.boot_id(), exit_)
    new = path.with_suffix(".new")
    with failing(f"writing {path}"):
        # At once, but not synced: it is of no use after a power cut.
        new.touch(0o600)
        new.write_bytes(msgspec.json.encode(noted))
        new.replace(path)
