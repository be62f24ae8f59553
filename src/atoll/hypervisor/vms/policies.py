"""What the rules of a VM do to it: restart, expiry, the undoing of what nobody acknowledged.

Effects: through the inventory, and what the service gives it to start and to destroy with. What is to be done is
decided in atoll.plan.policies, when it is due in duties.py.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from atoll.errors import AtollError
from atoll.hypervisor.vms.inventory import Inventory
from atoll.hypervisor.vms.records import Record
from atoll.model.vm import VM, VmState
from atoll.plan.policies import Backoff, Duty, Verdict, after_exit, within
from atoll.system import clock


class Launch(Protocol):
    """Starts a VM that is down, and notes why it runs and what else has changed."""

    def __call__(self, vm: VM, reason: str = "", **changes: object) -> Awaitable[None]: ...


class Policies:
    """`note` is told the method and VM of everything that was done unasked."""

    def __init__(
        self,
        vms: Inventory,
        backoff: Backoff,
        launch: Launch,
        destroy: Callable[[VM], Awaitable[None]],
        note: Callable[[str, VM], None],
    ) -> None:
        self._vms = vms
        self._backoff = backoff
        self._launch = launch
        self._destroy = destroy
        self._note = note

    def verdict(self, vm: VM, powered_off: bool) -> Verdict:
        """What becomes of a VM that has just gone down by itself."""
        record = self._vms.record(vm)
        return after_exit(
            record.vm.restart,
            powered_off=powered_off,
            destroy_on_power_down=record.vm.destroy_on_power_down,
            protected=record.vm.protected,
            restarted_at=record.restarted_at,
            now=clock.now(),
            backoff=self._backoff,
        )

    async def destroy_on_power_down(self, vm: VM) -> None:
        await self._destroy(vm)
        self._note("vm.destroy-on-power-down", vm)

    async def do(self, duty: Duty, vm: VM) -> None:
        """What is due. One that was changed since it became due is let be."""
        async with self._vms.lock(vm):
            if not self._vms.holds(vm):
                return
            record = self._vms.record(vm)
            unclaimed = duty is Duty.UNDO and record.acknowledge_by is not None
            over = duty is Duty.EXPIRE and record.vm.expires_at is not None and not record.vm.protected
            if unclaimed or over:
                await self._destroy(vm)
            elif duty is Duty.RESTART and record.restart_at is not None:
                await self._restart(record)
            else:
                return
        self._note(f"vm.{duty}", vm)

    async def _restart(self, record: Record) -> None:
        vm, now = record.vm, clock.now()
        recent = (*within(record.restarted_at, now, self._backoff), now)
        why = "it crashed" if vm.state is VmState.CRASHED else vm.reason
        again = {"restarts": vm.restarts + 1, "restarted_at": recent}
        try:
            await self._launch(vm, reason=f"started again: {why}", **again)
        except AtollError as error:
            verdict = self.verdict(vm, powered_off=False)
            reason = f"{error.brief}; {verdict.note}" if verdict.note else error.brief
            self._vms.update(vm, reason=reason, restart_at=verdict.restart_at)
