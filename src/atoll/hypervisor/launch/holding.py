"""Machines that are held still, and those whose memory is kept on disk. Effects: through drivers."""

from __future__ import annotations

from atoll.drivers.machine.base import CanFreeze, CanSave
from atoll.errors import Conflict
from atoll.hypervisor.launch.machines import Machines
from atoll.model.vm import VM


class Holding:
    def __init__(self, machines: Machines) -> None:
        self._machines = machines

    def check(self, vm: VM, *, to_disk: bool) -> None:
        """Refuse what its kind cannot."""
        driver = self._machines.driver(vm.driver)
        doing = f"suspending VM {vm.name}"
        if not isinstance(driver, CanFreeze):
            raise Conflict(f"{doing}: machines of kind {vm.driver} cannot be held still")
        if not to_disk:
            return
        if not isinstance(driver, CanSave):
            raise Conflict(
                f"{doing}: to disk: the memory of a container is the host kernel's, and cannot be kept in a file",
                hint=f"suspend it to memory: atoll vm suspend {vm.name}",
                details={"kind": vm.driver},
            )
        driver.check_savable(self._machines.machine(vm))

    async def freeze(self, vm: VM) -> None:
        """Hold a machine that runs. Held already is success."""
        await self._freezing(vm).freeze(self._machines.machine(vm))

    async def thaw(self, vm: VM) -> None:
        """Let it go on. Not held is success."""
        await self._freezing(vm).thaw(self._machines.machine(vm))

    async def save(self, vm: VM) -> None:
        """Keep the memory of a machine that is held. It must not go on afterwards."""
        await self._saving(vm).save(self._machines.bootable(vm))

    async def restore(self, vm: VM) -> None:
        """Everything of a machine again, with the memory that was kept, held still; or nothing."""
        await self._machines.run(vm, self._saving(vm).restore)

    async def forget(self, vm: VM) -> None:
        """Keep its memory no longer. None kept is success."""
        driver = self._machines.driver(vm.driver)
        if isinstance(driver, CanSave):
            await driver.forget_saved(self._machines.machine(vm))

    def _freezing(self, vm: VM) -> CanFreeze:
        driver = self._machines.driver(vm.driver)
        assert isinstance(driver, CanFreeze)
        return driver

    def _saving(self, vm: VM) -> CanSave:
        driver = self._machines.driver(vm.driver)
        assert isinstance(driver, CanSave)
        return driver
