"""The machine of a VM: cgroup, network port and driver together, and their removal in the reverse order.

Effects: through drivers, the network and atoll.system.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec import structs

from atoll.drivers.machine.base import Machine, MachineDriver, Seen
from atoll.errors import NotFound
from atoll.hypervisor.network.base import Network
from atoll.images.store import ImageStore
from atoll.model.network import Subnet
from atoll.model.vm import VM
from atoll.system import cgroups
from atoll.system.undo import Undo

UID_BASE = 0x6000_0000
PIDS = 128
_NOTHING = Path("/dev/null")


def uid_for(ip: str) -> int:
    """A user of its own for each VM, from a range that nobody hands out: VMs cannot touch each other."""
    return UID_BASE + int(ipaddress.IPv4Address(ip)) % (1 << 24)


class Machines:
    def __init__(
        self,
        drivers: Mapping[str, MachineDriver],
        overheads_mib: Mapping[str, int | None],
        network: Network,
        images: ImageStore,
        cgroup: str,
        directory: Callable[[str], Path],
        subnet_of: Callable[[VM], Subnet],
    ) -> None:
        self._drivers = drivers
        self._overheads_mib = overheads_mib
        self._network = network
        self._images = images
        self._cgroup = cgroup
        self._directory = directory
        self._subnet_of = subnet_of

    def driver(self, name: str) -> MachineDriver:
        if name not in self._drivers:
            known = ", ".join(sorted(self._drivers))
            raise NotFound(f"driver {name!r}: not on this node", hint=f"there are: {known}")
        return self._drivers[name]

    def machine(self, vm: VM) -> Machine:
        """What the driver is told of a VM that is there: all but what it boots, which may be gone by now."""
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
            nic=self._network.nic(vm, self._subnet_of(vm)),
            directory=self._directory(vm.ip),
            cgroup=self.group(vm),
            uid=uid_for(vm.ip),
        )

    def group(self, vm: VM) -> str:
        return f"{self._cgroup}/{vm.ip}"

    async def launch(self, vm: VM) -> None:
        """Everything of a running VM, or nothing."""
        driver, machine = self.driver(vm.driver), self._bootable(vm)
        async with Undo() as undo:
            undo.add(cgroups.remove, machine.cgroup)
            self.limit(vm, starting=True)
            undo.add(self._network.unplug, vm, self._subnet_of(vm))
            await self._network.plug(vm, self._subnet_of(vm))
            undo.add(driver.kill, machine)
            await driver.start(machine)
            undo.commit()

    def _bootable(self, vm: VM) -> Machine:
        image = self._images.get(vm.image)
        return structs.replace(
            self.machine(vm),
            kernel=self._images.path(image, image.boot.kernel),
            initrd=self._images.path(image, image.boot.initrd),
            cmdline=image.boot.cmdline,
        )

    async def seen(self, vm: VM) -> Seen | None:
        """The machine as it is on this host; None when there is none."""
        found = await self.driver(vm.driver).inspect([self.machine(vm)])
        return found.get(vm.ip)

    async def adopt(self, vm: VM) -> None:
        """A machine that runs already: give it back its place in the network and its limits."""
        await self._network.plug(vm, self._subnet_of(vm))
        self.limit(vm, starting=False)

    def limit(self, vm: VM, *, starting: bool) -> None:
        """Its share of the node. While it starts it may use whole CPUs, so that the start is short."""
        overhead_mib = self._overheads_mib[vm.driver]
        if overhead_mib is None:
            return
        cgroups.ensure(
            self.group(vm),
            cgroups.Limits(
                cpu_milli_quota=vm.vcpus * 1000 if starting else vm.milli_cpus,
                cpu_weight=max(1, min(10_000, vm.milli_cpus // 10)),
                memory_mib=vm.memory_mib + overhead_mib,
                pids=PIDS,
            ),
        )

    async def halt(self, vm: VM) -> None:
        """Leave nothing of it running. Already gone is success."""
        await self.driver(vm.driver).kill(self.machine(vm))
        await self.release(vm)

    async def release(self, vm: VM) -> None:
        """Take away what a machine that has ended used."""
        await self._network.unplug(vm, self._subnet_of(vm))
        cgroups.remove(self.group(vm))
