"""Simulated machines. Each is a file, `sim.json`, in its VM's directory, and so survives its agent.

Deterministic: no process, no clock, no sleep. Guests obey at once unless they are told to be deaf; every step
can be made to fail. The guest's own doings (power off, crash) are methods here, for those who play the guest.
Writes files in the VM's directory.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from atoll.drivers.machine.base import Console, Exit, Machine, OnExit, Seen, capabilities_of
from atoll.errors import AtollError, Conflict, HostFailure
from atoll.model.node import DriverInfo
from atoll.system import files
from atoll.system.undo import Undo

STEPS = ("start", "started", "power_down", "kill", "reset", "inspect", "console")
"""Where a fault can strike. `started` is the last moment of a start, when all of it has to be undone."""

_RECORD = "sim.json"
_CONSOLE_LOG = "console.log"
_RECORD_LIMIT = 4096
# Above every number that Linux gives to a process, so that nobody can hit a real one by mistake.
_FIRST_PID = 1 << 22


class Record(Struct, frozen=True):
    """A simulated machine, as kept on disk."""

    pid: int
    exit: Exit | None = None
    resets: int = 0


class SimFaults:
    """What shall go wrong.

    `fail` names steps that fail, `deaf` the IPs of guests that ignore their power button; `hook` gets each
    step and IP, and may raise or do anything else.
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
        self._unread.put_nowait(data)

    async def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._unread.put_nowait(b"")


class SimDriver:
    """The machine driver `sim`."""

    def __init__(self, on_exit: OnExit, faults: SimFaults | None = None) -> None:
        self.faults = faults or SimFaults()
        self._on_exit = on_exit
        self._watched: set[str] = set()
        self._consoles: dict[str, SimConsole] = {}

    @property
    def name(self) -> str:
        return "sim"

    async def describe(self) -> DriverInfo:
        return DriverInfo(name=self.name, capabilities=capabilities_of(self))

    async def start(self, machine: Machine) -> None:
        self.faults.strike("start", machine.ip)
        record = _read(machine)
        if record is None or record.exit is not None:
            await self._start(machine)
        self._watched.add(machine.ip)

    async def power_down(self, machine: Machine) -> None:
        self.faults.strike("power_down", machine.ip)
        self._running(machine, "powering it down")
        if machine.ip not in self.faults.deaf:
            await self.guest_powers_off(machine)

    async def kill(self, machine: Machine) -> None:
        self.faults.strike("kill", machine.ip)
        self._watched.discard(machine.ip)
        await self._hang_up(machine)
        files.remove_tree(machine.directory / _RECORD)

    async def reset(self, machine: Machine) -> None:
        self.faults.strike("reset", machine.ip)
        record = self._running(machine, "resetting it")
        _write(machine, msgspec.structs.replace(record, resets=record.resets + 1))
        _append(machine.directory / _CONSOLE_LOG, _banner(machine))

    async def inspect(self, machines: Sequence[Machine]) -> Mapping[str, Seen]:
        seen: dict[str, Seen] = {}
        for machine in machines:
            self.faults.strike("inspect", machine.ip)
            record = _read(machine)
            if record is None:
                continue
            seen[machine.ip] = Seen(machine.ip, record.pid, record.exit)
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

    async def close(self) -> None:
        self._watched.clear()
        for console in self._consoles.values():
            await console.close()

    async def guest_powers_off(self, machine: Machine) -> None:
        """Play the guest: it shuts itself down."""
        await self._end(machine, Exit.POWERED_OFF)

    async def guest_crashes(self, machine: Machine) -> None:
        """Play the guest: it panics, or its process dies."""
        await self._end(machine, Exit.CRASHED)

    async def _start(self, machine: Machine) -> None:
        log = machine.directory / _CONSOLE_LOG
        async with Undo() as undo:
            if not log.exists():
                undo.add(files.remove_tree, log)
            undo.add(files.remove_tree, machine.directory / _RECORD)
            _write(machine, Record(pid=_FIRST_PID + zlib.crc32(machine.ip.encode())))
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

    def _running(self, machine: Machine, doing: str) -> Record:
        record = _read(machine)
        if record is None or record.exit is not None:
            raise Conflict(f"machine {machine.name}: {doing}: it is not running", hint="start it first")
        return record


def _banner(machine: Machine) -> bytes:
    return f"{machine.name}: simulated guest\r\n".encode()


def _read(machine: Machine) -> Record | None:
    try:
        text = files.read_limited(machine.directory / _RECORD, _RECORD_LIMIT)
        return msgspec.json.decode(text, type=Record)
    except (OSError, AtollError, msgspec.DecodeError):
        return None


def _write(machine: Machine, record: Record) -> None:
    files.write_durably(machine.directory / _RECORD, msgspec.json.encode(record))


def _append(log: Path, data: bytes) -> None:
    with log.open("ab") as file:
        file.write(data)
