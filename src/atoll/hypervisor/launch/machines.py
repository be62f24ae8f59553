"""The machine of a VM: cgroup, network port and driver together, and their removal in the reverse order.

Effects: through drivers, the network and atoll.system.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

from msgspec import Struct, structs

from atoll.drivers.machine.base import (
    BadTemplate,
    CanFork,
    CanRehearse,
    CanResizeMemory,
    CanStall,
    Disk,
    GivesAddress,
    KeepsElsewhere,
    LimitsLog,
    Machine,
    MachineDriver,
    Seen,
)
from atoll.errors import AtollError, HostFailure, NotFound
from atoll.guestnet.metadata.nocloud import serial_number
from atoll.hypervisor.launch.folders import Folders
from atoll.hypervisor.launch.supplies import Supplies
from atoll.hypervisor.launch.templates import Templates
from atoll.hypervisor.network.base import Network, Port, ports_of
from atoll.model.hardware import boot_from
from atoll.model.image import Image
from atoll.model.network import Subnet
from atoll.model.vm import UNKNOWN_DRIVER, VM, ConsoleKind, StartedBy, VmNic
from atoll.model.volume import ROOT, FileSystem, Volume
from atoll.plan import capacity
from atoll.plan.ids import Ids
from atoll.system import aside, cgroups, host, steps
from atoll.system.undo import Undo

log = logging.getLogger(__name__)

FORKS_PER_CORE = 2
_NOTHING = Path("/dev/null")
_NO_IDS = Ids(65_534)
"""Nobody's, for a machine that only is looked at."""


def _nowhere(ip: str, volume: Volume) -> Path:
    raise NotFound(f"store {volume.store!r}: not on this node", hint="there are none")


def _is_disk(volume: Volume) -> bool:
    """A root in memory is not a disk."""
    return volume.name != ROOT and volume.made


class MachinePlace(Struct, frozen=True):
    """Where the machines of a node are."""

    cgroup: str
    """Above the cgroups of all of them."""
    directory: Callable[[str], Path]
    """That of the VM with this address."""
    subnet_of: Callable[[VM | VmNic], Subnet]
    volume_path: Callable[[str, Volume], Path] = _nowhere
    check_volume: Callable[[Volume], None] = lambda volume: None
    """Refuses one that cannot be used just now."""
    folders: Folders = Folders()
    """Those of the host that guests may have."""


class Machines:
    def __init__(
        self, supplies: Supplies, network: Network, place: MachinePlace, templates: Templates | None = None
    ) -> None:
        self.supplies = supplies
        self._kinds, self._images, self._ids = supplies.kinds, supplies.images, supplies.ids
        self._network = network
        self._place = place
        self._subnet_of = place.subnet_of
        self._templates = templates
        self._forking = asyncio.Semaphore(FORKS_PER_CORE * host.cores())

    def driver(self, name: str) -> MachineDriver:
        return self._kinds.driver(name)

    # --- the users that machines run as

    def take_ids(self, vm: VM) -> Ids:
        """The VM's own. There are free ones, or it has some."""
        return self._ids.take(vm.instance_id, self._kinds.id_space(vm.driver))

    def release_ids(self, vm: VM) -> None:
        """Nothing of it is left."""
        self._ids.release(vm.instance_id)

    def uid(self, vm: VM) -> int:
        """The user that owns its files."""
        return self._ids_of(vm).first

    def _ids_of(self, vm: VM) -> Ids:
        ids = self._ids.find(vm.instance_id)
        if ids is None:
            raise HostFailure(f"VM {vm.name}: it has no user to run as", hint="restart the agent")
        return ids

    def machine(self, vm: VM, kind: str = "") -> Machine:
        """What the driver is told of a VM that is there: all but what it boots, which may be gone by now.

        `kind`: whose machine it is, where that is not known of the VM.
        """
        first, *others = map(self._network.nic, self._ports(vm))
        ids = self._ids.find(vm.instance_id) or _NO_IDS
        return Machine(
            ip=vm.ip,
            name=vm.name,
            instance_id=vm.instance_id,
            machine_type=vm.machine_type,
            memory_mib=vm.memory_mib,
            vcpus=vm.vcpus,
            kernel=_NOTHING,
            initrd=_NOTHING,
            cmdline="",
            nic=first,
            extra_nics=tuple(others),
            directory=self._place.directory(vm.ip),
            cgroup=self.group(vm, kind),
            uid=ids.first,
            ids=ids.count,
            serial=serial_number(vm, self._subnet_of(vm)),
            milli_cpus=vm.milli_cpus,
            disks=tuple(
                self.disk(vm, volume) for volume in vm.volumes if _is_disk(volume) and volume.attached
            ),
            screen=vm.console is ConsoleKind.VNC,
            watchdog=vm.watchdog,
            watchdog_action=vm.watchdog_action,
            root_mib=vm.root_mib or 0,
        )

    def disk(self, vm: VM, volume: Volume) -> Disk:
        """A volume as the driver sees it."""
        path = self._place.volume_path(vm.ip, volume) if volume.store else None
        return Disk(
            name=volume.name,
            size_mib=volume.size_mib,
            format=volume.format,
            path=path,
            ext4=volume.fs is FileSystem.EXT4,
            interface=volume.interface,
        )

    def disk_kinds(self) -> frozenset[str]:
        """The kinds of machine that take disks."""
        return self._kinds.with_disks()

    def screen_kinds(self) -> frozenset[str]:
        """The kinds of machine that can have a screen."""
        return self._kinds.with_screens()

    def hardware_kinds(self) -> frozenset[str]:
        """The kinds of machine that have a kernel and devices of their own."""
        return self._kinds.with_hardware()

    def memory_kinds(self) -> frozenset[str]:
        """The kinds of machine whose memory can change while they run."""
        return self._kinds.with_live_memory()

    def root_kinds(self) -> frozenset[str]:
        """The kinds of machine that keep roots on the node's disk."""
        return self._kinds.with_roots()

    def share_kinds(self) -> dict[str, str]:
        """The kinds of machine that can have folders of the host, each with why not on this one."""
        return self._kinds.with_shares()

    @property
    def folders(self) -> Folders:
        return self._place.folders

    async def resize_memory(self, vm: VM) -> None:
        """Hold a machine that runs to the memory of its VM. Conflict when it uses more than that."""
        driver = self.driver(vm.driver)
        assert isinstance(driver, CanResizeMemory)
        await driver.resize_memory(self.machine(vm))

    async def resume(self, vm: VM) -> None:
        """Let a machine go on that is paused for want of room."""
        driver = self.driver(vm.driver)
        if isinstance(driver, CanStall):
            await driver.resume(self.machine(vm))

    def let_log_grow(self, vm: VM) -> None:
        """The log of its console was made smaller: so much may be written again. From any thread."""
        driver = self._kinds.drivers.get(vm.driver)
        if isinstance(driver, LimitsLog):
            driver.let_log_grow(self.machine(vm))

    def gives_address(self, vm: VM) -> bool:
        """Whether a VM of its kind has its address once it is started, and asks nobody for one."""
        return isinstance(self.driver(vm.driver), GivesAddress)

    def group(self, vm: VM, kind: str = "") -> str:
        """Its cgroup, which is one of its kind."""
        return f"{self._place.cgroup}/{kind or vm.driver}/{vm.ip}"

    async def launch(self, vm: VM, *, pooled: bool = False) -> StartedBy:
        """Everything of a running VM, or nothing, in the quickest way that works. `pooled`: it runs already.

        Any doubt ends in a cold start, which is always right.
        """
        if pooled and await self._hand_over(vm):
            return StartedBy.POOL
        key = self.template_key(vm)
        directory = None if self._templates is None else self._templates.find(key)
        if directory is not None and await self._fork(vm, directory):
            return StartedBy.FORK
        await self._run(vm, self.driver(vm.driver).start)
        return StartedBy.COLD

    async def run(self, vm: VM, start: Callable[[Machine], Awaitable[None]]) -> None:
        """Everything of a running VM, or nothing, in this very way."""
        await self._run(vm, start)

    async def _run(
        self, vm: VM, start: Callable[[Machine], Awaitable[None]], weight: int | None = None
    ) -> None:
        driver, machine = self.driver(vm.driver), self.bootable(vm)
        self._ids_of(vm)  # or it is not run
        for volume in vm.volumes:
            if volume.attached:
                self._place.check_volume(volume)
        if vm.shares:
            found = [await aside.run(self.folders.folder, vm.name, mount) for mount in vm.shares]
            machine = structs.replace(machine, folders=tuple(found))
        async with Undo() as undo:
            undo.add(aside.run, cgroups.remove, machine.cgroup)
            self.limit(vm, starting=True, weight=weight)
            steps.step("launch.limited")
            for port in self._ports(vm):
                undo.add(self._network.unplug, port)
                await self._network.plug(port)
                steps.step("launch.plugged")
            undo.add(driver.kill, machine)
            await start(machine)
            steps.step("launch.started")
            undo.commit()

    # --- copies of templates

    def template_key(self, vm: VM) -> str | None:
        """The template that this VM could be forked from, whether it is there or not."""
        return None if self._templates is None else self._templates.key(vm, self.bootable(vm))

    def want_template(self, vm: VM) -> None:
        if self._templates is not None:
            self._templates.want(vm, self.bootable(vm))

    async def _fork(self, vm: VM, directory: Path) -> bool:
        """Whether it runs as a copy of this template, and knows who it is."""
        driver = self.driver(vm.driver)
        assert isinstance(driver, CanFork)

        async def start(machine: Machine) -> None:
            await driver.fork(machine, directory)
            steps.step("fork.forked")
            await driver.identify(machine)
            steps.step("fork.identified")

        try:
            # In a burst the first are done when the last begin: all at once they would hinder each other.
            async with self._forking:
                await self._run(vm, start)
        except AtollError as error:
            log.warning("VM %s %s could not be forked, and is started cold: %s", vm.ip, vm.name, error)
            await self._note_failure(directory, error)
            return False
        self._note_fork(directory)
        return True

    def _note_fork(self, directory: Path) -> None:
        if self._templates is not None:
            self._templates.note_fork(directory.name)

    async def _note_failure(self, directory: Path, error: AtollError) -> None:
        """Want of memory, an address, a link or room on disk is not the template's fault."""
        if self._templates is not None and isinstance(error, BadTemplate):
            await self._templates.doubt(directory.name)

    async def _hand_over(self, vm: VM) -> bool:
        """Whether what runs at its address as a member of the hot pool has become this VM."""
        driver = self._rehearsing(vm)
        try:
            self.limit(vm, starting=True)
            steps.step("handover.limited")
            await self.plug(vm)
            steps.step("handover.plugged")
            await driver.identify(self.machine(vm))
            steps.step("handover.identified")
        except AtollError as error:
            log.warning("VM %s %s could not be handed over, and is started: %s", vm.ip, vm.name, error)
            await self.halt(vm)
            return False
        return True

    async def fork_for_pool(self, vm: VM, directory: Path) -> None:
        """A copy that waits, and may use what nobody else wants."""
        driver = self._rehearsing(vm)
        try:
            await self._run(vm, lambda machine: driver.fork(machine, directory), weight=1)
        except AtollError as error:
            await self._note_failure(directory, error)
            raise
        self._note_fork(directory)

    async def rehearse(self, vm: VM) -> None:
        await self._rehearsing(vm).rehearse(self.machine(vm))

    async def park(self, vm: VM) -> None:
        await self._rehearsing(vm).park(self.machine(vm))

    def can_rehearse(self, vm: VM) -> bool:
        return isinstance(self.driver(vm.driver), CanRehearse)

    def _rehearsing(self, vm: VM) -> CanRehearse:
        driver = self.driver(vm.driver)
        assert isinstance(driver, CanRehearse)
        return driver

    # --- any machine

    def image(self, vm: VM) -> Image:
        """What a VM was made of, whatever the image of that name is by now."""
        return self._images.get_digest(vm.image, vm.image_digest)

    def bootable(self, vm: VM) -> Machine:
        """What the driver is told of a VM that it is to run."""
        image = self.image(vm)
        return structs.replace(
            self.machine(vm),
            kernel=self._images.path(image, image.boot.kernel),
            initrd=self._images.path(image, image.boot.initrd),
            cmdline=f"{image.boot.cmdline} {vm.kernel_options}".strip(),
            boot_from=boot_from(vm.netboot, has_run=bool(vm.started_by)),
            rootfs=self._images.path(image, image.rootfs) if image.rootfs else None,
            image_digest=image.digest,
        )

    async def seen(self, vm: VM) -> Seen | None:
        """The machine as it is on this host; None when there is none."""
        for kind in self._kinds_of(vm):
            found = await self.driver(kind).inspect([self.machine(vm, kind)])
            if vm.ip in found:
                return found[vm.ip]
        return None

    def _kinds_of(self, vm: VM) -> tuple[str, ...]:
        """The one that it is of; a damaged VM may be of any."""
        return tuple(self._kinds.drivers) if vm.driver == UNKNOWN_DRIVER else (vm.driver,)

    async def adopt(self, vm: VM) -> None:
        """A machine that runs already: give it back its place in the network and its limits."""
        await self.plug(vm)
        self.limit(vm, starting=False)

    async def plug(self, *vms: VM) -> None:
        """Give them their places in the network."""
        await self._network.plug(*(port for vm in vms for port in self._ports(vm)))

    def _ports(self, vm: VM) -> tuple[Port, ...]:
        return ports_of(vm, self._subnet_of)

    async def answers(self, vm: VM, tcp_port: int) -> bool:
        """Whether its guest takes connections there, at its own address."""
        return await self._network.answers(self._ports(vm)[0], tcp_port)

    async def connect(self, vm: VM, tcp_port: int) -> socket.socket:
        """To its guest, at its own address."""
        return await self._network.connect(self._ports(vm)[0], tcp_port)

    async def converses(self, vm: VM, tcp_port: int) -> bool:
        """Whether its guest answered as it will answer its users."""
        return await self._network.converses(self._ports(vm)[0], tcp_port)

    def limit(self, vm: VM, *, starting: bool, weight: int | None = None) -> None:
        """Its share of the node. While it starts it counts for whole CPUs, so that the start is short."""
        overhead_mib = self._kinds.overhead_mib(vm.driver)
        if overhead_mib is None:
            return
        milli_cpus = vm.vcpus * 1000 if starting else vm.milli_cpus
        # Beside its virtual CPUs a machine has threads of its own, which a start keeps busy.
        quota = milli_cpus + 500 if starting else milli_cpus
        cgroups.ensure(
            self.group(vm),
            cgroups.Limits(
                cpu_milli_quota=quota,
                cpu_weight=weight or max(1, min(10_000, milli_cpus // 10)),
                memory_mib=capacity.memory_mib(vm) + overhead_mib,
                pids=self._kinds.max_processes(vm.driver),
            ),
        )

    async def halt(self, vm: VM) -> None:
        """Leave nothing of it running. Already gone is success."""
        for kind in self._kinds_of(vm):
            await self.driver(kind).kill(self.machine(vm, kind))
        steps.step("halt.killed")
        await self.release(vm)

    async def remove(self, vm: VM) -> None:
        """As `halt`, and leave nothing of it outside of its VM's directory either: its VM is no more."""
        await self.halt(vm)
        for kind in self._kinds_of(vm):
            driver = self.driver(kind)
            if isinstance(driver, KeepsElsewhere):
                await driver.discard(self.machine(vm, kind))
        steps.step("halt.discarded")

    async def release(self, vm: VM) -> None:
        """Take away what a machine that has ended used."""
        for port in self._ports(vm):
            await self._network.unplug(port)
            steps.step("halt.unplugged")
        for kind in self._kinds_of(vm):
            await aside.run(cgroups.remove, self.group(vm, kind))
        steps.step("halt.released")
