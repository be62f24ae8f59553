"""What a VM's directory holds of its container: its name, to be found again by the next agent. Durable files there.

The engine holds the container, and with it the VM's root, as long as the VM: also while it does not run.
`docker/record.json` says which one it is, and which others there may be: one that is being made, or one that its
root was taken from. Those are of no use once an agent was killed.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec import Struct

from atoll.drivers.machine.base import Machine
from atoll.errors import AtollError
from atoll.system import aside, files

_LIMIT = 4096


class Kept(Struct, frozen=True):
    """A container that is kept, and others that are to go. `ended`: nobody waits to hear how it ended."""

    container: str = ""
    """Empty: none was made yet."""
    others: tuple[str, ...] = ()
    ended: bool = True


def directory(machine: Machine) -> Path:
    return machine.directory / "docker"


def console_log_path(machine: Machine) -> Path:
    return machine.directory / "console.log"


def read(machine: Machine) -> Kept | None:
    """None when there is none, or it cannot be read."""
    try:
        return msgspec.json.decode(files.read_limited(_path(machine), _LIMIT), type=Kept)
    except (OSError, AtollError, msgspec.DecodeError):
        return None


def write(machine: Machine, kept: Kept) -> None:
    files.make_dirs(directory(machine))
    files.write_durably(_path(machine), msgspec.json.encode(kept))


async def forget(machine: Machine) -> None:
    """Remove all of it but console.log. Nothing there is fine."""
    if directory(machine).exists():
        await aside.run(files.remove_tree, directory(machine))


def _path(machine: Machine) -> Path:
    return directory(machine) / "record.json"
