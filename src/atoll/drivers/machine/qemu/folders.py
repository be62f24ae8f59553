"""Folders of the host in virtual machines: for each of them a virtiofsd, between the guest and the folder.

A virtiofsd does what a guest asks of a folder, so it may no more than the guest. It is root of a user namespace with
nobody else in it: by the mount that is the folder's owner (shared_folders.py), on the host it is the machine's own
user. It has that folder and its connection to QEMU, and nothing else (walls.py). It ends when QEMU's end of the
connection closes, whoever ends QEMU.

Effects: starts processes in the machine's cgroup, and finds them there.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from atoll.drivers.machine import shared_folders
from atoll.drivers.machine.base import Machine, SharedFolder
from atoll.drivers.machine.qemu import record
from atoll.drivers.machine.qemu.argv import LONGEST_CMDLINE, board_of, cmdline_of
from atoll.errors import Conflict, HostFailure
from atoll.model.vm import MachineType
from atoll.system import files, memory, mounts, pids, processes, steps, walls
from atoll.system.failures import failing
from atoll.system.mounts import IdRange

PROGRAM = Path("/usr/lib/qemu/virtiofsd")
"""That of QEMU up to 7.2. What came after it is another program, with other options."""
PACKAGE = "qemu-system-common"

_MARK = "ATOLL_SHARE"
"""The variable by which one is known among the processes of its machine: it says whose folder it serves."""
# It holds every file open that the guest has in use. Each takes memory that counts for the machine, so there is an end.
_OPEN_FILES = 65_536
_MESSAGES = 16 << 10
# It asks how many there may be before it reads that it is not to care.
_MOST_FILES = Path("/proc/sys/fs/file-max")
# chroot: the walls are namespaces already. timeout: the guest asks each time, since others write to the folder too, and
# lets go of what it does not use. no_readdirplus: of what it learns by listing alone it does not let go, and the first
# large directory would take all open files.
_OPTIONS = f"sandbox=chroot,source={walls.FOLDER},cache=auto,timeout=0,no_readdirplus,log_level=warn"


class Served(Struct, frozen=True):
    """Those who serve the folders of a machine that is being started."""

    connections: tuple[int, ...] = ()
    """For its QEMU, in the order of its folders."""
    messages: tuple[int, ...] = ()

    def said(self) -> str:
        """All that they complained of so far."""
        return b"".join(os.pread(number, _MESSAGES, 0).rstrip(b"\0") for number in self.messages).decode(
            errors="replace"
        )


def problem() -> str:
    """Why no machine has folders on this host; empty: they can have them."""
    if os.access(PROGRAM, os.X_OK):
        return ""
    return f"there is no {PROGRAM}, which serves them: apt-get install {PACKAGE}"


def check(machine: Machine) -> None:
    """Conflict for a machine that cannot have its folders, or whose guest could not be told where they are. Pure."""
    if board_of(machine) is MachineType.MICROVM:
        # Emulated, its devices hear only what goes through QEMU, and requests for a folder do not.
        raise Conflict(
            f"starting machine {machine.name}: machine type microvm has no shared folders",
            hint=f"choose {MachineType.Q35}",
        )
    if len(cmdline_of(machine, board_of(machine), "tcg", None)) > LONGEST_CMDLINE:
        raise Conflict(
            f"starting machine {machine.name}: the places of its folders do not fit into its kernel's command line",
            hint="choose shorter ones, or less of them",
        )


class Servers:
    """Knows how they run on this host."""

    def __init__(self) -> None:
        self._walls = walls.Walls(folder=True, facts=(_MOST_FILES,))

    @contextlib.contextmanager
    def started(self, machine: Machine) -> Iterator[Served]:
        """The folders of a machine are served, to whoever has the connections; ours are closed at the end of the block.
        A failure may leave some in its cgroup."""
        if not machine.folders:
            yield Served()
            return
        if why := problem():
            raise Conflict(f"starting machine {machine.name}: shares: {why}")
        check(machine)
        record.prepare(machine)
        record.write_folders(machine, [folder.name for folder in machine.folders])
        with contextlib.ExitStack() as stack:
            connections, messages = [], []
            for folder in machine.folders:
                messages.append(memory.create_fixed(folder.name, _MESSAGES))
                stack.callback(os.close, messages[-1])
                connections.append(self._start(machine, folder, messages[-1], stack))
                steps.step("qemu.folder-served")
            yield Served(tuple(connections), tuple(messages))

    def _start(self, machine: Machine, folder: SharedFolder, output: int, stack: contextlib.ExitStack) -> int:
        listener, connection = files.unix_pair(record.directory(machine) / "folder.sock")
        stack.enter_context(connection)
        one = (IdRange(inside=0, outside=machine.uid, count=1),)
        with (
            listener,
            failing(f"starting machine {machine.name}: share {folder.name}"),
            shared_folders.copied(folder, machine.uid) as copy,
            mounts.user_namespace(one) as namespace,
        ):
            launch = processes.Launch(
                argv=(str(PROGRAM), f"--fd={listener.fileno()}", "-f", "--rlimit-nofile=0", "-o", _OPTIONS),
                cgroup=machine.cgroup,
                pass_fds=(listener.fileno(),),
                output=output,
                env={"LC_ALL": "C.UTF-8", "PATH": os.defpath, _MARK: folder.name},
                open_files=_OPEN_FILES,
                user_namespace=namespace(),
            )
            # A machine that is out of memory loses a folder, and goes on.
            pids.end_first(processes.spawn_behind(self._walls, launch, folder=copy))
        return connection.fileno()


def servers_of(machine: Machine) -> Mapping[str, processes.Pid]:
    """Those that run for a machine, by the name of the share."""
    return {
        name: process
        for number in processes.processes_in(machine.cgroup)
        if (name := pids.variable(number, _MARK)) is not None
        and (process := processes.identify(number)) is not None
        and processes.alive(process)
    }


def lost_by(machine: Machine) -> tuple[str, ...]:
    """The folders that a machine was started with, and that nobody serves any longer."""
    had = record.read_folders(machine)
    served = servers_of(machine) if had else {}
    return tuple(name for name in had if name not in served)


def clear_roots(machine: Machine) -> None:
    """Take away what they saw of the host while they started. They have when their QEMU has."""
    for process in servers_of(machine).values() if record.read_folders(machine) else ():
        with contextlib.suppress(HostFailure):  # it has just ended, or is about to
            walls.clear(process)
