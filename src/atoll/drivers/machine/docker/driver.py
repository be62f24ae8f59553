"""Containers by a Docker Engine. Asks the engine for them, gives them a link, watches them.

The engine holds the container and with it the VM's root, from the first start to the VM's end; its state says
whether it runs, and how it ended. Which container it is, is noted in the VM's directory (record.py). The network
is ours: the container has none of the engine's, and gets one end of a link whose other end is in the VM's bridge,
with its address.

What an engine fixes when it makes a container (name, address, name servers) may have changed at the next start.
Then a new container is made of the root of the old one, which goes when the new one is there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec import structs

from atoll.drivers.machine.base import Console, Exit, Machine, OnExit, Process, Seen, capabilities_of
from atoll.drivers.machine.docker import config, folders, hands, parse, record, roots
from atoll.drivers.machine.docker.engine import Engine, chunks_of
from atoll.drivers.machine.docker.record import Kept
from atoll.drivers.machine.docker.terminal import Terminal
from atoll.drivers.machine.memory import hold_to
from atoll.errors import AtollError, Conflict, HostFailure, NotFound
from atoll.model.command import Command
from atoll.model.node import DriverInfo
from atoll.system import aside, cgroups, files, host, namespaces, processes, steps
from atoll.system.links import Links, missing
from atoll.system.undo import Undo

log = logging.getLogger(__name__)

OVERHEAD_MIB = 16
MIND_AGAIN_S = 1.0
CLEANING_S = 10.0
"""How long an engine's own processes may take to clean up after a container."""


class _Running:
    """A container that runs, as far as we know, and the work of noting its end once it has gone."""

    def __init__(self, container: str, process: processes.Pid, terminal: Terminal) -> None:
        self.container = container
        self.process = process
        self.terminal = terminal
        self.forget: Callable[[], None] = lambda: None
        self.ending: asyncio.Task[None] | None = None
        self.minding: asyncio.Task[None] | None = None
        """Whether its root stays within its size."""
        self.overfull = False


class DockerDriver:
    """The machine driver `docker`. `namespace` is where links are made; None is where we are."""

    def __init__(self, socket: Path, on_exit: OnExit, *, namespace: str | None = None) -> None:
        self._engine = Engine(socket)
        self._stage = folders.Stage(socket)
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
                "files": "its own over the image's, kept by the engine until it is destroyed",
                "disk": _root_limit(info),
            },
        )

    def share_problem(self) -> str:
        return ""

    async def root_limit(self) -> str:
        return _root_limit(await self._engine.info())

    def given_address(self, machine: Machine) -> str:
        return config.address_of(machine)

    async def start(self, machine: Machine) -> None:
        async with self._lock(machine):
            seen = await self._find(machine)
            if seen is None or seen.exit is not None:
                await self._start(machine)

    async def power_down(self, machine: Machine) -> None:
        async with self._lock(machine):
            running = await self._running_one(machine, "powering it down")
            with contextlib.suppress(Conflict):  # it has just gone
                await self._engine.kill(running.container, "SIGTERM")

    async def reset(self, machine: Machine) -> None:
        async with self._lock(machine):
            running = await self._running_one(machine, "resetting it")
            # Forgotten first: its end is ours, and not reported.
            del self._running[machine.ip]
            running.forget()
            await _stop_minding(running)
            await self._end(running.container)
            async with self._stage.furnished(machine):
                await self._run(machine, running.container, running.terminal)

    async def freeze(self, machine: Machine) -> None:
        async with self._lock(machine):
            running = await self._running_one(machine, "holding it still")
            if not await self._is_held(running):
                await self._engine.pause(running.container)

    async def thaw(self, machine: Machine) -> None:
        async with self._lock(machine):
            running = await self._running_one(machine, "letting it go on")
            if await self._is_held(running):
                await self._engine.unpause(running.container)
            if not running.terminal.is_connected:
                await running.terminal.catch_up(self._engine, running.container)
                await running.terminal.connect(self._engine, running.container)

    async def _is_held(self, running: _Running) -> bool:
        found = await self._engine.inspect(running.container)
        return found is not None and found.state.paused

    async def kill(self, machine: Machine) -> None:
        async with self._lock(machine):
            await self._kill(machine)

    async def discard(self, machine: Machine) -> None:
        async with self._lock(machine):
            kept = await self._kill(machine)
            await self._remove(kept)
            steps.step("docker.removed")
            await record.forget(machine)

    async def resize_memory(self, machine: Machine) -> None:
        async with self._lock(machine):
            running = await self._running_one(machine, "giving it other memory")
            if limits := config.limits(machine, (await self._engine.info()).cgroup_driver):
                await self._engine.update(running.container, limits)
            else:
                await hold_to(machine, OVERHEAD_MIB)

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

    @property
    def needs_agent(self) -> bool:
        return False

    async def exec(self, machine: Machine, command: Command) -> Process:
        async with self._lock(machine):
            container = (await self._running_one(machine, "running a command in it")).container
        return await hands.begin(self._engine, container, machine, command)

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
        running = self._running.get(machine.ip)
        return structs.replace(
            seen,
            lost=missing([nic.link for nic in machine.nics], self._namespace),
            frozen=running is not None and await self._is_held(running),
        )

    async def _find(self, machine: Machine) -> Seen | None:
        """The truth about one machine. One that runs is watched afterwards."""
        running = self._running.get(machine.ip)
        if running is not None and processes.alive(running.process):
            return Seen(machine.ip, running.process.pid)
        if running is not None:
            await _ended(running)
        kept = await self._kept(machine)
        found = await self._engine.inspect(kept.container) if kept.container else None
        if found is None or found.state.never_ran:
            return None
        if not found.state.is_up:
            return None if kept.ended else Seen(machine.ip, 0, parse.exit_of(found.state.exit_code))
        process = processes.identify(found.state.pid)
        if process is None:
            return Seen(machine.ip, 0, parse.exit_of(await self._engine.wait(found.id)))
        await aside.run(self._stage.clear, machine)  # an agent was killed while it started it
        terminal = Terminal(record.console_log_path(machine))
        if not found.state.paused:  # engines let nobody attach to one that is held
            await terminal.catch_up(self._engine, found.id)
            await terminal.connect(self._engine, found.id)
        self._watch(machine, _Running(kept.container, process, terminal), found.changes)
        return Seen(machine.ip, process.pid)

    async def _kept(self, machine: Machine) -> Kept:
        """What is kept of it. Where no record says so, by the instance that the container is labelled with."""
        if (kept := record.read(machine)) is not None:
            return kept
        listed = await self._engine.list()
        names = [one.name for one in listed if one.labels.get(config.INSTANCE) == machine.instance_id]
        first, others = (names[0], tuple(names[1:])) if names else ("", ())
        return Kept(first, others, ended=False)

    async def _running_one(self, machine: Machine, doing: str) -> _Running:
        seen = await self._find(machine)
        running = self._running.get(machine.ip)
        if seen is None or seen.exit is not None or running is None:
            raise Conflict(f"machine {machine.name}: {doing}: it is not running", hint="start it first")
        return running

    # --- start

    async def _start(self, machine: Machine) -> None:
        _check(machine)
        kept = await self._kept(machine)
        async with Undo() as undo:
            if not record.console_log_path(machine).exists():
                undo.add(aside.run, files.remove_tree, record.console_log_path(machine))
            undo.add(self._undo_start, machine, kept)
            async with self._stage.furnished(machine):
                kept = await self._ensure_container(machine, kept)
                await self._note(machine, structs.replace(kept, ended=False))
                steps.step("docker.noted")
                terminal = Terminal(record.console_log_path(machine))
                undo.add(terminal.close)
                await self._run(machine, kept.container, terminal)
            undo.commit()

    async def _undo_start(self, machine: Machine, before: Kept) -> None:
        """What was there before stays; of one that was started for the first time, nothing does."""
        kept = await self._kill(machine)
        if not before.container:
            await self._remove(kept)
            await record.forget(machine)

    async def _ensure_container(self, machine: Machine, kept: Kept) -> Kept:
        """One that suits the machine, with the root that it had before, and no other."""
        kept = await self._clean(machine, kept)
        info = await self._engine.info()
        folders.check_engine(machine, info)
        cgroup_driver = info.cgroup_driver
        if kept.container:
            found = await self._engine.inspect(kept.container)
            if found is None:
                raise HostFailure(
                    f"starting machine {machine.name}: container {kept.container}, which holds its root, is gone"
                    " from the engine",
                    hint="restore the engine's data, or destroy the VM and create it anew",
                )
            if found.label(config.SETTINGS) == config.settings_of(machine, cgroup_driver=cgroup_driver):
                if limits := config.limits(machine, cgroup_driver):
                    await self._engine.update(kept.container, limits)
                return kept
        name = config.new_container_name(machine)
        await self._note(machine, structs.replace(kept, others=(name,)))
        steps.step("docker.named")
        image = await self._ensure_image(machine, kept.container, name)
        steps.step("docker.imported")
        storage = roots.storage_options(machine.root_mib) if roots.has_quotas(info) else None
        body = config.container_body(
            machine,
            image,
            cgroup_driver=cgroup_driver,
            most=host.process_limits(),
            storage=storage,
            mounts_anew=(await self._engine.version()).mounts_anew,
        )
        await self._engine.create(name, body)
        steps.step("docker.created")
        kept = Kept(name, others=(kept.container,) if kept.container else ())
        await self._note(machine, kept)
        steps.step("docker.recorded")
        return await self._clean(machine, kept)

    async def _clean(self, machine: Machine, kept: Kept) -> Kept:
        """Without the others."""
        if not kept.others:
            return kept
        await self._remove(Kept(others=kept.others))
        steps.step("docker.cleaned")
        kept = structs.replace(kept, others=())
        await self._note(machine, kept)
        return kept

    async def _note(self, machine: Machine, kept: Kept) -> None:
        await asyncio.to_thread(record.write, machine, kept)

    async def _ensure_image(self, machine: Machine, root_of: str, name: str) -> str:
        """The image for a container of this name: the machine's, or the root of a container that it had."""
        if root_of:
            reference = config.root_reference(name)
            label = (config.LABEL, machine.cgroup)
            await self._engine.import_image(self._engine.export(root_of), reference, label)
            return reference
        reference = config.image_reference(machine)
        label = (config.IMAGE_LABEL, machine.image_digest)
        async with self._importing:
            if await self._engine.has_image(reference) or await self._found_image(label, reference):
                return reference
            if machine.rootfs is None or not machine.rootfs.is_file():
                raise NotFound(
                    f"starting machine {machine.name}: its image has no root file system",
                    hint="use another image, or another kind of machine",
                )
            await self._engine.import_image(chunks_of(machine.rootfs), reference, label)
        return reference

    async def _found_image(self, label: tuple[str, str], reference: str) -> bool:
        """Whether another cloud has the same one in this engine. It is ours as well then."""
        for image in await self._engine.images("=".join(label)):
            with contextlib.suppress(NotFound):
                await self._engine.add_reference(image.id, reference)
                return True
        return False

    async def _run(self, machine: Machine, name: str, terminal: Terminal) -> None:
        """Run the container, which is there already, and put its link in place."""
        await terminal.connect(self._engine, name)
        await self._engine.start(name)
        steps.step("docker.started")
        found = await self._engine.inspect(name)
        process = processes.identify(found.state.pid) if found is not None and found.state.pid else None
        if found is None or process is None:
            raise HostFailure(
                f"starting machine {machine.name}: its container ended at once",
                hint="what it wrote: atoll vm log",
            )
        await aside.run(folders.check_there, machine, process.pid)
        self._plug(machine, process)
        steps.step("docker.plugged")
        self._watch(machine, _Running(name, process, terminal), found.changes)

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

    def _watch(self, machine: Machine, running: _Running, changes: str) -> None:
        self._running[machine.ip] = running
        if changes and machine.root_mib:
            work = self._mind(machine, running, Path(changes))
            running.minding = asyncio.create_task(work, name=f"root of {machine.name}")

        def gone() -> None:
            running.ending = asyncio.ensure_future(self._report(machine, running))

        running.forget = processes.on_gone(running.process, gone)

    async def _mind(self, machine: Machine, running: _Running, changes: Path) -> None:
        """End it when it has changed more of its image than it may."""
        while True:
            try:
                used = await roots.until_overfull(changes, machine.root_mib)
                log.warning("machine %s: it is ended, since its root takes %d MiB", machine.name, used >> 20)
                running.overfull = True
                await self._engine.kill(running.container, "SIGKILL")
                return
            except (Conflict, NotFound):  # it has just gone
                return
            except (AtollError, OSError) as error:
                log.warning("machine %s: minding the size of its root: %s", machine.name, error)
                await asyncio.sleep(MIND_AGAIN_S)

    async def _report(self, machine: Machine, running: _Running) -> None:
        await _stop_minding(running)
        try:
            ended = parse.exit_of(await self._engine.wait(running.container))
            reason = Exit.OVERFULL if running.overfull else ended
        except AtollError:  # the engine went too, or somebody else removed the container
            reason = Exit.CRASHED
        await running.terminal.finish()
        self._unplug(machine)
        if self._running.get(machine.ip) is running:
            del self._running[machine.ip]
            self._on_exit(machine.ip, reason)

    async def _kill(self, machine: Machine) -> Kept:
        """End what runs of it. What is kept of it."""
        running = self._running.pop(machine.ip, None)
        if running is not None:
            await _let_go(running)
        kept = await self._kept(machine)
        for name in filter(None, (kept.container, *kept.others)):
            await self._end(name)
        await aside.run(self._stage.clear, machine)
        # Podman's monitor of a container is in the group too, and outlives it by the time it needs to clean up.
        await aside.run(hands.end_monitors, machine.cgroup)
        await aside.run(cgroups.wait_empty, machine.cgroup, CLEANING_S)
        steps.step("docker.ended")
        self._unplug(machine)
        if kept.container and not kept.ended:
            kept = structs.replace(kept, ended=True)
            await self._note(machine, kept)
        return kept

    async def _end(self, container: str) -> None:
        """End what runs in it. Not there, or not running, is fine."""
        found = await self._engine.inspect(container)
        if found is not None and found.state.is_up:
            if found.state.paused:  # or it would not even hear that it is to end
                with contextlib.suppress(Conflict, NotFound):
                    await self._engine.unpause(container)
            with contextlib.suppress(Conflict, NotFound):  # it has just gone
                await self._engine.kill(container, "SIGKILL")
            with contextlib.suppress(NotFound):
                await self._engine.wait(container)

    async def _remove(self, kept: Kept) -> None:
        """Leave none of these containers, nor the images that they alone were made of."""
        for name in filter(None, (kept.container, *kept.others)):
            await self._engine.remove(name)
            await self._engine.remove_image(config.root_reference(name))

    def _unplug(self, machine: Machine) -> None:
        with Links(self._namespace) as links:
            for nic in machine.nics:
                links.delete(nic.link)


async def remove_containers(socket: Path, cloud: str) -> int:
    """Remove every container of a cloud, which is named by its cgroup, every root, and the images that no other cloud
    has. How many VMs there were."""
    engine = Engine(socket)
    try:
        found = [one for one in await engine.list() if config.is_of(cloud, one.labels[config.LABEL])]
        for one in found:
            await engine.remove(one.id)
        for one in await engine.images():
            if config.is_of(cloud, one.labels[config.LABEL]):
                await engine.remove_image(one.id)
        await aside.run(folders.Stage(socket).clear_all, cloud)
        repository = config.image_repository(cloud)
        for one in await engine.images(config.IMAGE_LABEL):
            for reference in one.repo_tags or ():
                if config.is_in(repository, reference):
                    await engine.remove_reference(reference)
        return len(found)
    finally:
        await engine.close()


async def _ended(running: _Running) -> None:
    """Wait until the end of one that has gone is noted and reported."""
    while running.ending is None:  # noqa: ASYNC110 - the loop sees it in its next round
        await asyncio.sleep(0)
    await asyncio.wait({running.ending})


async def _stop_minding(running: _Running) -> None:
    if running.minding is not None:
        running.minding.cancel()
        await asyncio.wait({running.minding})


def _root_limit(info: parse.Info) -> str:
    if roots.has_quotas(info):
        return "its changes are held to the size of its root by a quota of the engine's file system"
    return (
        "its changes are watched, and a VM that exceeds the size of its root is ended; not enforced at once, nor while"
        " no agent runs: the engine's file system has no project quotas"
    )


async def _let_go(running: _Running) -> None:
    running.forget()
    await _stop_minding(running)
    if running.ending is not None:
        await asyncio.wait({running.ending})
    await running.terminal.close()


def _check(machine: Machine) -> None:
    if not all(path.exists() for path in cgroups.join_paths(machine.cgroup)):
        raise HostFailure(f"starting machine {machine.name}: its cgroup {machine.cgroup} is not there")
    if not machine.image_digest:
        raise HostFailure(f"starting machine {machine.name}: its image is not known")
