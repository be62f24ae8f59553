"""Containers by a Docker Engine. Asks the engine for them, gives them a link, watches them.

The engine holds the container, which is the record: its state says whether it runs, and how it ended. The
network is ours: the container has none of the engine's, and gets one end of a link whose other end is in the
VM's bridge, with its address.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec import structs

from atoll.drivers.machine.base import Console, Exit, Machine, OnExit, Seen, capabilities_of
from atoll.drivers.machine.docker import config, parse
from atoll.drivers.machine.docker.engine import Engine
from atoll.drivers.machine.docker.terminal import Terminal
from atoll.errors import AtollError, Conflict, HostFailure, NotFound
from atoll.model.node import DriverInfo
from atoll.system import cgroups, files, namespaces, processes
from atoll.system.links import Links, missing
from atoll.system.undo import Undo

OVERHEAD_MIB = 16


class _Running:
    """A container that runs, as far as we know, and the work of noting its end once it has gone."""

    def __init__(self, process: processes.Pid, terminal: Terminal) -> None:
        self.process = process
        self.terminal = terminal
        self.forget: Callable[[], None] = lambda: None
        self.ending: asyncio.Task[None] | None = None


class DockerDriver:
    """The machine driver `docker`. `namespace` is where links are made; None is where we are."""

    def __init__(self, socket: Path, on_exit: OnExit, *, namespace: str | None = None) -> None:
        self._engine = Engine(socket)
        self._on_exit = on_exit
        self._namespace = namespace
        self._running: dict[str, _Running] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._importing = asyncio.Lock()

    @property
    def name(self) -> str:
        return "docker"

    async def describe(self) -> DriverInfo:
        try:
            version, info = (await self._engine.version()).engine, await self._engine.info()
        except AtollError as error:
            version, info = f"away: {error.brief}", parse.Info()
        return DriverInfo(
            name=self.name,
            capabilities=capabilities_of(self),
            overhead_mib=OVERHEAD_MIB,
            max_processes=config.MAX_PROCESSES,
            confinement={
                "engine": f"{version} at {self._engine.socket}",
                "user": "as the engine maps it" if info.has("userns") else "root, without the rights of one",
                "capabilities": f"{', '.join(config.CAPABILITIES).lower()}; none to be gained",
                "seccomp": "the engine's profile" if info.has("seccomp") else "none: the engine has it off",
                "namespaces": "cgroup, ipc, mount, network, pid, uts"
                + (", user" if info.has("userns") else ""),
                "cgroup": "limits of CPU, memory and processes for each VM",
                "files": "its own over the image's, gone when it stops",
            },
        )

    def given_address(self, machine: Machine) -> str:
        return config.address_of(machine)

    async def start(self, machine: Machine) -> None:
        async with self._lock(machine):
            seen = await self._find(machine)
            if seen is None or seen.exit is not None:
                await self._start(machine)

    async def power_down(self, machine: Machine) -> None:
        async with self._lock(machine):
            await self._running_one(machine, "powering it down")
            with contextlib.suppress(Conflict):  # it has just gone
                await self._engine.kill(config.container_name(machine), "SIGTERM")

    async def reset(self, machine: Machine) -> None:
        async with self._lock(machine):
            running = await self._running_one(machine, "resetting it")
            # Forgotten first: its end is ours, and not reported.
            del self._running[machine.ip]
            running.forget()
            name = config.container_name(machine)
            with contextlib.suppress(Conflict):
                await self._engine.kill(name, "SIGKILL")
            await self._engine.wait(name)
            await self._run(machine, running.terminal)

    async def kill(self, machine: Machine) -> None:
        async with self._lock(machine):
            running = self._running.pop(machine.ip, None)
            if running is not None:
                await _let_go(running)
            await self._remove(machine)

    async def inspect(self, machines: Sequence[Machine]) -> Mapping[str, Seen]:
        found = await asyncio.gather(*(self._inspect(machine) for machine in machines))
        return {seen.ip: seen for seen in found if seen is not None}

    async def console(self, machine: Machine) -> Console:
        async with self._lock(machine):
            terminal = (await self._running_one(machine, "opening its console")).terminal
            if terminal.console is not None and not terminal.console.closed:
                raise Conflict(
                    f"machine {machine.name}: opening its console: somebody has it open",
                    hint="close the other one first; console.log has what the guest wrote",
                )
            return terminal.open()

    async def close(self) -> None:
        running = tuple(self._running.values())
        self._running.clear()
        for one in running:
            await _let_go(one)
        await self._engine.close()

    def _lock(self, machine: Machine) -> asyncio.Lock:
        return self._locks.setdefault(machine.ip, asyncio.Lock())

    async def _inspect(self, machine: Machine) -> Seen | None:
        async with self._lock(machine):
            seen = await self._find(machine)
        if seen is None or seen.exit is not None:
            return seen
        return structs.replace(seen, lost=missing([nic.link for nic in machine.nics], self._namespace))

    async def _find(self, machine: Machine) -> Seen | None:
        """The truth about one machine. One that runs is watched afterwards."""
        running = self._running.get(machine.ip)
        if running is not None and processes.alive(running.process):
            return Seen(machine.ip, running.process.pid)
        if running is not None:
            await _ended(running)
        found = await self._engine.inspect(config.container_name(machine))
        if found is None or found.state.status == "created":
            return None
        if not found.state.running:
            return Seen(machine.ip, 0, parse.exit_of(found.state.exit_code))
        process = processes.identify(found.state.pid)
        if process is None:
            return Seen(machine.ip, 0, parse.exit_of(await self._engine.wait(found.id)))
        terminal = Terminal(_console_log(machine))
        await terminal.catch_up(self._engine, found.id)
        await terminal.connect(self._engine, found.id)
        self._watch(machine, process, terminal)
        return Seen(machine.ip, process.pid)

    async def _running_one(self, machine: Machine, doing: str) -> _Running:
        seen = await self._find(machine)
        running = self._running.get(machine.ip)
        if seen is None or seen.exit is not None or running is None:
            raise Conflict(f"machine {machine.name}: {doing}: it is not running", hint="start it first")
        return running

    # --- start

    async def _start(self, machine: Machine) -> None:
        _check(machine)
        await self._remove(machine)
        async with Undo() as undo:
            if not _console_log(machine).exists():
                undo.add(files.remove_tree, _console_log(machine))
            await self._ensure_image(machine)
            undo.add(self._remove, machine)
            driver = (await self._engine.info()).cgroup_driver
            body = config.container_body(machine, cgroup_driver=driver)
            await self._engine.create(config.container_name(machine), body)
            terminal = Terminal(_console_log(machine))
            undo.add(terminal.close)
            await self._run(machine, terminal)
            undo.commit()

    async def _ensure_image(self, machine: Machine) -> None:
        async with self._importing:
            if await self._engine.has_image(machine.image_digest):
                return
            if machine.rootfs is None or not machine.rootfs.is_file():
                raise NotFound(
                    f"starting machine {machine.name}: its image has no root file system",
                    hint="use another image, or another kind of machine",
                )
            await self._engine.import_image(machine.rootfs, machine.image_digest)

    async def _run(self, machine: Machine, terminal: Terminal) -> None:
        """Run the container, which is there already, and put its link in place."""
        name = config.container_name(machine)
        await terminal.connect(self._engine, name)
        await self._engine.start(name)
        found = await self._engine.inspect(name)
        process = processes.identify(found.state.pid) if found is not None and found.state.pid else None
        if process is None:
            raise HostFailure(
                f"starting machine {machine.name}: its container ended at once",
                hint="what it wrote: atoll vm log",
            )
        self._plug(machine, process)
        self._watch(machine, process, terminal)

    def _plug(self, machine: Machine, process: processes.Pid) -> None:
        """Of each link one end in its bridge, the other, with its address, in the container."""
        inside = namespaces.of_process(process.pid)
        with Links(self._namespace) as outer, Links(inside) as inner:
            for index, nic in enumerate(machine.nics):
                name = config.link_name(index)
                outer.delete(nic.link)
                outer.make_port(nic.link, nic.bridge, nic.mtu, name, nic.mac, inside)
                inner.up(name)
                inner.add_address(name, nic.address or config.address_of(machine))
            first = config.link_name(0)
            for network, gateway in config.routes(machine.nic):
                inner.ensure_route(network, via=gateway, link=first)

    # --- end

    def _watch(self, machine: Machine, process: processes.Pid, terminal: Terminal) -> None:
        running = self._running[machine.ip] = _Running(process, terminal)

        def gone() -> None:
            running.ending = asyncio.ensure_future(self._report(machine, running))

        running.forget = processes.on_gone(process, gone)

    async def _report(self, machine: Machine, running: _Running) -> None:
        try:
            reason = parse.exit_of(await self._engine.wait(config.container_name(machine)))
        except AtollError:  # the engine went too, or somebody else removed the container
            reason = Exit.CRASHED
        await running.terminal.finish()
        self._unplug(machine)
        if self._running.get(machine.ip) is running:
            del self._running[machine.ip]
            self._on_exit(machine.ip, reason)

    async def _remove(self, machine: Machine) -> None:
        await self._engine.remove(config.container_name(machine))
        self._unplug(machine)

    def _unplug(self, machine: Machine) -> None:
        with Links(self._namespace) as links:
            for nic in machine.nics:
                links.delete(nic.link)


async def remove_containers(socket: Path, cloud: str) -> int:
    """Remove every container of a cloud, which is named by its cgroup. How many there were."""
    engine = Engine(socket)
    try:
        found = [one for one in await engine.list() if config.is_of(cloud, one.labels[config.LABEL])]
        for one in found:
            await engine.remove(one.id)
        return len(found)
    finally:
        await engine.close()


async def _ended(running: _Running) -> None:
    """Wait until the end of one that has gone is noted and reported."""
    while running.ending is None:  # noqa: ASYNC110 - the loop sees it in its next round
        await asyncio.sleep(0)
    await asyncio.wait({running.ending})


async def _let_go(running: _Running) -> None:
    running.forget()
    if running.ending is not None:
        await asyncio.wait({running.ending})
    await running.terminal.close()


def _console_log(machine: Machine) -> Path:
    return machine.directory / "console.log"


def _check(machine: Machine) -> None:
    if not all(path.exists() for path in cgroups.join_paths(machine.cgroup)):
        raise HostFailure(f"starting machine {machine.name}: its cgroup {machine.cgroup} is not there")
    if not machine.image_digest:
        raise HostFailure(f"starting machine {machine.name}: its image is not known")
