"""Starting a QEMU, confined, with all that it needs as open files. Makes taps, sockets and processes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct, structs

from atoll.drivers.machine.base import Machine, Nic
from atoll.drivers.machine.console_log import begin_behind, limit_of
from atoll.drivers.machine.qemu import record
from atoll.drivers.machine.qemu.argv import Accelerator, Files, TemplateFiles, qemu_argv
from atoll.drivers.machine.qemu.block import Places
from atoll.drivers.machine.qemu.monitor import end
from atoll.drivers.machine.qemu.probe import KVM, host_tsc_khz, kvm_group
from atoll.errors import AtollError, HostFailure
from atoll.system import aside, cgroups, files, links, processes, steps, walls
from atoll.system import memory as memory_files
from atoll.system.failures import failing
from atoll.system.undo import Undo


class Memory(Struct, frozen=True):
    """The memory of a machine that becomes a template, or is a fork of one and has a state to go on from; or that goes
    on from its own, which is all in its state."""

    ram: int | None
    state: Path | None = None
    own: bool = False
    forked: bool = True
    """It was a fork once, and is built as one."""
    places: Places | None = None


class Launcher:
    """Knows how QEMUs run on this host. `namespace` is where taps are made; None is where we are."""

    def __init__(self, accelerator: Accelerator, binary: str, namespace: str | None) -> None:
        self._accelerator = accelerator
        self._binary = binary
        self._namespace = namespace
        self._tsc_khz = host_tsc_khz()
        self._walls = walls.Walls((KVM,) if accelerator == "kvm" else ())

    def argv(self, machine: Machine, opened: Files) -> tuple[str, ...]:
        return qemu_argv(machine, opened, self._accelerator, binary=self._binary, tsc_khz=self._tsc_khz)

    async def launch(
        self,
        machine: Machine,
        undo: Undo,
        memory: Memory | None = None,
        disks: Sequence[int] = (),
        folders: Sequence[int] = (),
    ) -> tuple[processes.Pid, Files]:
        """Its process, on record, and the numbers that its files have there; `undo` ends it."""
        return await aside.run(self._launch, machine, undo, memory, disks, folders)

    def _launch(
        self,
        machine: Machine,
        undo: Undo,
        memory: Memory | None,
        disks: Sequence[int],
        folders: Sequence[int],
    ) -> tuple[processes.Pid, Files]:
        record.prepare(machine)
        with contextlib.ExitStack() as ours:
            opened = self._open_files(machine, undo, ours, memory, disks)
            if folders:
                opened = structs.replace(
                    opened, folders=tuple(folders), shared_ram=_shared_ram(machine, ours)
                )
            launch = processes.Launch(
                argv=self.argv(machine, opened),
                uid=machine.uid,
                gid=machine.uid,
                groups=kvm_group() if self._accelerator == "kvm" else (),
                cgroup=machine.cgroup,
                pass_fds=opened.numbers(),
                output=record.messages_path(machine),
                env={"LC_ALL": "C.UTF-8", "PATH": os.defpath},
                file_limit=_file_limit(machine, memory),
            )
            undo.add(end_all, machine)
            number = processes.spawn_behind(self._walls, launch, readable=(opened.kernel, opened.initrd))
            process = processes.identify(number)
        if process is None:
            raise failed_start(machine, HostFailure("its QEMU ended at once"))
        steps.step("qemu.spawned")
        record.write(machine, process)
        steps.step("qemu.recorded")
        return process, opened

    def _open_files(
        self,
        machine: Machine,
        undo: Undo,
        ours: contextlib.ExitStack,
        memory: Memory | None,
        disks: Sequence[int],
    ) -> Files:
        def opened(path: Path, flags: int) -> int:
            try:
                descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
            except OSError as error:
                raise HostFailure(f"starting machine {machine.name}: {error.strerror}: {path}") from error
            ours.callback(os.close, descriptor)
            return descriptor

        def listening(path: Path) -> int:
            return ours.enter_context(files.listen_unix(path)).fileno()

        def template_files(memory: Memory) -> TemplateFiles:
            # Opened for each: whoever reads it moves through it.
            state = None if memory.state is None else opened(memory.state, os.O_RDONLY)
            return TemplateFiles(memory.ram, listening(record.channel_path(machine)), state)

        def incoming(memory: Memory) -> int:
            assert memory.state is not None
            return opened(memory.state, os.O_RDONLY)

        def tap(nic: Nic) -> int:
            descriptor = links.open_tap(nic.link, nic.bridge, nic.mtu, self._namespace)
            ours.callback(os.close, descriptor)
            return descriptor

        taps = tuple(tap(nic) for nic in machine.nics)
        console_log = record.console_log_path(machine)
        if not console_log.exists():
            undo.add(aside.run, files.remove_tree, console_log)
        with failing(f"making {console_log}"):
            begin_behind(console_log, max((disk.most_bytes for disk in machine.disks), default=0))
        return Files(
            kernel=opened(machine.kernel, os.O_RDONLY),
            initrd=opened(machine.initrd, os.O_RDONLY),
            taps=taps,
            monitor=listening(record.monitor_path(machine)),
            hands=listening(record.hands_path(machine)),
            log=opened(console_log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW),
            template=None if memory is None or not memory.forked else template_files(memory),
            disks=tuple(disks),
            incoming=None if memory is None or memory.forked else incoming(memory),
            held=memory is not None and memory.own,
            places=None if memory is None else memory.places,
        )


async def clear_root(process: processes.Pid) -> None:
    """Take away what a QEMU saw of the host while it started. It has started when its monitor has answered."""
    await aside.run(walls.clear, process)
    steps.step("qemu.cleared")


def _shared_ram(machine: Machine, ours: contextlib.ExitStack) -> int:
    """Its memory, which those who serve its folders get from QEMU: they read requests there, and write answers."""
    descriptor = memory_files.create(machine.name, machine.memory_mib << 20)
    ours.callback(os.close, descriptor)
    return descriptor


def _file_limit(machine: Machine, memory: Memory | None) -> int | None:
    """How far its console, and with it all else, may write: see console_log.py."""
    if memory is not None and memory.state is None:
        return None  # what becomes a template writes its state to a file that may be larger, and is no user's
    return max(limit_of(record.console_log_path(machine)), *(disk.most_bytes for disk in machine.disks), 0)


async def end_all(machine: Machine) -> None:
    """Leave no process of a machine. Gone is fine."""
    known = record.read(machine)
    if known is not None:
        await end(known.process(), machine.name)
    if processes.processes_in(machine.cgroup):
        await aside.run(cgroups.kill_all, machine.cgroup)


def failed_start(machine: Machine, error: AtollError, of_folders: str = "") -> HostFailure:
    """The failure in QEMU's own words, where it left any. `of_folders`: those of the ones that serve its folders."""
    try:
        said = record.messages_path(machine).read_text(errors="replace")
    except OSError:
        said = ""
    if of_folders:
        said = f"{said}{of_folders}"
    return HostFailure(
        f"starting machine {machine.name}: {record.last_words(said) or error.brief}",
        hint="atoll doctor checks what the host lacks",
        details={"messages": said[-2000:]},
    )
