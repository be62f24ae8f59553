"""What the policies of a VM do to it: restart, expiry, the undoing of what nobody acknowledged.

Effects: through the inventory and life.py. What is to be done is
decided in atoll.plan.policies, when it is due in duties.py.
"""

from __future__ import annotations

from collections.abc import Callable

from atoll.errors import AtollError
from atoll.hypervisor.vms.life import Life
from atoll.hypervisor.vms.making import why_unacknowledged
from atoll.hypervisor.vms.records import Record
from atoll.hypervisor.vms.workbench import Workbench
from atoll.model.vm import VM, VmState
from atoll.plan.policies import Duty, Verdict, after_exit, within
from atoll.system import clock


class Policies:
    """`note` is told the method and VM of everything that was done unasked."""

    def __init__(self, bench: Workbench, life: Life, note: Callable[[str, VM], None]) -> None:
        self._vms = bench.vms
        self._backoff = bench.facts.backoff
        self._life = life
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
        await self._life.finish_destroy(vm, "its guest powered off")
        self._note("vm.destroy-on-power-down", vm)

    async def do(self, duty: Duty, vm: VM) -> None:
        """What is due. One that was changed since it became due is left alone."""
        async with self._vms.lock(vm):
            if not self._vms.holds(vm):
                return
            record = self._vms.record(vm)
            unclaimed = duty is Duty.UNDO and record.acknowledge_by is not None
            over = duty is Duty.EXPIRE and record.vm.expires_at is not None and not record.vm.protected
            if unclaimed or over:
                why = why_unacknowledged(vm.owner_users) if unclaimed else "it expired"
                await self._life.finish_destroy(vm, why)
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
            await self._life.launch(vm, reason=f"started again: {why}", **again)
        except AtollError as error:
            verdict = self.verdict(vm, powered_off=False)
            reason = f"{error.brief}; {verdict.note}" if verdict.note else error.brief
            await self._vms.update(vm, reason=reason, restart_at=verdict.restart_at)
