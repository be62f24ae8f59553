"""Machines that end: what is noted of it, and what becomes of their VMs.

Effects: through the inventory and machines. What a VM's own rules say is decided in atoll.plan.policies.
"""

from __future__ import annotations

import asyncio
import logging

from atoll.drivers.machine.base import Exit
from atoll.errors import AtollError
from atoll.hypervisor.vms.awaited_exits import AwaitedExits
from atoll.hypervisor.vms.policies import Policies
from atoll.hypervisor.vms.workbench import Workbench
from atoll.model.lifecycle import HELD, Happening, after
from atoll.model.vm import VM, VmState
from atoll.plan.recovery import Want
from atoll.system import steps

log = logging.getLogger(__name__)

NOTE_AGAIN_S = 0.5
LONGEST_NOTE_AGAIN_S = 30.0
_WHY = {
    Exit.POWERED_OFF: "the guest powered off",
    Exit.CRASHED: "the machine ended unexpectedly",
    Exit.OVERFULL: "the machine was ended: it wrote more to its root than that is large",
}
_UP = frozenset({VmState.STARTING, VmState.RUNNING, *HELD})


class Exits:
    def __init__(self, bench: Workbench, policies: Policies, awaited: AwaitedExits) -> None:
        self._vms = bench.vms
        self._machines = bench.machines
        self._background = bench.background
        self._policies = policies
        self._awaited = awaited

    def on_exit(self, ip: str, exit_: Exit) -> None:
        """By a driver: a machine stopped running."""
        if not self._awaited.take(ip, exit_) and (vm := self._vms.find_by_ip(ip)) is not None:
            self._note_later(vm, exit_)

    async def found(self, vm: VM, exit_: Exit) -> None:
        """It went down while there was no agent. What cannot be noted now is noted later."""
        try:
            await self._note(vm, exit_)
        except (AtollError, OSError):
            self._note_later(vm, exit_)
            raise

    async def release(self, vm: VM) -> None:
        """It went down, and that was noted; what it used may be left."""
        await self._machines.halt(vm)

    def _note_later(self, vm: VM, exit_: Exit) -> None:
        self._background.begin(f"VM {vm.ip} {vm.name}, noting its end", self._until_noted(vm, exit_))

    async def _until_noted(self, vm: VM, exit_: Exit) -> None:
        """Also on a disk that was full: what is down is not shown as running for ever."""
        pause_s = NOTE_AGAIN_S
        while not await self._noted(vm, exit_):
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_NOTE_AGAIN_S)

    async def _noted(self, vm: VM, exit_: Exit) -> bool:
        async with self._vms.lock(vm):
            if not self._vms.holds(vm) or self._vms.current(vm).state not in _UP:
                return True
            if self._vms.current(vm).is_on_disk:
                return True
            try:
                seen = await self._machines.seen(vm)
                # Old news if it was started again before it was our turn.
                if seen is None or seen.exit is not None:
                    await self._note(vm, exit_)
            except (AtollError, OSError) as error:
                log.error("VM %s %s ended; noting it: %s", vm.ip, vm.name, error)
                return False
        return True

    async def _note(self, vm: VM, exit_: Exit) -> None:
        """It went down by itself."""
        powered_off = exit_ is Exit.POWERED_OFF
        happening = Happening.POWERED_OFF if powered_off else Happening.DIED
        now = self._vms.current(vm)
        changes: dict[str, object]
        if now.state in HELD:
            # Who suspended it did not want it to run: its own rules do not count.
            reason = f"{_WHY[exit_]} while it was suspended"
            changes = {"state": after(now.state, happening), "want": Want.STOPPED, "reason": reason}
        else:
            verdict = self._policies.verdict(vm, powered_off)
            if verdict.destroy:
                await self._policies.destroy_on_power_down(vm)
                return
            changes = {
                "state": after(VmState.RUNNING, happening),
                "want": Want.STOPPED if powered_off and verdict.restart_at is None else Want.RUNNING,
                "reason": f"{_WHY[exit_]}; {verdict.note}" if verdict.note else _WHY[exit_],
                "restart_at": verdict.restart_at,
            }
        await self._vms.update(vm, **changes)
        steps.step("exit.noted")
        await self._machines.halt(vm)
        steps.step("exit.halted")
