"""Creates that their creators have to acknowledge: until then they are on their way to be undone.

Effects: through the inventory. What nobody acknowledged in time is undone by duties.py.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from atoll.hypervisor.vms.inventory import Inventory
from atoll.hypervisor.vms.permits import Permit
from atoll.model.vm import VM
from atoll.system import clock


class Acknowledgements:
    """`within_s`: how long a creator has, from the moment that it was told."""

    def __init__(self, vms: Inventory, within_s: float) -> None:
        self._vms = vms
        self._within_s = within_s

    def due(self, told_in_s: float = 0.0) -> datetime:
        """When a VM goes that is not acknowledged, should its creator be told only so much later."""
        return clock.now() + timedelta(seconds=told_in_s + self._within_s)

    async def expect(self, vm: VM) -> None:
        """Its creator is told of it now, or gone: the time runs."""
        if self._vms.holds(vm) and self._vms.record(vm).acknowledge_by is not None:
            await self._vms.update(vm, acknowledge_by=self.due())

    async def take(self, permit: Permit) -> VM:
        """It stays. Acknowledged already is a success."""
        vm = self._vms.permitted(permit)
        if self._vms.record(vm).acknowledge_by is None:
            return vm
        return await self._vms.update(vm, acknowledge_by=None)
