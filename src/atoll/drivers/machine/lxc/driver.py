"""Containers by LXC. Starts, watches and ends keepers, monitors and what is in the container.

    agent ─ ─ ─ keeper (sh) ──── monitor (lxc-start) ──── init of the container, in namespaces of its own
               └ tail: the last messages

What a VM's directory holds of one is in record.py and roots.py. Everything that runs is in the VM's cgroup,
and all mounts are in a namespace of the keeper's: ending the cgroup's processes leaves but a link to remove.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path

from msgspec import structs

from atoll.drivers.machine.base import Console, Exit, Machine, OnExit, Process, Seen, capabilities_of
from atoll.drivers.machine.console_log import limit_of
from atoll.drivers.machine.lxc import apparmor, config, hands, keeper, parse, record
from atoll.drivers.machine.lxc.console import LogConsole
from atoll.drivers.machine.lxc.roots import Roots, base_of, hide_groups, mount_folders, mount_root, root_of
from atoll.drivers.machine.memory import hold_to
from atoll.errors import AtollError, Conflict, HostFailure, TimedOut
from atoll.model.command import Command
from atoll.model.node import DriverInfo
from atoll.system import (
    aside,
    cgroups,
    clock,
    file_limits,
    files,
    freezer,
    host,
    mounts,
    pids,
    processes,
)
from atoll.system.links import Links, missing
from atoll.system.undo import Undo

START_TIMEOUT_S = 20.0
OVERHEAD_MIB = 16
MAX_PROCESSES = 4096

_PAUSE_S = 0.001
_INITS = ("sbin/init", "init", "usr/sbin/init", "lib/systemd/systemd")


class _Running:
    """A container that runs, as far as we know: its keeper, and the noting of its end once that has gone."""

    def __init__(self, process: processes.Pid) -> None:
        self.process = process
        self.forget: Callable[[], None] = lambda: None
        self.ending: asyncio.Task[None] | None = None


class LxcDriver:
    """The machine driver `lxc`. `namespace` is where links are made; None is where we are."""

    def __init__(self, on_exit: OnExit, cache: Path, *, namespace: str | None = None) -> None:
        self._on_exit = on_exit
        self._roots = Roots(cache)
        self._namespace = namespace
        self._keepers = keeper.Keepers(namespace)
        self._running: dict[str, _Running] = {}
        self._consoles: dict[str, LogConsole] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    @property
    def name(self) -> str:
        return "lxc"

    @property
    def ids_per_machine(self) -> int:
        return config.IDS

    async def root_limit(self) -> str:
        return "its changes are in a file system of its own, of the size of its root"

    def share_problem(self) -> str:
        return ""

    async def describe(self) -> DriverInfo:
        return DriverInfo(
            name=self.name,
            capabilities=capabilities_of(self),
            overhead_mib=OVERHEAD_MIB,
            max_processes=MAX_PROCESSES,
            confinement={
                "user": f"root inside is nobody outside: {config.IDS} ids of its own for each VM",
                "capabilities": f"in its own namespaces; without {', '.join(config.DROPPED_CAPABILITIES)}",
                "seccomp": f"{len(config.DENIED_CALLS)} system calls denied",
                "namespaces": "cgroup, ipc, mount, network, pid, user, uts",
                "apparmor": apparmor.profile().meaning,
                "cgroup": "limits of CPU, memory and processes for each VM",
                "files": "its own changes over the image, which is read only",
                "disk": await self.root_limit(),
            },
        )

    async def start(self, machine: Machine) -> None:
        async with self._lock(machine):
            seen = await self._find(machine)
            if seen is None or seen.exit is not None:
                await self._start(machine)

    async def power_down(self, machine: Machine) -> None:
        async with self._lock(machine):
            init = await self._init_of(machine, "powering it down")
        processes.send_signal(init, _halt_signal(init))

    async def reset(self, machine: Machine) -> None:
        async with self._lock(machine):
            init = await self._init_of(machine, "resetting it")
            record.reset_path(machine).touch(mode=0o600)
        processes.send_signal(init, signal.SIGKILL)

    async def resize_memory(self, machine: Machine) -> None:
        async with self._lock(machine):
            await self._init_of(machine, "giving it other memory")
            await hold_to(machine, OVERHEAD_MIB)

    async def freeze(self, machine: Machine) -> None:
        async with self._lock(machine):
            await self._init_of(machine, "holding it still")
            await aside.run(freezer.freeze, machine.cgroup)

    async def thaw(self, machine: Machine) -> None:
        async with self._lock(machine):
            await self._init_of(machine, "letting it go on")
            await aside.run(freezer.thaw, machine.cgroup)

    async def kill(self, machine: Machine) -> None:
        async with self._lock(machine):
            # Forgotten first: an end that comes from here on is ours, and not reported.
            running = self._running.pop(machine.ip, None)
            if running is not None:
                await _let_go(running)
            self._hang_up(machine)
            await self._end_all(machine)
            await record.forget(machine)

    async def discard(self, machine: Machine) -> None:
        await self.kill(machine)
        async with self._lock(machine):
            await aside.run(self._roots.let_go, machine)

    async def inspect(self, machines: Sequence[Machine]) -> Mapping[str, Seen]:
        found: dict[str, Seen] = {}
        for machine in machines:
            async with self._lock(machine):
                seen = await self._find(machine)
            if seen is not None and seen.exit is None:
                seen = structs.replace(
                    seen,
                    lost=missing([nic.link for nic in machine.nics], self._namespace),
                    frozen=freezer.is_frozen(machine.cgroup),
                )
            if seen is not None:
                found[machine.ip] = seen
        return found

    async def console(self, machine: Machine) -> Console:
        async with self._lock(machine):
            await self._init_of(machine, "opening its console")
            kept_by = self._running[machine.ip].process
            held = self._consoles.get(machine.ip)
            if held is not None and not held.closed:
                raise Conflict(
                    f"machine {machine.name}: opening its console: somebody has it open",
                    hint="close the other one first; console.log has what the guest wrote",
                )
            log = record.console_log_path(machine)
            console = self._consoles[machine.ip] = LogConsole(log, lambda: _terminal(machine, kept_by))
            return console

    @property
    def needs_agent(self) -> bool:
        return False

    async def exec(self, machine: Machine, command: Command) -> Process:
        async with self._lock(machine):
            init = await self._init_of(machine, "running a command in it")
        return await hands.enter(machine, init, command)

    def let_log_grow(self, machine: Machine) -> None:
        """Its monitor writes the log; its keeper starts the next one."""
        place = limit_of(record.console_log_path(machine))
        running = self._running.get(machine.ip)
        for process, _ in _kept(running.process) if running is not None else ():
            file_limits.raise_to(process, place)

    async def close(self) -> None:
        running = tuple(self._running.values())
        self._running.clear()
        for one in running:
            await _let_go(one)
        for console in self._consoles.values():
            await console.close()
        self._consoles.clear()
        await self._keepers.close()

    def _lock(self, machine: Machine) -> asyncio.Lock:
        return self._locks.setdefault(machine.ip, asyncio.Lock())

    async def _find(self, machine: Machine) -> Seen | None:
        """The truth about one machine. One that runs is watched afterwards."""
        running = self._running.get(machine.ip)
        if running is not None and processes.alive(running.process):
            return Seen(machine.ip, running.process.pid)
        if running is not None:
            await self._ended(machine, running)
        known = record.read(machine)
        if known is None:
            return None
        if known.exit is None and processes.alive(known.process()):
            self._watch(machine, known.process())
            return Seen(machine.ip, known.pid)
        if known.exit is not None:
            return Seen(machine.ip, known.pid, known.exit)
        # Ended while nobody watched: told as an answer, so not as an event as well.
        reason = await self._note_exit(machine, known.process())
        return Seen(machine.ip, known.pid, reason)

    async def _init_of(self, machine: Machine, doing: str) -> processes.Pid:
        seen = await self._find(machine)
        # One that runs is watched.
        running = self._running.get(machine.ip) if seen is not None and seen.exit is None else None
        init = _find_init(running.process) if running is not None else None
        if init is None:
            raise Conflict(f"machine {machine.name}: {doing}: it is not running", hint="start it first")
        return init

    # --- start

    async def _start(self, machine: Machine) -> None:
        async with Undo() as undo:
            undo.add(record.forget, machine)
            for path in (root_of(machine), base_of(machine), record.console_log_path(machine)):
                if not path.exists():
                    undo.add(aside.run, files.remove_tree, path)
            undo.add(self._end_all, machine)
            process = await self._launch(machine)
            record.write(machine, process)
            await _until_running(machine, process)
            undo.commit()
        self._watch(machine, process)

    async def _prepare(self, machine: Machine) -> Path:
        """Its group and its root are made. The image below that."""
        await self._clear(machine)
        cgroups.ensure(config.keeper_group(machine), cgroups.Limits())
        return await self._roots.ensure(machine)

    async def _clear(self, machine: Machine) -> None:
        """Check that a place is prepared for it, and that nothing of an earlier one is in it."""
        doing = f"starting machine {machine.name}"
        if not all(path.exists() for path in cgroups.join_paths(machine.cgroup)):
            raise HostFailure(f"{doing}: its cgroup {machine.cgroup} is not there")
        with Links(self._namespace) as links:
            for nic in machine.nics:
                if not links.exists(nic.bridge):
                    raise HostFailure(f"{doing}: bridge {nic.bridge} does not exist", hint="see: ip link")
            left = any(links.exists(nic.link) for nic in machine.nics)
        if left or cgroups.children(machine.cgroup):
            await self._end_all(machine)
        await record.forget(machine)

    async def _launch(self, machine: Machine) -> processes.Pid:
        loop = asyncio.get_running_loop()
        # Beside all that does not need it.
        prepared = asyncio.run_coroutine_threadsafe(self._prepare(machine), loop)
        try:
            kept_by = await self._keepers.take()
            try:
                furnish = partial(_furnish, machine, prepared, kept_by)
                # Not among those that prepare: it waits for them.
                await aside.whole(loop.run_in_executor(None, kept_by.furnish, furnish))
            except BaseException:
                await kept_by.give_up()
                raise
        finally:
            # Whatever failed: nothing may come after what is undone. Its own failure is that of the furnishing.
            with contextlib.suppress(AtollError, OSError):
                await aside.whole(asyncio.wrap_future(prepared))
            self._keepers.provide()
        return kept_by.process

    # --- end

    def _watch(self, machine: Machine, process: processes.Pid) -> None:
        running = self._running[machine.ip] = _Running(process)

        def gone() -> None:
            running.ending = asyncio.ensure_future(self._report(machine, running))

        running.forget = processes.on_gone(process, gone)
        self.let_log_grow(machine)

    async def _report(self, machine: Machine, running: _Running) -> None:
        reason = await self._note_exit(machine, running.process)
        if self._running.get(machine.ip) is running:
            del self._running[machine.ip]
            self._on_exit(machine.ip, reason)

    async def _ended(self, machine: Machine, running: _Running) -> None:
        """Wait until the end of one whose keeper has gone is noted and reported."""
        while running.ending is None:  # noqa: ASYNC110 - the loop sees it in its next round
            await asyncio.sleep(0)
        await asyncio.wait({running.ending})

    async def _note_exit(self, machine: Machine, process: processes.Pid) -> Exit:
        reason = parse.exit_of(record.messages(machine))
        self._hang_up(machine)
        # Nothing is left, unless somebody killed the keeper or the monitor.
        await self._end_all(machine)
        record.write_exit(machine, process, reason)
        return reason

    async def _end_all(self, machine: Machine) -> None:
        if processes.processes_in(machine.cgroup):
            await aside.run(cgroups.kill_all, machine.cgroup)
        # One that is in the way would keep the next monitor from starting.
        for group in (config.monitor_group(machine), config.container_group(machine)):
            await aside.run(cgroups.remove, group)
        with Links(self._namespace) as links:
            for nic in machine.nics:
                links.delete(nic.link)

    def _hang_up(self, machine: Machine) -> None:
        console = self._consoles.pop(machine.ip, None)
        if console is not None:
            console.end()


async def _let_go(running: _Running) -> None:
    running.forget()
    if running.ending is not None:
        await asyncio.wait({running.ending})


async def _until_running(machine: Machine, process: processes.Pid) -> None:
    until = clock.monotonic() + START_TIMEOUT_S
    while not _has_begun(process):
        if not processes.alive(process):
            raise _failed_start(machine)
        if clock.monotonic() > until:
            raise TimedOut(
                f"starting machine {machine.name}: its init did not start in {START_TIMEOUT_S:g} s",
                hint="the host may be overloaded; try again",
            )
        await asyncio.sleep(_PAUSE_S)


def _kept(keeper_: processes.Pid) -> Iterator[tuple[processes.Pid, str]]:
    """It and what it started, each with its status, down to the first process of the container."""
    waiting = [keeper_]
    while waiting:
        process = waiting.pop()
        status = _status(process.pid)
        yield process, status
        if not parse.is_init(status):
            waiting += pids.children(process)


def _has_begun(keeper_: processes.Pid) -> bool:
    """Whether its init is what the image brings, no longer LXC that prepares its place."""
    return any(parse.is_init(status) and parse.name_of(status) != "lxc-start" for _, status in _kept(keeper_))


def _find_init(keeper_: processes.Pid) -> processes.Pid | None:
    return next((process for process, status in _kept(keeper_) if parse.is_init(status)), None)


def _terminal(machine: Machine, keeper_: processes.Pid) -> int:
    """The console's end that its monitor holds, opened here too."""
    init = _find_init(keeper_)
    monitor = pids.identify(parse.parent_of(_status(init.pid))) if init is not None else None
    if monitor is None:
        raise ProcessLookupError(f"machine {machine.name} has no monitor")
    opened = Path(f"/proc/{monitor.pid}/fd")
    number = parse.has_terminal((int(link.name), str(link.readlink())) for link in opened.iterdir())
    if number is None:
        raise FileNotFoundError(f"the monitor of machine {machine.name} holds no terminal")
    return pids.copy_descriptor(monitor, number)


def _status(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/status").read_text(errors="replace")
    return ""


def _halt_signal(init: processes.Pid) -> signal.Signals | int:
    # systemd powers off at this one, and takes SIGPWR for a power failure. Others know SIGPWR.
    return signal.SIGRTMIN + 4 if parse.name_of(_status(init.pid)) == "systemd" else signal.SIGPWR


def _furnish(machine: Machine, prepared: Future[Path], kept_by: keeper.Keeper) -> None:
    """All that LXC needs, while it starts already as far as it can."""
    with mounts.user_namespace(config.disk_ranges(machine)) as ids:
        base = prepared.result()
        init = _find_init_program(machine, base)
        _configure(machine, init, apparmor.profile().name)
        kept_by.keep(machine)
        mount_root(machine, base, ids())
        mount_folders(machine)
        kept_by.wait_in(machine)
        hide_groups(systemd=init.systemd)
        kept_by.begin()


def _configure(machine: Machine, init: config.Init, apparmor_profile: str) -> None:
    record.directory(machine).mkdir(0o700, parents=True)
    record.seccomp_path(machine).write_text(config.seccomp_profile())
    text = config.container_config(
        machine,
        console_log=record.console_log_path(machine),
        seccomp=record.seccomp_path(machine),
        init=init,
        apparmor=apparmor_profile,
        tools=config.Tools(host.require_tool("ip"), host.require_tool("printf")),
    )
    record.config_path(machine).write_text(text)


def _find_init_program(machine: Machine, base: Path) -> config.Init:
    for name in _INITS:
        # Not followed: a link of the image's means nothing outside of it.
        if (base / name).is_symlink():
            return config.Init(f"/{name}", systemd=(base / name).readlink().name == "systemd")
        if (base / name).is_file():
            return config.Init(f"/{name}", systemd=Path(name).name == "systemd")
    raise HostFailure(
        f"starting machine {machine.name}: its image has no init",
        hint="put one at /sbin/init, or use another kind of machine",
    )


def _failed_start(machine: Machine) -> HostFailure:
    """The failure in LXC's own words, where it left any."""
    said = record.messages(machine)
    return HostFailure(
        f"starting machine {machine.name}: {parse.first_error(said) or 'its container ended at once'}",
        hint="atoll doctor checks what the host lacks",
        details={"messages": said[-2000:]},
    )
