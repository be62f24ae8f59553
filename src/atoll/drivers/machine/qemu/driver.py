"""Virtual machines by QEMU. Starts, watches and ends QEMU processes; makes taps and sockets.

What a VM's directory holds of one is in record.py. QEMU does not daemonize itself, since its sandbox forbids
that: it is ready when its monitor greets, and what it says before that is in `qemu.log`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from atoll.drivers.machine.base import Console, Exit, Machine, OnExit, Seen, capabilities_of
from atoll.drivers.machine.qemu import record
from atoll.drivers.machine.qemu.argv import Accelerator, Files, overhead_mib, qemu_argv
from atoll.drivers.machine.qemu.monitor import Watch, end
from atoll.drivers.machine.qemu.probe import host_tsc_khz, kvm_group
from atoll.errors import AtollError, Conflict, HostFailure, TimedOut, Unreachable
from atoll.model.node import DriverInfo
from atoll.system import cgroups, files, links, processes
from atoll.system.undo import Undo

START_TIMEOUT_S = 20.0
ATTACH_TIMEOUT_S = 3.0

_READ_SIZE = 65536


class SocketConsole:
    """The serial line, over QEMU's socket. It takes one at a time, so `close` matters."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @property
    def closed(self) -> bool:
        return self._writer.is_closing()

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
        *,
        binary: str = "qemu-system-x86_64",
        namespace: str | None = None,
    ) -> None:
        self._accelerator: Accelerator = accelerator
        self._on_exit = on_exit
        self._binary = binary
        self._namespace = namespace
        self._tsc_khz = host_tsc_khz()
        self._watches: dict[str, Watch] = {}
        self._consoles: dict[str, SocketConsole] = {}
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
                "seccomp": "QEMU's sandbox, all threads; no new processes",
                "cgroup": "limits of CPU, memory and processes for each VM",
                "files": "only those of its own VM, opened for it beforehand",
            },
        )

    async def start(self, machine: Machine) -> None:
        async with self._lock(machine):
            seen = await self._find(machine)
            if seen is None or seen.exit is not None:
                await self._start(machine)

    async def power_down(self, machine: Machine) -> None:
        await self._command(machine, "system_powerdown", "powering it down")

    async def reset(self, machine: Machine) -> None:
        await self._command(machine, "system_reset", "resetting it")

    async def kill(self, machine: Machine) -> None:
        async with self._lock(machine):
            # Forgotten first: an end that comes from here on is ours, and not reported.
            watch = self._watches.pop(machine.ip, None)
            if watch is not None:
                await watch.stop()
            await self._close_console(machine)
            await _end_all(machine)
            record.forget(machine)

    async def inspect(self, machines: Sequence[Machine]) -> Mapping[str, Seen]:
        found = await asyncio.gather(*(self._inspect(machine) for machine in machines))
        return {seen.ip: seen for seen in found if seen is not None}

    async def console(self, machine: Machine) -> Console:
        async with self._lock(machine):
            await self._watch_of(machine, "opening its console")
            held = self._consoles.get(machine.ip)
            if held is not None and not held.closed:
                raise Conflict(
                    f"machine {machine.name}: opening its console: somebody has it open",
                    hint="close the other one first; console.log has what the guest wrote",
                )
            try:
                console = SocketConsole(*await files.connect_unix(record.console_path(machine)))
            except OSError as error:
                raise Unreachable(
                    f"machine {machine.name}: opening its console: {error.strerror}",
                    hint="see whether it still runs",
                ) from error
            self._consoles[machine.ip] = console
            return console

    async def close(self) -> None:
        watches = tuple(self._watches.values())
        self._watches.clear()
        consoles = tuple(self._consoles.values())
        self._consoles.clear()
        await asyncio.gather(*(watch.stop() for watch in watches), *(console.close() for console in consoles))

    def _lock(self, machine: Machine) -> asyncio.Lock:
        return self._locks.setdefault(machine.ip, asyncio.Lock())

    async def _inspect(self, machine: Machine) -> Seen | None:
        async with self._lock(machine):
            return await self._find(machine)

    async def _command(self, machine: Machine, command: str, doing: str) -> None:
        async with self._lock(machine):
            watch = await self._watch_of(machine, doing)
        await watch.execute(command)

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
            record.forget(machine)
            return None
        record.write_exit(machine, known.process(), Exit.CRASHED)
        return Seen(machine.ip, known.pid, Exit.CRASHED)

    async def _attach(self, machine: Machine, process: processes.Pid) -> Seen:
        watch = self._new_watch(machine, process)
        # One that does not answer runs all the same; the watch goes on trying.
        with contextlib.suppress(TimedOut, Unreachable, HostFailure):
            await watch.connect(ATTACH_TIMEOUT_S)
        if not watch.ending:
            self._follow(machine, watch)
            return Seen(machine.ip, process.pid)
        # Ended while nobody watched: told as an answer, so not as an event as well.
        reason = await watch.conclude()
        record.write_exit(machine, process, reason)
        return Seen(machine.ip, process.pid, reason)

    async def _start(self, machine: Machine) -> None:
        record.forget(machine)
        async with Undo() as undo:
            undo.add(record.forget, machine)
            process = await self._launch(machine, undo)
            watch = self._new_watch(machine, process)
            undo.add(watch.stop)
            try:
                await watch.connect(START_TIMEOUT_S)
            except AtollError as error:
                raise _failed_start(machine, error) from error
            undo.commit()
        self._follow(machine, watch)

    async def _launch(self, machine: Machine, undo: Undo) -> processes.Pid:
        with contextlib.ExitStack() as ours:
            opened = self._open_files(machine, undo, ours)
            launch = processes.Launch(
                argv=qemu_argv(
                    machine, opened, self._accelerator, binary=self._binary, tsc_khz=self._tsc_khz
                ),
                uid=machine.uid,
                gid=machine.uid,
                groups=kvm_group() if self._accelerator == "kvm" else (),
                cgroup=machine.cgroup,
                pass_fds=opened.numbers(),
                cwd=Path("/"),
                output=record.messages_path(machine),
                env={"LC_ALL": "C.UTF-8", "PATH": os.defpath},
            )
            undo.add(_end_all, machine)
            process = processes.identify(processes.spawn_blocking(launch))
        if process is None:
            raise _failed_start(machine, HostFailure("its QEMU ended at once"))
        record.write(machine, process)
        return process

    def _open_files(self, machine: Machine, undo: Undo, ours: contextlib.ExitStack) -> Files:
        def opened(path: Path, flags: int) -> int:
            try:
                descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
            except OSError as error:
                raise HostFailure(f"starting machine {machine.name}: {error.strerror}: {path}") from error
            ours.callback(os.close, descriptor)
            return descriptor

        tap = links.open_tap(machine.nic.link, machine.nic.bridge, machine.nic.mtu, self._namespace)
        ours.callback(os.close, tap)
        console_log = record.console_log_path(machine)
        if not console_log.exists():
            undo.add(files.remove_tree, console_log)
        return Files(
            kernel=opened(machine.kernel, os.O_RDONLY),
            initrd=opened(machine.initrd, os.O_RDONLY),
            tap=tap,
            monitor=ours.enter_context(files.listen_unix(record.monitor_path(machine))).fileno(),
            console=ours.enter_context(files.listen_unix(record.console_path(machine))).fileno(),
            log=opened(console_log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW),
        )

    def _new_watch(self, machine: Machine, process: processes.Pid) -> Watch:
        def finished(watch: Watch, reason: Exit) -> None:
            if self._watches.get(machine.ip) is watch:
                del self._watches[machine.ip]
                self._consoles.pop(machine.ip, None)
                record.write_exit(machine, process, reason)
                self._on_exit(machine.ip, reason)

        return Watch(machine.name, record.monitor_path(machine), process, finished)

    def _follow(self, machine: Machine, watch: Watch) -> None:
        self._watches[machine.ip] = watch
        watch.begin()

    async def _close_console(self, machine: Machine) -> None:
        console = self._consoles.pop(machine.ip, None)
        if console is not None:
            await console.close()


def _running_process(machine: Machine, known: record.Record | None) -> processes.Pid | None:
    """Its QEMU: the one on record, or the one in its cgroup, if we were killed before it was recorded."""
    if known is not None and processes.alive(known.process()):
        return known.process()
    found = (processes.identify(pid) for pid in processes.processes_in(machine.cgroup))
    return next((process for process in found if process is not None and processes.alive(process)), None)


async def _end_all(machine: Machine) -> None:
    known = record.read(machine)
    if known is not None:
        await end(known.process(), machine.name)
    if processes.processes_in(machine.cgroup):
        await asyncio.to_thread(cgroups.kill_all, machine.cgroup)


def _failed_start(machine: Machine, error: AtollError) -> HostFailure:
    """The failure in QEMU's own words, where it left any."""
    try:
        said = record.messages_path(machine).read_text(errors="replace")
    except OSError:
        said = ""
    return HostFailure(
        f"starting machine {machine.name}: {record.last_words(said) or error.brief}",
        hint="atoll doctor checks what the host lacks",
        details={"messages": said[-2000:]},
    )
