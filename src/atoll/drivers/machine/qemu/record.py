"""What a VM's directory holds of its QEMU, to be found again by the next agent. Reads and writes there.

`qemu/` while it runs: `record.json` (which process, of which boot), `monitor.sock`, `hands.sock`, `messages` (its own),
`folders` (the names of those that it was started with), and of a fork `channel.sock`. After an exit that nobody asked
for, `record.json` stays and says why, until the next start or kill. `console.log`, the serial line, is beside `qemu/`
and stays as long as the VM.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from atoll.drivers.machine import started
from atoll.drivers.machine.base import Exit, Machine
from atoll.drivers.machine.started import Started
from atoll.errors import HostFailure
from atoll.system import aside, files
from atoll.system.failures import failing
from atoll.system.processes import Pid


def directory(machine: Machine) -> Path:
    return machine.directory / "qemu"


def record_path(machine: Machine) -> Path:
    return directory(machine) / "record.json"


def monitor_path(machine: Machine) -> Path:
    return directory(machine) / "monitor.sock"


def channel_path(machine: Machine) -> Path:
    return directory(machine) / "channel.sock"


def hands_path(machine: Machine) -> Path:
    return directory(machine) / "hands.sock"


def console_log_path(machine: Machine) -> Path:
    return machine.directory / "console.log"


def messages_path(machine: Machine) -> Path:
    return directory(machine) / "messages"


def folders_path(machine: Machine) -> Path:
    return directory(machine) / "folders"


def prepare(machine: Machine) -> None:
    """Make the place for all of it."""
    with failing(f"making {directory(machine)}"):
        directory(machine).mkdir(0o700, exist_ok=True)


def read(machine: Machine) -> Started | None:
    return started.read(record_path(machine))


def write(machine: Machine, process: Pid) -> None:
    """Record that this process runs the machine."""
    started.write(record_path(machine), process)


def write_exit(machine: Machine, process: Pid, reason: Exit) -> None:
    """Record that this process ran the machine, and why it does so no longer."""
    _remove_sockets(machine)
    with contextlib.suppress(HostFailure):  # a full disk must not keep the exit from being reported
        started.write(record_path(machine), process, reason)


def write_folders(machine: Machine, names: Sequence[str]) -> None:
    """Record that the machine is started with these."""
    with failing(f"writing {folders_path(machine)}"):
        folders_path(machine).write_text("".join(f"{name}\n" for name in names))


def read_folders(machine: Machine) -> tuple[str, ...]:
    """Those that the machine was started with."""
    try:
        return tuple(folders_path(machine).read_text().split())
    except OSError:
        return ()


async def forget(machine: Machine) -> None:
    """Remove all of it but the serial line's log. Nothing there is fine."""
    if directory(machine).exists():
        await aside.run(files.remove_tree, directory(machine))


def last_words(messages: str) -> str:
    """The last line of QEMU's messages without its time stamp and program name. Pure."""
    lines = messages.strip().splitlines()
    return lines[-1].rpartition("qemu-system-x86_64: ")[2] if lines else ""


def _remove_sockets(machine: Machine) -> None:
    for path in (monitor_path(machine), hands_path(machine), channel_path(machine)):
        path.unlink(missing_ok=True)
