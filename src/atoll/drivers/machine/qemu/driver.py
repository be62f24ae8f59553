"""Virtual machines by QEMU. Starts, watches and ends QEMU processes.

What a VM's directory holds of one is in record.py. QEMU does not daemonize itself, since its sandbox forbids
that: it is ready when its monitor greets, and what it says before that is in `qemu/messages`.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from msgspec import structs

from atoll.drivers.machine.base import (
    BadTemplate,
    Console,
    Disk,
    Exit,
    Machine,
    OnExit,
    OnLost,
    OnStall,
    Process,
    Seen,
    capabilities_of,
)
from atoll.drivers.machine.console_log import limit_of
from atoll.drivers.machine.qemu import disks, folders, hands, record, saved
from atoll.drivers.machine.qemu.argv import Accelerator, overhead_mib
from atoll.drivers.machine.qemu.channel import PARK, new_order
from atoll.drivers.machine.qemu.channel import opened as opened_channel
from atoll.drivers.machine.qemu.console import LogConsole, open_line
from atoll.drivers.machine.qemu.launch import Launcher, Memory, clear_root, end_all, failed_start
from atoll.drivers.machine.qemu.monitor import Watch
from atoll.drivers.machine.qemu.template import LoadedTemplates, blames_template
from atoll.drivers.machine.started import Started
from atoll.errors import AtollError, Conflict, HostFailure, TimedOut, Unreachable
from atoll.model.command import Command
from atoll.model.hardware import Watchdog
from atoll.model.node import DriverInfo
from atoll.model.vm import MachineType
from atoll.model.volume import DiskInterface
from atoll.system import aside, file_limits, landlock, links, processes, steps
from atoll.system.undo import Undo

START_TIMEOUT_S = 20.0
ORDER_TIMEOUT_S = 20.0
ATTACH_TIMEOUT_S = 1.0
"""For one that does not answer: the node is without its agent meanwhile."""

_READ_SIZE = 65536


class Screen:
    """A connection to QEMU's VNC server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def read(self) -> bytes:
        try:
            return await self._reader.read(_READ_SIZE)
        except ConnectionError:
            return b""

    async def write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


class QemuDriver:
    """The machine driver `qemu`. `namespace` is where taps are made; None is where we are."""

    def __init__(
        self,
        accelerator: Accelerator,
        on_exit: OnExit,
        on_stall: OnStall = lambda _ip, _stalled: None,
        on_lost: OnLost = lambda _ip: None,
        *,
        binary: str = "qemu-system-x86_64",
        namespace: str | None = None,
    ) -> None:
        self._accelerator: Accelerator = accelerator
        self._on_exit = on_exit
        self._on_stall = on_stall
        self._on_lost = on_lost
        self._namespace = namespace
        self._binary = binary
        self._launcher = Launcher(accelerator, binary, namespace)
        self._templates = LoadedTemplates(self._launcher, accelerator, binary)
        self._servers = folders.Servers()
        self._watches: dict[str, Watch] = {}
        self._servings: dict[str, list[Callable[[], None]]] = {}
        """How to hear no more of those that serve a machine's folders."""
        self._consoles: dict[str, LogConsole] = {}
        self._opening: dict[str, asyncio.Lock] = {}
        self._ports: dict[str, hands.Port] = {}
        self._greeting: dict[str, asyncio.Lock] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    @property
    def name(self) -> str:
        return "qemu"

    async def describe(self) -> DriverInfo:
        return DriverInfo(
            name=self.name,
            capabilities=capabilities_of(self),
            accelerator=self._accelerator,
            overhead_mib=overhead_mib(self._accelerator),
            confinement={
                "user": "unprivileged, one for each VM",
                "capabilities": "none, and none to be gained",
                "namespaces": "ipc, mount, network, pid, uts",
                "root": "empty and read only, but for /dev/null",
                "seccomp": "QEMU's sandbox, all threads; no new processes",
                "landlock": _landlock(),
                "cgroup": "limits of CPU, memory and processes for each VM",
                "files": "only those of its own VM, opened for it beforehand",
                "shares": folders.problem()
                or "a process for each, behind walls of its own, as the VM's user",
            },
        )

    async def start(self, machine: Machine) -> None:
        async with self._lock(machine):
            seen = await self._find(machine)
            if seen is None or seen.exit is not None:
                await self._start(machine)

    def template_basis(self, machine: Machine) -> Mapping[str, str]:
        return self._templates.basis(machine)

    async def make_template(self, machine: Machine, directory: Path) -> None:
        async with self._lock(machine):
            await self._templates.make(machine, directory)

    async def load_template(self, directory: Path) -> None:
        await self._templates.load(directory)

    def forget_template(self, directory: Path) -> None:
        self._templates.forget(directory)

    async def fork(self, machine: Machine, directory: Path) -> None:
        async with self._lock(machine):
            seen = await self._find(machine)
            if seen is None or seen.exit is not None:
                await self._start(machine, self._templates.memory(directory))

    async def identify(self, machine: Machine) -> None:
        try:
            await self._order(machine, new_order("identity", machine), "taken")
        except (TimedOut, HostFailure) as error:
            # One that has ended did not end for its template's sake, as far as anybody can tell.
            if processes.processes_in(machine.cgroup):
                raise BadTemplate(error.brief, hint=error.hint, details=error.details) from error
            raise

    async def rehearse(self, machine: Machine) -> None:
        await self._order(machine, new_order("rehearse", machine), "taken")

    async def park(self, machine: Machine) -> None:
        await self._order(machine, PARK, "ready")

    async def power_down(self, machine: Machine) -> None:
        await self._command(machine, "system_powerdown", "powering it down")

    async def reset(self, machine: Machine) -> None:
        await self._command(machine, "system_reset", "resetting it")

    async def resume(self, machine: Machine) -> None:
        watch = await self._watching(machine, "letting it go on")
        if watch.stalled:
            await watch.execute("cont")

    async def freeze(self, machine: Machine) -> None:
        await self._command(machine, "stop", "holding it still")

    async def thaw(self, machine: Machine) -> None:
        await self._command(machine, "cont", "letting it go on")

    def check_savable(self, machine: Machine) -> None:
        lost = next((disk.name for disk in machine.disks if disk.path is None), None)
        if lost is not None:
            raise Conflict(f"machine {machine.name}: keeping its memory: disk {lost} is in memory itself")
        shared = record.read_folders(machine)
        if shared:
            raise Conflict(
                f"machine {machine.name}: keeping its memory: who serves its folder {shared[0]} knows what is open"
                " there, and that cannot be kept",
                hint=f"suspend it to memory: atoll vm suspend {machine.name}; or take its folders from it first",
                details={"folders": list(shared)},
            )

    def share_problem(self) -> str:
        return folders.problem()

    async def save(self, machine: Machine) -> None:
        watch = await self._watching(machine, "keeping its memory")
        await saved.save(machine, watch, self._saved_basis(machine))

    async def restore(self, machine: Machine) -> None:
        memory = saved.memory_of(machine, self._saved_basis(machine))
        async with self._lock(machine):
            seen = await self._find(machine)
            if seen is None or seen.exit is not None:
                await self._start(machine, memory)

    async def forget_saved(self, machine: Machine) -> None:
        await saved.forget(machine)

    def _saved_basis(self, machine: Machine) -> dict[str, str]:
        return saved.basis_of(machine, self._accelerator, self._binary)

    async def kill(self, machine: Machine) -> None:
        async with self._lock(machine):
            # Forgotten first: an end that comes from here on is ours, and not reported.
            watch = self._unfollow(machine.ip)
            if watch is not None:
                await watch.stop()
            steps.step("qemu.unwatched")
            await self._close_console(machine)
            await self._close_port(machine)
            await end_all(machine)
            steps.step("qemu.ended")
            await record.forget(machine)
            steps.step("qemu.forgotten")

    async def inspect(self, machines: Sequence[Machine]) -> Mapping[str, Seen]:
        found = await asyncio.gather(*(self._inspect(machine) for machine in machines))
        return {seen.ip: seen for seen in found if seen is not None}

    async def console(self, machine: Machine) -> Console:
        # A lock of its own: a machine that does not answer can still be killed.
        async with self._opening.setdefault(machine.ip, asyncio.Lock()):
            async with self._lock(machine):
                watch = await self._watch_of(machine, "opening its console")
            held = self._consoles.get(machine.ip)
            if held is not None and not held.closed:
                raise Conflict(
                    f"machine {machine.name}: opening its console: somebody has it open",
                    hint="close the other one first; console.log has what the guest wrote",
                )
            line = await open_line(await watch.reachable("opening its console"))
            console = LogConsole(record.console_log_path(machine), line)
            if self._watches.get(machine.ip) is not watch:
                console.end()
            self._consoles[machine.ip] = console
            return console

    @property
    def needs_agent(self) -> bool:
        return True

    async def exec(self, machine: Machine, command: Command) -> Process:
        watch = await self._watching(machine, "running a command in it")
        # A lock of its own: a guest that does not answer can still be killed.
        async with self._greeting.setdefault(machine.ip, asyncio.Lock()):
            port = self._ports.get(machine.ip)
            if port is None or port.closed:
                port = await hands.connect(machine)
                if self._watches.get(machine.ip) is not watch:
                    await port.close()
                    raise Conflict(f"machine {machine.name}: running a command in it: it is not running")
                self._ports[machine.ip] = port
                watch.on_agent_end = port.reset
        return await port.begin(command)

    def let_log_grow(self, machine: Machine) -> None:
        watch = self._watches.get(machine.ip)
        if watch is not None:
            file_limits.raise_to(watch.process, limit_of(record.console_log_path(machine)))

    async def display(self, machine: Machine) -> Console:
        async with self._lock(machine):
            watch = await self._watch_of(machine, "opening its screen")
        if not await watch.execute("query-vnc-servers"):
            raise Conflict(
                f"machine {machine.name}: opening its screen: it was started without one",
                hint="stop it and start it again",
            )
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                await watch.add_client(theirs.fileno())
            return Screen(*await asyncio.open_unix_connection(sock=ours))
        except BaseException:
            ours.close()
            raise

    def watchdogs(self, machine_type: MachineType) -> tuple[Watchdog, ...]:
        return () if machine_type is MachineType.MICROVM else (Watchdog.I6300ESB,)

    async def can_attach(self, machine: Machine, disk: Disk) -> bool:
        watch = await self._watching(machine, "looking at its disks")
        return disk.interface is not DiskInterface.IDE and await disks.free_port(watch) is not None

    async def can_detach(self, machine: Machine, name: str) -> bool:
        return not await disks.is_fixed(await self._watching(machine, "looking at its disks"), name)

    async def attach(self, machine: Machine, disk: Disk) -> None:
        watch = await self._watching(machine, f"attaching disk {disk.name}")
        # Or it could not write to the end of it.
        await aside.run(file_limits.raise_to, watch.process, disk.most_bytes)
        await disks.attach(machine, watch, disk)

    async def detach(self, machine: Machine, name: str) -> None:
        await disks.detach(machine, await self._watching(machine, f"detaching disk {name}"), name)

    def grows_while_used(self, disk: Disk) -> bool:
        # The others' guests would learn of it at their next start.
        return disk.interface is DiskInterface.VIRTIO

    async def grow_disk(self, machine: Machine, disk: Disk) -> None:
        watch = await self._watching(machine, f"growing disk {disk.name}")
        await aside.run(file_limits.raise_to, watch.process, disk.most_bytes)
        await disks.grow(watch, disk)

    async def close(self) -> None:
        watches = [watch for ip in tuple(self._watches) if (watch := self._unfollow(ip)) is not None]
        consoles = tuple(self._consoles.values())
        self._consoles.clear()
        for port in self._ports.values():
            await port.close()
        self._ports.clear()
        await asyncio.gather(*(watch.stop() for watch in watches), *(console.close() for console in consoles))
        self._templates.close()

    def _lock(self, machine: Machine) -> asyncio.Lock:
        return self._locks.setdefault(machine.ip, asyncio.Lock())

    async def _inspect(self, machine: Machine) -> Seen | None:
        async with self._lock(machine):
            seen = await self._find(machine)
        if seen is None or seen.exit is not None:
            return seen
        watch = self._watches.get(machine.ip)
        return structs.replace(
            seen,
            lost=links.missing([nic.link for nic in machine.nics], self._namespace),
            lost_folders=folders.lost_by(machine),
            stalled=watch is not None and watch.stalled,
            frozen=watch is not None and watch.frozen,
        )

    async def _command(self, machine: Machine, command: str, doing: str) -> None:
        await (await self._watching(machine, doing)).execute(command)

    async def _watching(self, machine: Machine, doing: str) -> Watch:
        async with self._lock(machine):
            return await self._watch_of(machine, doing)

    async def _order(self, machine: Machine, line: bytes, answer: Literal["ready", "taken"]) -> None:
        async with self._lock(machine), opened_channel(machine) as channel:
            await channel.tell(line)
            await channel.expect(answer, ORDER_TIMEOUT_S)

    async def _watch_of(self, machine: Machine, doing: str) -> Watch:
        seen = await self._find(machine)
        watch = self._watches.get(machine.ip)
        if seen is None or watch is None:
            raise Conflict(f"machine {machine.name}: {doing}: it is not running", hint="start it first")
        return watch

    async def _find(self, machine: Machine) -> Seen | None:
        """The truth about one machine. One that runs is watched afterwards."""
        watch = self._watches.get(machine.ip)
        if watch is not None and not watch.ending:
            return Seen(machine.ip, watch.process.pid)
        if watch is not None:
            await watch.done()
        known = record.read(machine)
        if known is not None and known.exit is not None:
            return Seen(machine.ip, known.pid, known.exit)
        process = _running_process(machine, known)
        if process is not None:
            return await self._attach(machine, process)
        if known is None:
            await record.forget(machine)
            return None
        record.write_exit(machine, known.process(), Exit.CRASHED)
        return Seen(machine.ip, known.pid, Exit.CRASHED)

    async def _attach(self, machine: Machine, process: processes.Pid) -> Seen:
        watch = self._new_watch(machine, process)
        # One that does not answer runs all the same; the watch goes on trying.
        with contextlib.suppress(TimedOut, Unreachable, HostFailure):
            await watch.connect(ATTACH_TIMEOUT_S)
            await clear_root(process)
            await aside.run(folders.clear_roots, machine)
        if not watch.ending:
            self._follow(machine, watch)
            await aside.run(self.let_log_grow, machine)
            return Seen(machine.ip, process.pid)
        # Ended while nobody watched: told as an answer, so not as an event as well.
        reason = await watch.conclude()
        record.write_exit(machine, process, reason)
        return Seen(machine.ip, process.pid, reason)

    async def _start(self, machine: Machine, memory: Memory | None = None) -> None:
        await record.forget(machine)
        async with Undo() as undo, self._served(machine, undo) as served:
            async with disks.opened(machine) as numbers:
                process, opened = await self._launcher.launch(
                    machine, undo, memory, numbers, served.connections
                )
            watch = self._new_watch(machine, process)
            undo.add(watch.stop)
            try:
                await watch.connect(START_TIMEOUT_S)
                steps.step("qemu.connected")
            except AtollError as error:
                raise failed_start(machine, error, served.said()) from error
            if served.connections:
                await aside.run(folders.clear_roots, machine)
            clearing = asyncio.ensure_future(clear_root(process))
            try:
                if (state := opened.state) is not None:
                    await self._restore(machine, watch, state)
                if opened.held:
                    watch.note_held()
            finally:
                await aside.whole(clearing)
            steps.step("qemu.restored")
            undo.commit()
        self._follow(machine, watch)

    @contextlib.asynccontextmanager
    async def _served(self, machine: Machine, undo: Undo) -> AsyncIterator[folders.Served]:
        """Its folders are served, to whoever has the connections. `undo` ends that."""
        undo.add(record.forget, machine)
        undo.add(end_all, machine)
        with contextlib.ExitStack() as ours:
            yield await aside.run(ours.enter_context, self._servers.started(machine))

    async def _restore(self, machine: Machine, watch: Watch, state: int) -> None:
        try:
            timeout_s = max(START_TIMEOUT_S, machine.memory_mib / saved.SLOWEST_MIB_S)
            await watch.migrate("migrate-incoming", f"fd:{state}", timeout_s)
        except AtollError as error:
            failure = failed_start(machine, error)
            if not blames_template(failure.details["messages"]):
                raise failure from error
            raise BadTemplate(failure.brief, hint=failure.hint, details=failure.details) from error

    def _new_watch(self, machine: Machine, process: processes.Pid) -> Watch:
        def finished(watch: Watch, reason: Exit) -> None:
            if self._watches.get(machine.ip) is watch:
                self._unfollow(machine.ip)
                if machine.ip in self._consoles:
                    self._consoles.pop(machine.ip).end()
                if machine.ip in self._ports:
                    self._ports.pop(machine.ip).stop()
                record.write_exit(machine, process, reason)
                self._on_exit(machine.ip, reason)

        def told(stalled: bool) -> None:
            self._on_stall(machine.ip, stalled)

        return Watch(machine.name, record.monitor_path(machine), process, finished, told)

    def _follow(self, machine: Machine, watch: Watch) -> None:
        self._watches[machine.ip] = watch
        watch.begin()
        self._servings[machine.ip] = [
            processes.on_gone(server, lambda: self._on_lost(machine.ip))
            for server in (folders.servers_of(machine).values() if record.read_folders(machine) else ())
        ]

    def _unfollow(self, ip: str) -> Watch | None:
        """Hear no more of it."""
        for cancel in self._servings.pop(ip, ()):
            cancel()
        return self._watches.pop(ip, None)

    async def _close_port(self, machine: Machine) -> None:
        port = self._ports.pop(machine.ip, None)
        if port is not None:
            await port.close()

    async def _close_console(self, machine: Machine) -> None:
        console = self._consoles.pop(machine.ip, None)
        if console is not None:
            await console.close()


def _landlock() -> str:
    version = landlock.abi()
    return f"opens nothing by name (ABI {version})" if version else "none: this kernel has none"


def _running_process(machine: Machine, known: Started | None) -> processes.Pid | None:
    """Its QEMU: the one on record, or the one in its cgroup, if we were killed before it was recorded."""
    if known is not None and processes.alive(known.process()):
        return known.process()
    servers = {process.pid for process in folders.servers_of(machine).values()}
    found = (processes.identify(pid) for pid in processes.processes_in(machine.cgroup) if pid not in servers)
    return next((process for process in found if process is not None and processes.alive(process)), None)
