"""What a VM's directory holds of its container, to be found again by the next agent. Reads and writes there.

`lxc/run/` while it runs: `record.json` (which process, of which boot), `config` and `seccomp` for LXC, `messages`
once the monitor has ended, `reset` while it is to begin anew. After an exit that nobody asked for,
`record.json` stays and says why, until the next start or kill. `lxc/root.ext4` and `lxc/base` (see roots.py) and
`console.log` stay as long as the VM.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from atoll.drivers.machine import started
from atoll.drivers.machine.base import Exit, Machine
from atoll.drivers.machine.started import Started
from atoll.errors import AtollError, HostFailure
from atoll.system import aside, files
from atoll.system.processes import Pid

_LIMIT = 64 * 1024


def own_directory(machine: Machine) -> Path:
    """All that this kind keeps of a VM."""
    return machine.directory / "lxc"


def directory(machine: Machine) -> Path:
    return own_directory(machine) / "run"


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


def read(machine: Machine) -> Started | None:
    return started.read(_path(machine))


def write(machine: Machine, process: Pid) -> None:
    """Record that this process keeps the container."""
    started.write(_path(machine), process)


def write_exit(machine: Machine, process: Pid, reason: Exit) -> None:
    """Record that this process kept the container, and why it does so no longer."""
    with contextlib.suppress(HostFailure):  # a full disk must not keep the exit from being reported
        started.write(_path(machine), process, reason)


def messages(machine: Machine) -> str:
    """What the monitor said; nothing while it runs."""
    try:
        return files.read_limited(messages_path(machine), _LIMIT).decode(errors="replace")
    except (OSError, AtollError):
        return ""


async def forget(machine: Machine) -> None:
    """Remove all of it but its root and console.log. Nothing there is fine."""
    if own_directory(machine).is_dir():
        await aside.run(_remove, machine)


def _remove(machine: Machine) -> None:
    files.remove_tree(directory(machine))
    with contextlib.suppress(OSError):  # the root is in it
        own_directory(machine).rmdir()


def _path(machine: Machine) -> Path:
    return directory(machine) / "record.json"
