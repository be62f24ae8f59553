"""The machine of a VM: cgroup, network port and driver together, and their removal in the reverse order.

Effects: through drivers, the network and atoll.system.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from msgspec import structs

from atoll.drivers.machine.base import (
    CanFork,
    CanHotplug,
    CanRehearse,
    CanResizeMemory,
    Disk,
    GivesAddress,
    HasDisplay,
    HasHardware,
    KeepsElsewhere,
    Machine,
    MachineDriver,
    Seen,
)
from atoll.errors import AtollError, NotFound
from atoll.guestnet.metadata.nocloud import serial_number
from atoll.hypervisor.launch.templates import Templates
from atoll.hypervisor.network.base import Network
from atoll.images.store import ImageStore
from atoll.model.hardware import boot_from
from atoll.model.network import Subnet
from atoll.model.vm import UNKNOWN_DRIVER, VM, ConsoleKind, StartedBy, VmNic
from atoll.model.volume import FileSystem, Volume, VolumeFormat
from atoll.plan import capacity
from atoll.system import cgroups, host, steps
from atoll.system.undo import Undo

log = logging.getLogger(__name__)

UID_BASE = 0x6000_0000
PIDS = 128
FORKS_PER_CORE = 2
_NOTHING = Path("/dev/null")


def uid_for(ip: str) -> int:
    """A user of its own for each VM, from a range that nobody hands out: VMs cannot touch each other."""
    return UID_BASE + int(ipaddress.IPv4Address(ip)) % (1 << 24)


def _nowhere(ip: str, volume: Volume) -> Path:
    raise NotFound(f"store {volume.store!r}: not on this node", hint="there are none")


def _is_disk(volume: Volume) -> bool:
    """The root of what boots from memory is none."""
    return volume.format is not VolumeFormat.MEMORY and volume.made


class Machines:
    def __init__(
        self,
        drivers: Mapping[str, MachineDriver],
        overheads_mib: Mapping[str, int | None],
        network: Network,
        images: ImageStore,
        cgroup: str,
        directory: Callable[[str], Path],
        subnet_of: Callable[[VM | VmNic], Subnet],
        templates: Templates | None = None,
        volume_path: Callable[[str, Volume], Path] | None = None,
        max_processes: Mapping[str, int] | None = None,
    ) -> None:
        self._drivers = drivers
        self._overheads_mib = overheads_mib
        self._network = network
        self._images = images
        self._cgroup = cgroup
        self._directory = directory
        self._subnet_of = subnet_of
        self._templates = templates
        self._volume_path = volume_path or _nowhere
        self._max_processes = max_processes or {}
        self._forking = asyncio.Semaphore(FORKS_PER_CORE * host.cores())

    def driver(self, name: str) -> MachineDriver:
        if name not in self._drivers:
            known = ", ".join(sorted(self._drivers))
            raise NotFound(f"driver {name!r}: not on this node", hint=f"there are: {known}")
        return self._drivers[name]

    def machine(self, vm: VM, kind: str = "") -> Machine:
        """What the driver is told of a VM that is there: all but what it boots, which may be gone by now.

        `kind`: whose machine it is, where that is not known of the VM.
        """
        first, *others = (
            self._network.nic(nic, self._subnet_of(nic), is_default_route=nic.ip == vm.ip)
            for nic in vm.all_nics
        )
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
            directory=self._directory(vm.ip),
            cgroup=self.group(vm, kind),
            uid=uid_for(vm.ip),
            serial=serial_number(vm, self._subnet_of(vm)),
            milli_cpus=vm.milli_cpus,
            disks=tuple(
                self.disk(vm, volume) for volume in vm.volumes if _is_disk(volume) and volume.attached
            ),
            screen=vm.console is ConsoleKind.VNC,
            watchdog=vm.watchdog,
            watchdog_action=vm.watchdog_action,
        )

    def disk(self, vm: VM, volume: Volume) -> Disk:
        """A volume as the driver sees it."""
        path = self._volume_path(vm.ip, volume) if volume.store else None
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
        return frozenset(name for name, driver in self._drivers.items() if isinstance(driver, CanHotplug))

    def screen_kinds(self) -> frozenset[str]:
        """The kinds of machine that can have a screen."""
        return frozenset(name for name, driver in self._drivers.items() if isinstance(driver, HasDisplay))

    def hardware_kinds(self) -> frozenset[str]:
        """The kinds of machine that have a kernel and devices of their own."""
        return frozenset(name for name, driver in self._drivers.items() if isinstance(driver, HasHardware))

    def memory_kinds(self) -> frozenset[str]:
        """The kinds of machine whose memory can change while they run."""
        return frozenset(
            name for name, driver in self._drivers.items() if isinstance(driver, CanResizeMemory)
        )

    async def resize_memory(self, vm: VM) -> None:
        """Hold a machine that runs to the memory of its VM. Conflict when it uses more than that."""
        driver = self.driver(vm.driver)
        assert isinstance(driver, CanResizeMemory)
        await driver.resize_memory(self.machine(vm))

    def gives_address(self, vm: VM) -> bool:
        """Whether a VM of its kind has its address once it is started, and asks nobody for one."""
        return isinstance(self.driver(vm.driver), GivesAddress)

    def group(self, vm: VM, kind: str = "") -> str:
        """Its cgroup, which is one of its kind."""
        return f"{self._cgroup}/{kind or vm.driver}/{vm.ip}"

    async def launch(self, vm: VM, *, pooled: bool = False) -> StartedBy:
        """Everything of a running VM, or nothing, in the quickest way that works. `pooled`: it runs already.

        Any doubt ends in a cold start, which is always right.
        """
        if pooled and await self._hand_over(vm):
            return StartedBy.POOL
        key = self.template_key(vm)
        directory = None if self._templates is None else self._templates.find(key)
        doubtful = directory is not None and not await self._fork(vm, directory)
        if directory is not None and not doubtful:
            return StartedBy.FORK
        await self._run(vm, self.driver(vm.driver).start)
        if doubtful and key is not None and self._templates is not None:
            self._templates.doubt(key)
        return StartedBy.COLD

    async def _run(
        self, vm: VM, start: Callable[[Machine], Awaitable[None]], weight: int | None = None
    ) -> None:
        driver, machine = self.driver(vm.driver), self._bootable(vm)
        async with Undo() as undo:
            undo.add(cgroups.remove, machine.cgroup)
            self.limit(vm, starting=True, weight=weight)
            steps.step("launch.limited")
            for nic in vm.all_nics:
                undo.add(self._network.unplug, nic, self._subnet_of(nic))
                await self._network.plug(nic, self._subnet_of(nic))
                steps.step("launch.plugged")
            undo.add(driver.kill, machine)
            await start(machine)
            steps.step("launch.started")
            undo.commit()

    # --- copies of templates

    def template_key(self, vm: VM) -> str | None:
        """The template that this VM could be forked from, whether it is there or not."""
        return None if self._templates is None else self._templates.key(vm, self._bootable(vm))

    def want_template(self, vm: VM) -> None:
        if self._templates is not None:
            self._templates.want(vm, self._bootable(vm))

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
            return False
        return True

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
        await self._run(vm, lambda machine: driver.fork(machine, directory), weight=1)

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

    def _bootable(self, vm: VM) -> Machine:
        image = self._images.get(vm.image)
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
        return tuple(self._drivers) if vm.driver == UNKNOWN_DRIVER else (vm.driver,)

    async def adopt(self, vm: VM) -> None:
        """A machine that runs already: give it back its place in the network and its limits."""
        await self.plug(vm)
        self.limit(vm, starting=False)

    async def plug(self, *vms: VM) -> None:
        """Give them their places in the network."""
        await self._network.plug_all([(nic, self._subnet_of(nic)) for vm in vms for nic in vm.all_nics])

    def limit(self, vm: VM, *, starting: bool, weight: int | None = None) -> None:
        """Its share of the node. While it starts it counts for whole CPUs, so that the start is short."""
        overhead_mib = self._overheads_mib.get(vm.driver)
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
                pids=self._max_processes.get(vm.driver, PIDS),
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
        for nic in vm.all_nics:
            await self._network.unplug(nic, self._subnet_of(nic))
            steps.step("halt.unplugged")
        for kind in self._kinds_of(vm):
            cgroups.remove(self.group(vm, kind))
        steps.step("halt.released")
