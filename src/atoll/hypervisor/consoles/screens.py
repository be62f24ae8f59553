"""Which consoles and screens of a VM can be had, and the way to them. Effects: through drivers."""

from __future__ import annotations

from atoll.drivers.machine.base import Console, HasConsole, HasDisplay
from atoll.errors import Conflict
from atoll.hypervisor.launch.machines import Machines
from atoll.model.lifecycle import how_to_run
from atoll.model.vm import VM, ConsoleKind, VmState


class Screens:
    def __init__(self, machines: Machines) -> None:
        self._machines = machines

    def check_console(self, vm: VM) -> None:
        """Refuse a console that cannot be had, before anyone is connected to it."""
        if not isinstance(self._machines.driver(vm.driver), HasConsole):
            raise Conflict(f"VM {vm.name}: machines of kind {vm.driver} have no console")
        if _console_of(vm) is ConsoleKind.NONE:
            raise Conflict(f"VM {vm.name}: was made without a console", hint="see: atoll vm log")
        if vm.state is not VmState.RUNNING:
            raise Conflict(
                f"VM {vm.name}: is {vm.state}, its console is closed",
                hint=f"{how_to_run(vm)}; or see: atoll vm log {vm.name}",
            )

    async def console(self, vm: VM) -> Console:
        driver = self._machines.driver(vm.driver)
        assert isinstance(driver, HasConsole)
        return await driver.console(self._machines.machine(vm))

    def check_display(self, vm: VM) -> None:
        """Refuse a screen that cannot be had, before anyone is connected to it."""
        if _console_of(vm) is not ConsoleKind.VNC:
            raise Conflict(
                f"VM {vm.name}: has no screen", hint="create it with: --console vnc; or see: atoll vm console"
            )
        if vm.state is not VmState.RUNNING:
            raise Conflict(f"VM {vm.name}: is {vm.state}, its screen is dark", hint=how_to_run(vm))

    async def display(self, vm: VM) -> Console:
        driver = self._machines.driver(vm.driver)
        assert isinstance(driver, HasDisplay)
        return await driver.display(self._machines.machine(vm))


def _console_of(vm: VM) -> ConsoleKind:
    """What its machine was started with."""
    return vm.console if vm.running is None else vm.running.console
