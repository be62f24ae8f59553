"""Templates of virtual machines: a guest that waits for its identity, frozen. Runs QEMU, keeps files.

    <directory>/ram      the guest's memory; while forks of it are wanted, also in the host's
    <directory>/state    the rest of the machine, as QEMU writes it

Forks map the memory privately. It is sealed before the first of them: a fork that was taken over can read
what all forks share anyway, and change none of it.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from msgspec import structs

from atoll.drivers.machine.base import Machine
from atoll.drivers.machine.qemu import channel, record
from atoll.drivers.machine.qemu.argv import Accelerator, Files, TemplateFiles
from atoll.drivers.machine.qemu.launch import Launcher, Memory, clear_root, failed_start
from atoll.drivers.machine.qemu.monitor import Monitor
from atoll.errors import AtollError, Conflict
from atoll.system import aside, files, host, memory
from atoll.system.undo import Undo

PROTOCOL = 1
"""What guest and host say to each other on the channel. Another one, and old templates are of no use."""
WAIT = "atoll.wait"
RAM = "ram"
STATE = "state"
START_TIMEOUT_S = 20.0
BOOT_TIMEOUT_S = 120.0
SAVE_TIMEOUT_S = 30.0

_NOT_RESTORED = "load of migration failed"
_FILES = Files(0, 0, (0,), 0, 0, 0, TemplateFiles(0, 0))


class LoadedTemplates:
    """Those that are ready for forks, by their directory."""

    def __init__(self, launcher: Launcher, accelerator: Accelerator, binary: str) -> None:
        self._launcher = launcher
        self._accelerator = accelerator
        self._binary = binary
        self._cpu = cpu_model(Path("/proc/cpuinfo").read_text())
        self._ram: dict[Path, int] = {}

    def basis(self, machine: Machine) -> Mapping[str, str]:
        program = host.require_tool(self._binary)
        seen = program.stat()
        return {
            "protocol": str(PROTOCOL),
            "accelerator": self._accelerator,
            "qemu": f"{program} {seen.st_size} {seen.st_mtime_ns}",
            "kernel": host.kernel(),
            "cpu": self._cpu,
            "machine": hashlib.sha256("\0".join(self._launcher.argv(machine, _FILES)).encode()).hexdigest(),
        }

    async def make(self, machine: Machine, directory: Path) -> None:
        async with Undo() as undo:
            ram = memory.create(machine.name, machine.memory_mib << 20)
            undo.add(os.close, ram)
            for name in (RAM, STATE):
                undo.add(aside.run, files.remove_tree, directory / name)
            await self._run_until_it_waits(machine, ram, directory / STATE)
            memory.seal(ram)
            await asyncio.to_thread(_save, ram, directory)
            undo.commit()
        self._ram[directory] = ram

    async def load(self, directory: Path) -> None:
        if directory not in self._ram:
            ram = await asyncio.to_thread(memory.load, directory.name, directory / RAM)
            if self._ram.setdefault(directory, ram) != ram:
                os.close(ram)

    def forget(self, directory: Path) -> None:
        ram = self._ram.pop(directory, None)
        if ram is not None:
            os.close(ram)

    def memory(self, directory: Path) -> Memory:
        if directory not in self._ram:
            raise Conflict(
                f"forking template {directory.name}: it is not ready", hint="start the machine cold"
            )
        return Memory(self._ram[directory], directory / STATE)

    def close(self) -> None:
        for directory in list(self._ram):
            self.forget(directory)

    async def _run_until_it_waits(self, machine: Machine, ram: int, state: Path) -> None:
        waiting = structs.replace(machine, cmdline=f"{machine.cmdline} {WAIT}".strip())
        # Never committed: nothing of this machine is to stay, however it ends.
        async with Undo() as leave:
            leave.add(aside.run, files.remove_tree, record.console_log_path(machine))
            leave.add(record.forget, machine)
            process, _ = await self._launcher.launch(waiting, leave, Memory(ram))
            monitor = Monitor(machine.name, lambda _: None)
            leave.add(monitor.close)
            try:
                # Connected before the guest has anything to say, or its word would be lost.
                async with channel.opened(machine) as line:
                    await monitor.connect(record.monitor_path(machine), START_TIMEOUT_S)
                    await clear_root(process)
                    await line.expect("ready", BOOT_TIMEOUT_S)
                with files.new_file(state) as file:
                    await monitor.pass_file("state", file.fileno())
                    await monitor.migrate("migrate", "fd:state", SAVE_TIMEOUT_S)
            except AtollError as error:
                raise failed_start(machine, error) from error


def cpu_model(cpuinfo: str) -> str:
    """What guests may have found out about the host's CPU, in short. Pure."""
    fields = (line.partition(":") for line in cpuinfo.splitlines())
    first = {name.strip(): value.strip() for name, _, value in reversed(list(fields))}
    flags = hashlib.sha256(first.get("flags", "").encode()).hexdigest()[:12]
    return f"{first.get('model name', 'unknown')} {flags}"


def blames_template(messages: str) -> bool:
    """Whether a QEMU that could not be restored says that it was the state's fault. Pure.

    One that was killed says nothing, and one that lacks memory says so.
    """
    return _NOT_RESTORED in messages and os.strerror(errno.ENOMEM) not in messages


def _save(ram: int, directory: Path) -> None:
    memory.save(ram, directory / RAM)
    files.sync(directory / STATE)
    files.sync_dir(directory)
