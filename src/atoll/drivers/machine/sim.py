"""Simulated machines. Each is a file, `sim/record.json`, in its VM's directory, and so survives its agent.

Deterministic: no process, no clock, no sleep. Guests obey at once unless they are told to be deaf; every step
can be made to fail. The guest's own doings (power off, crash) are methods here, for those who play the guest.
A template is a file too, `sim-template.json`. Writes files in the directories of VMs and templates.
"""

from __future__ import annotations

import asyncio
import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from atoll.drivers.machine.base import (
    BadTemplate,
    Console,
    Disk,
    Exit,
    Machine,
    OnExit,
    OnStall,
    Seen,
    capabilities_of,
)
from atoll.drivers.machine.sim_exec import SimProcess
from atoll.drivers.machine.sim_screen import SimScreen
from atoll.errors import AtollError, Conflict, HostFailure
from atoll.model.command import Command
from atoll.model.hardware import Watchdog
from atoll.model.node import DriverInfo
from atoll.model.vm import MachineType
from atoll.model.volume import DiskInterface
from atoll.system import aside, files, folders
from atoll.system.undo import Undo

STEPS = (
    *("start", "started", "power_down", "kill", "reset", "inspect", "console", "display", "exec"),
    *("make_template", "load_template", "fork", "identify", "rehearse", "park"),
    *("attach", "detach", "grow_disk", "resume", "freeze", "thaw"),
    *("save", "restore"),
)
"""Where a fault can strike. `started` is the last moment of a start, when all of it has to be undone."""

_OWN = "sim"
_RECORD = "sim/record.json"
_TEMPLATE = "sim-template.json"
_SAVED = "sim.saved"
_WHOLE = b"{}"
_CONSOLE_LOG = "console.log"
_RECORD_LIMIT = 4096
# Above every number that Linux gives to a process, so that nobody can hit a real one by mistake.
_FIRST_PID = 1 << 22


class Record(Struct, frozen=True):
    """A simulated machine, as kept on disk."""

    pid: int
    exit: Exit | None = None
    resets: int = 0
    waiting: bool = False
    """For its identity."""
    rehearsing: bool = False
    rehearsals: int = 0
    disks: tuple[str, ...] = ()
    screen: bool = False
    macs: tuple[str, ...] = ()
    stalled: bool = False
    frozen: bool = False


class SimFaults:
    """What shall go wrong.

    `fail` names steps that fail, `deaf` the IPs of guests that ignore their power button, `lost` those of
    machines whose link was removed since they were started, `lost_folders` the folders that machines lost since,
    `full` those of machines that have no room for what they write; `hook` gets each step and IP, and may raise or do
    anything else.
    """

    def __init__(
        self,
        fail: Sequence[str] = (),
        deaf: Sequence[str] = (),
        hook: Callable[[str, str], None] | None = None,
    ) -> None:
        unknown = set(fail) - set(STEPS)
        if unknown:
            raise ValueError(f"no such step: {', '.join(sorted(unknown))}")
        self.fail = set(fail)
        self.deaf = set(deaf)
        self.lost: set[str] = set()
        self.lost_folders: dict[str, list[str]] = {}
        self.full: set[str] = set()
        self.hook = hook

    def strike(self, step: str, ip: str) -> None:
        if self.hook is not None:
            self.hook(step, ip)
        if step in self.fail:
            raise HostFailure(f"simulated machine {ip}: {step} was told to fail", hint="expected in a test")


class SimConsole:
    """A serial line on which the guest echoes what it gets. The echo is in console.log too."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._unread: asyncio.Queue[bytes] = asyncio.Queue()
        self.closed = False

    async def read(self) -> bytes:
        if self.closed and self._unread.empty():
            return b""
        return await self._unread.get()

    async def write(self, data: bytes) -> None:
        if self.closed:
            raise ConnectionResetError("the console is closed")
        _append(self._log, data)
        self.stir(data)

    def stir(self, data: bytes) -> None:
        """The guest wrote this."""
        self._unread.put_nowait(data)

    async def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._unread.put_nowait(b"")


class SimDriver:
    """The machine driver `sim`."""

    def __init__(
        self, on_exit: OnExit, faults: SimFaults | None = None, on_stall: OnStall = lambda ip, stalled: None
    ) -> None:
        self.faults = faults or SimFaults()
        self._on_exit = on_exit
        self._on_stall = on_stall
        self._watched: set[str] = set()
        self._templates: set[Path] = set()
        self._consoles: dict[str, SimConsole] = {}
        self._screens: dict[str, list[SimScreen]] = {}
        self._commands: dict[str, set[SimProcess]] = {}

    @property
    def name(self) -> str:
        return "sim"

    async def describe(self) -> DriverInfo:
        return DriverInfo(name=self.name, capabilities=capabilities_of(self))

    def share_problem(self) -> str:
        return ""

    async def start(self, machine: Machine) -> None:
        self.faults.strike("start", machine.ip)
        await self._ensure_started(machine)

    async def _ensure_started(self, machine: Machine, waiting: bool = False) -> None:
        record = _read(machine)
        if record is None or record.exit is not None:
            await self._start(machine, waiting)
        self._watched.add(machine.ip)

    def template_basis(self, machine: Machine) -> Mapping[str, str]:
        return {"memory": str(machine.memory_mib), "cpus": str(machine.vcpus), "mtu": str(machine.nic.mtu)}

    async def make_template(self, machine: Machine, directory: Path) -> None:
        self.faults.strike("make_template", machine.ip)
        files.write_durably(directory / _TEMPLATE, _WHOLE)
        self._templates.add(directory)

    async def load_template(self, directory: Path) -> None:
        self.faults.strike("load_template", directory.name)
        files.read_limited(directory / _TEMPLATE, _RECORD_LIMIT)
        self._templates.add(directory)

    def forget_template(self, directory: Path) -> None:
        self._templates.discard(directory)

    async def fork(self, machine: Machine, directory: Path) -> None:
        self.faults.strike("fork", machine.ip)
        if directory not in self._templates:
            raise Conflict(f"forking template {directory.name}: it is not ready", hint="start it cold")
        if files.read_limited(directory / _TEMPLATE, _RECORD_LIMIT) != _WHOLE:
            raise BadTemplate(f"simulated machine {machine.ip}: template {directory.name} is damaged")
        await self._ensure_started(machine, waiting=True)

    async def identify(self, machine: Machine) -> None:
        self.faults.strike("identify", machine.ip)
        _write(machine, msgspec.structs.replace(self._waiting(machine), waiting=False))
        _append(machine.directory / _CONSOLE_LOG, _told("identity", machine))

    async def rehearse(self, machine: Machine) -> None:
        self.faults.strike("rehearse", machine.ip)
        record = self._waiting(machine)
        changed = {"waiting": False, "rehearsing": True, "rehearsals": record.rehearsals + 1}
        _write(machine, msgspec.structs.replace(record, **changed))
        _append(machine.directory / _CONSOLE_LOG, _told("rehearse", machine))

    async def park(self, machine: Machine) -> None:
        self.faults.strike("park", machine.ip)
        record = self._running(machine, "parking it")
        if not record.rehearsing:
            raise HostFailure(f"machine {machine.name}: its guest did not say ready: it is in no rehearsal")
        _write(machine, msgspec.structs.replace(record, waiting=True, rehearsing=False))

    def _waiting(self, machine: Machine) -> Record:
        record = _read(machine)
        if record is None or record.exit is not None or not record.waiting:
            raise HostFailure(f"machine {machine.name}: it takes no identity", hint="fork it first")
        return record

    async def power_down(self, machine: Machine) -> None:
        self.faults.strike("power_down", machine.ip)
        record = self._running(machine, "powering it down")
        if machine.ip not in self.faults.deaf and not record.frozen:
            await self.guest_powers_off(machine)

    async def kill(self, machine: Machine) -> None:
        self.faults.strike("kill", machine.ip)
        self._watched.discard(machine.ip)
        await self._hang_up(machine)
        await aside.run(files.remove_tree, machine.directory / _OWN)

    async def reset(self, machine: Machine) -> None:
        self.faults.strike("reset", machine.ip)
        record = self._running(machine, "resetting it")
        _write(machine, msgspec.structs.replace(record, resets=record.resets + 1))
        _append(machine.directory / _CONSOLE_LOG, _banner(machine))

    async def resume(self, machine: Machine) -> None:
        self.faults.strike("resume", machine.ip)
        self._running(machine, "letting it go on")
        self._write_stalled(machine, machine.ip in self.faults.full)

    async def freeze(self, machine: Machine) -> None:
        self.faults.strike("freeze", machine.ip)
        self._hold(machine, True)

    async def thaw(self, machine: Machine) -> None:
        self.faults.strike("thaw", machine.ip)
        self._hold(machine, False)

    def _hold(self, machine: Machine, frozen: bool) -> None:
        record = self._running(machine, "holding it still" if frozen else "letting it go on")
        if record.frozen is not frozen:
            _write(machine, msgspec.structs.replace(record, frozen=frozen))

    def check_savable(self, machine: Machine) -> None:
        if machine.watchdog is not Watchdog.NONE:
            raise Conflict(
                f"machine {machine.name}: one with a watchdog is not saved", hint="expected in a test"
            )

    async def save(self, machine: Machine) -> None:
        record = self._running(machine, "keeping its memory")
        if not record.frozen:
            raise HostFailure(f"machine {machine.name}: keeping its memory: it is not held still")
        self.faults.strike("save", machine.ip)
        files.write_durably(machine.directory / _SAVED, msgspec.json.encode(record))

    async def restore(self, machine: Machine) -> None:
        self.faults.strike("restore", machine.ip)
        path = machine.directory / _SAVED
        if not path.exists():
            raise Conflict(f"machine {machine.name}: none of its memory is kept", hint="start it anew")
        kept = msgspec.json.decode(files.read_limited(path, _RECORD_LIMIT), type=Record)
        await self._ensure_started(machine)
        _write(machine, kept)

    async def forget_saved(self, machine: Machine) -> None:
        (machine.directory / _SAVED).unlink(missing_ok=True)

    async def inspect(self, machines: Sequence[Machine]) -> Mapping[str, Seen]:
        seen: dict[str, Seen] = {}
        for machine in machines:
            self.faults.strike("inspect", machine.ip)
            record = _read(machine)
            if record is None:
                continue
            lost = (machine.nic.link,) if record.exit is None and machine.ip in self.faults.lost else ()
            seen[machine.ip] = Seen(
                machine.ip,
                record.pid,
                record.exit,
                lost,
                tuple(self.faults.lost_folders.get(machine.ip, ())),
                stalled=record.stalled,
                frozen=record.frozen,
            )
            if record.exit is None:
                self._watched.add(machine.ip)
        return seen

    async def console(self, machine: Machine) -> Console:
        self.faults.strike("console", machine.ip)
        self._running(machine, "opening its console")
        held = self._consoles.get(machine.ip)
        if held is not None and not held.closed:
            raise Conflict(
                f"machine {machine.name}: opening its console: somebody has it open",
                hint="close the other one first; console.log has what the guest wrote",
            )
        console = self._consoles[machine.ip] = SimConsole(machine.directory / _CONSOLE_LOG)
        return console

    async def display(self, machine: Machine) -> Console:
        self.faults.strike("display", machine.ip)
        if not self._running(machine, "opening its screen").screen:
            raise Conflict(f"machine {machine.name}: opening its screen: it was started without one")
        screen = SimScreen(machine.name)
        self._screens.setdefault(machine.ip, []).append(screen)
        return screen

    @property
    def needs_agent(self) -> bool:
        return True

    async def exec(self, machine: Machine, command: Command) -> SimProcess:
        self.faults.strike("exec", machine.ip)
        self._running(machine, "running a command in it")
        process = SimProcess(machine.name, command)
        kept = {one for one in self._commands.get(machine.ip, ()) if one.running}
        self._commands[machine.ip] = {*kept, process}
        return process

    def commands_of(self, machine: Machine) -> int:
        """How many run."""
        return sum(one.running for one in self._commands.get(machine.ip, ()))

    def watchdogs(self, machine_type: MachineType) -> tuple[Watchdog, ...]:
        return () if machine_type is MachineType.MICROVM else (Watchdog.I6300ESB,)

    async def can_attach(self, machine: Machine, disk: Disk) -> bool:
        is_pci = disk.interface is not DiskInterface.IDE
        return is_pci and machine.machine_type is not MachineType.MICROVM

    async def can_detach(self, machine: Machine, name: str) -> bool:
        fixed = {disk.name for disk in machine.disks if disk.interface is DiskInterface.IDE}
        return name not in fixed and machine.machine_type is not MachineType.MICROVM

    async def attach(self, machine: Machine, disk: Disk) -> None:
        self.faults.strike("attach", machine.ip)
        record = self._running(machine, f"attaching disk {disk.name}")
        _check_there(disk)
        if disk.name not in record.disks:
            _write(machine, msgspec.structs.replace(record, disks=(*record.disks, disk.name)))

    async def detach(self, machine: Machine, name: str) -> None:
        self.faults.strike("detach", machine.ip)
        record = self._running(machine, f"detaching disk {name}")
        if name in record.disks and machine.ip in self.faults.deaf:
            raise Conflict(
                f"machine {machine.name}: detaching disk {name}: the guest keeps it",
                hint="unmount it in the guest",
            )
        kept = tuple(disk for disk in record.disks if disk != name)
        _write(machine, msgspec.structs.replace(record, disks=kept))

    def grows_while_used(self, disk: Disk) -> bool:
        return disk.interface is DiskInterface.VIRTIO

    async def grow_disk(self, machine: Machine, disk: Disk) -> None:
        self.faults.strike("grow_disk", machine.ip)
        self._running(machine, f"growing disk {disk.name}")
        _check_there(disk)
        if disk.path is not None and disk.format == "raw":
            await aside.run(os.truncate, disk.path, disk.size_mib << 20)

    def disks_of(self, machine: Machine) -> tuple[str, ...]:
        """What a guest would find, in its order."""
        record = _read(machine)
        return record.disks if record is not None else ()

    def macs_of(self, machine: Machine) -> tuple[str, ...]:
        """Those of the interfaces that a guest would find, in its order."""
        record = _read(machine)
        return record.macs if record is not None else ()

    async def close(self) -> None:
        self._watched.clear()
        for console in self._consoles.values():
            await console.close()
        for command in [one for all_ in self._commands.values() for one in all_]:
            await command.close()

    def guest_writes(self, machine: Machine, data: bytes) -> None:
        """Play the guest: it writes to its serial line."""
        self._running(machine, "writing to its console")
        _append(machine.directory / _CONSOLE_LOG, data)
        if machine.ip in self._consoles:
            self._consoles[machine.ip].stir(data)

    def guest_runs_out_of_room(self, machine: Machine) -> None:
        """Play the guest: it writes to a disk for which the node has no room."""
        self.faults.full.add(machine.ip)
        self._write_stalled(machine, True)

    async def guest_powers_off(self, machine: Machine) -> None:
        """Play the guest: it shuts itself down."""
        await self._end(machine, Exit.POWERED_OFF)

    async def guest_crashes(self, machine: Machine) -> None:
        """Play the guest: it panics, or its process dies."""
        await self._end(machine, Exit.CRASHED)

    def _write_stalled(self, machine: Machine, stalled: bool) -> None:
        record = self._running(machine, "pausing it")
        _write(machine, msgspec.structs.replace(record, stalled=stalled))
        self._on_stall(machine.ip, stalled)

    async def _start(self, machine: Machine, waiting: bool = False) -> None:
        log = machine.directory / _CONSOLE_LOG
        async with Undo() as undo:
            if not log.exists():
                undo.add(aside.run, files.remove_tree, log)
            undo.add(aside.run, files.remove_tree, machine.directory / _OWN)
            for disk in machine.disks:
                _check_there(disk)
            for folder in machine.folders:
                with folders.opened(folder.source, folder.node):
                    pass
            names = tuple(disk.name for disk in machine.disks)
            pid = _FIRST_PID + zlib.crc32(machine.ip.encode())
            macs = tuple(nic.mac for nic in machine.nics)
            record = Record(pid=pid, waiting=waiting, disks=names, screen=machine.screen, macs=macs)
            _write(machine, record)
            self.faults.lost.discard(machine.ip)
            self.faults.lost_folders.pop(machine.ip, None)
            _append(log, _banner(machine))
            self.faults.strike("started", machine.ip)
            undo.commit()

    async def _end(self, machine: Machine, reason: Exit) -> None:
        record = self._running(machine, "ending it")
        _write(machine, msgspec.structs.replace(record, exit=reason))
        await self._hang_up(machine)
        # A driver that does not watch it is one of an agent that was away: the next one finds it.
        if machine.ip in self._watched:
            self._watched.discard(machine.ip)
            asyncio.get_running_loop().call_soon(self._on_exit, machine.ip, reason)

    async def _hang_up(self, machine: Machine) -> None:
        console = self._consoles.pop(machine.ip, None)
        if console is not None:
            await console.close()
        for screen in self._screens.pop(machine.ip, []):
            await screen.close()
        for command in self._commands.pop(machine.ip, ()):
            command.stop()

    def _running(self, machine: Machine, doing: str) -> Record:
        record = _read(machine)
        if record is None or record.exit is not None:
            raise Conflict(f"machine {machine.name}: {doing}: it is not running", hint="start it first")
        return record


def _check_there(disk: Disk) -> None:
    if disk.path is not None and not disk.path.exists():
        raise HostFailure(f"disk {disk.name}: {disk.path} is gone", hint="restore it, or delete the volume")


def _banner(machine: Machine) -> bytes:
    return f"{machine.name}: simulated guest\r\n".encode()


def _told(order: str, machine: Machine) -> bytes:
    return f"{order} {machine.nic.mac} {machine.name}\r\n".encode()


def _read(machine: Machine) -> Record | None:
    try:
        text = files.read_limited(machine.directory / _RECORD, _RECORD_LIMIT)
        return msgspec.json.decode(text, type=Record)
    except (OSError, AtollError, msgspec.DecodeError):
        return None


def _write(machine: Machine, record: Record) -> None:
    files.make_dirs(machine.directory / _OWN)
    files.write_durably(machine.directory / _RECORD, msgspec.json.encode(record))


def _append(log: Path, data: bytes) -> None:
    with log.open("ab") as file:
        file.write(data)
