"""VMs that are suspended, to memory or to disk, and go on later; and what a new agent does about them.

    to memory   noted ──► held still ──► suspended ──► noted ──► goes on ──► running
    to disk     noted ──► held still ──► memory in a file ──► suspended ──► its machine is ended
                noted ──► a machine with that memory, held still ──► running ──► goes on ──► the file goes

The record says suspended when that is so for good, and running before a guest goes on from a file: whenever the agent
is killed, a guest has gone on from its memory at most once. What is cut short is undone.

Effects: through the inventory and machines. Which state allows what is in atoll.model.lifecycle.
"""

from __future__ import annotations

import logging

from msgspec import structs

from atoll.errors import AtollError, Conflict
from atoll.hypervisor.launch.holding import Holding
from atoll.hypervisor.launch.own_commands import run_in
from atoll.hypervisor.vms.changes import as_started
from atoll.hypervisor.vms.permits import Permit
from atoll.hypervisor.vms.stages import Stages
from atoll.hypervisor.vms.workbench import Workbench
from atoll.model.hardware import Netboot
from atoll.model.lifecycle import Action, Happening, after, begin
from atoll.model.vm import VM, SuspendTo, Suspension, VmState
from atoll.model.volume import ROOT, VolumeType
from atoll.plan import capacity
from atoll.plan.recovery import Want
from atoll.system import aside, clock, steps

log = logging.getLogger(__name__)

CLOCK_S = 5.0
"""How long a guest may take to set its clock."""
LOST = "the host was rebooted while it was suspended to memory, which is lost"


class Suspensions:
    """One thing at a time is done to a VM: the methods for callers take its lock, the others expect it."""

    def __init__(self, bench: Workbench, stages: Stages) -> None:
        self._bench = bench
        self._vms = bench.vms
        self._machines = bench.machines
        self._holding = Holding(bench.machines)
        self._stages = stages

    # --- for callers

    async def suspend(self, permit: Permit, to: SuspendTo) -> VM:
        """Hold it still. Suspended so already is a success."""
        async with self._vms.alone_with(permit) as vm:
            if begin(Action.SUSPEND, vm.name, vm.state) is None:
                _check_same(vm, to)
                return vm
            self._check(vm, to)
            disk_mib = vm_memory_on_disk_mib(vm) if to is SuspendTo.DISK else 0
            vm = await self._note(vm, Suspension(to, clock.now(), disk_mib))
            steps.step("suspend.noted")
            try:
                vm = await self._hold(vm, to)
            except BaseException as error:
                if self._vms.current(vm).state is VmState.SUSPENDING:
                    await aside.whole(self._undo(vm, f"suspending it failed: {error}"))
                raise
            steps.step("suspend.suspended")
            if to is SuspendTo.DISK:
                await aside.whole(self._machines.halt(vm))
                steps.step("suspend.halted")
            return vm

    async def resume(self, permit: Permit) -> VM:
        """Let it go on. One that runs already is a success."""
        async with self._vms.alone_with(permit) as vm:
            if begin(Action.RESUME, vm.name, vm.state) is None:
                await self._holding.thaw(vm)  # the one before may have failed at that
                return vm
            if self._has_memory_on_disk(vm):
                return await self._restore(vm)
            vm = await aside.whole(self._go_on(vm))
            await self._set_clock(vm)
            return vm

    # --- for recovery

    async def keep_held(self, vm: VM) -> None:
        """It was suspended to memory, and is still there."""
        self._stages.resume(vm)
        await self._machines.adopt(vm)
        await self._holding.freeze(vm)
        await self._note_suspended(vm)

    async def keep_on_disk(self, vm: VM) -> None:
        """Its memory is on disk. What there is of a machine has not gone on from it."""
        self._stages.resume(vm)
        await self._machines.halt(vm)
        await self._note_suspended(vm)

    async def note_lost(self, vm: VM) -> None:
        """It was suspended to memory, and that is gone with everything else."""
        await self._machines.halt(vm)
        await self._vms.update(vm, state=VmState.STOPPED, want=Want.STOPPED, reason=LOST)

    async def let_run(self, vm: VM, *, held: bool) -> None:
        """It runs, or is to: whatever was being done to it is over."""
        if held:
            await self._holding.thaw(vm)
        if vm.suspended is not None:
            await self._holding.forget(vm)
        if vm.state is not VmState.RUNNING or vm.suspended is not None:
            await self._vms.update(vm, state=VmState.RUNNING, suspended=None)

    # --- for a stop

    async def wake(self, vm: VM) -> None:
        """So that it can hear that it is to power down. One that cannot be woken is ended in any case."""
        try:
            await self._holding.thaw(vm)
        except AtollError as error:
            log.info("VM %s cannot be woken: %s", vm.ip, error)

    async def forget(self, vm: VM) -> None:
        """Its memory is not kept any longer."""
        if vm.suspended is not None:
            await self._holding.forget(vm)

    # --- inner workings

    def _has_memory_on_disk(self, vm: VM) -> bool:
        """And all of it: it is suspended for good, or on its way back."""
        on_disk = vm.suspended is not None and vm.suspended.to is SuspendTo.DISK
        return on_disk and self._vms.record(vm).want is Want.SUSPENDED

    def _check(self, vm: VM, to: SuspendTo) -> None:
        if to is SuspendTo.DISK:
            self._check_fits_disk(vm)
        self._holding.check(vm, to_disk=to is SuspendTo.DISK)

    def _check_fits_disk(self, vm: VM) -> None:
        """Refuse what would be lost, or would not be found again as it was."""
        doing = f"suspending VM {vm.name} to disk"
        disks = [volume for volume in vm.volumes if volume.name != ROOT and volume.attached]
        lost = [volume.name for volume in disks if volume.type is VolumeType.MEMORY]
        if lost:
            raise Conflict(
                f"{doing}: volume {lost[0]} is in memory and would be lost",
                hint=f"detach it, or suspend the VM to memory: atoll vm suspend {vm.name}",
            )
        if vm.netboot is Netboot.FIRST:
            raise Conflict(
                f"{doing}: it boots from the network the first time, and from its disk later",
                hint=f"atoll vm change {vm.name} --netboot never, and reboot it; or suspend it to memory",
            )

    async def _note(self, vm: VM, suspension: Suspension) -> VM:
        """No await from the check to the claim: nobody else gets the room on disk."""
        new = structs.replace(vm, suspended=suspension)
        room, doing = self._bench.room(), f"suspending VM {vm.name} on {self._bench.facts.name}"
        room.check_quotas(new, vm, doing)
        capacity.check_grows(new, vm, room.promised, room.vms, doing)
        return await self._vms.update(vm, state=VmState.SUSPENDING, suspended=suspension)

    async def _hold(self, vm: VM, to: SuspendTo) -> VM:
        await self._holding.freeze(vm)
        steps.step("suspend.frozen")
        if to is SuspendTo.DISK:
            await self._holding.save(as_started(vm))
            steps.step("suspend.saved")
        return await self._vms.update(
            vm, state=after(VmState.SUSPENDING, Happening.ENDED), want=Want.SUSPENDED
        )

    async def _undo(self, vm: VM, why: str) -> None:
        await self._holding.thaw(vm)
        await self._holding.forget(vm)
        running = after(VmState.SUSPENDING, Happening.FAILED)
        await self._vms.update(vm, state=running, suspended=None, reason=why)

    async def _go_on(self, vm: VM) -> VM:
        """From memory."""
        vm = await self._vms.update(vm, state=VmState.RESUMING, want=Want.RUNNING)
        steps.step("resume.noted")
        try:
            await self._holding.thaw(vm)
        except AtollError as error:
            await self._vms.update(vm, state=VmState.SUSPENDED, want=Want.SUSPENDED, reason=error.brief)
            raise
        steps.step("resume.thawed")
        vm = await self._vms.update(vm, state=VmState.RUNNING, suspended=None)
        steps.step("resume.running")
        return vm

    async def _restore(self, vm: VM) -> VM:
        """From disk. It asks for room again, as if it were new."""
        self._bench.holdings.check_not_drained(f"resuming VM {vm.name}")
        room, doing = self._bench.room(), f"resuming VM {vm.name} on {self._bench.facts.name}"
        coming = structs.replace(vm, state=VmState.RESUMING)
        room.check_quotas(coming, vm, doing)
        capacity.check_grows(coming, vm, room.promised, room.vms, doing)
        vm = await self._vms.update(vm, state=VmState.RESUMING)
        try:
            steps.step("restore.noted")
            await self._holding.restore(as_started(vm))
            steps.step("restore.restored")
            running = {"want": Want.RUNNING, "boot_id": self._bench.facts.boot_id, "suspended": None}
            vm = await self._vms.update(vm, state=VmState.RUNNING, **running)
        except BaseException as error:
            if self._vms.current(vm).state is VmState.RESUMING:
                await aside.whole(self._back_to_disk(vm, str(error)))
            raise
        steps.step("restore.running")
        await aside.whole(self._leave_disk(vm))
        await self._set_clock(vm)
        return vm

    async def _back_to_disk(self, vm: VM, why: str) -> None:
        await self._machines.halt(vm)
        suspended = after(VmState.RESUMING, Happening.FAILED)
        await self._vms.update(vm, state=suspended, reason=f"resuming it failed: {why}")

    async def _leave_disk(self, vm: VM) -> None:
        await self._holding.thaw(vm)
        steps.step("restore.thawed")
        self._machines.limit(vm, starting=False)
        await self._holding.forget(vm)
        steps.step("restore.forgotten")

    async def _note_suspended(self, vm: VM) -> None:
        if vm.state is not VmState.SUSPENDED:
            await self._vms.update(vm, state=VmState.SUSPENDED)

    async def _set_clock(self, vm: VM) -> None:
        """A guest with a kernel of its own does not know how long it stood still, unless somebody tells it."""
        if vm.driver not in self._machines.hardware_kinds():
            return
        done = await run_in(
            self._machines, vm, "date", "-u", "-s", f"@{clock.now().timestamp():.0f}", timeout_s=CLOCK_S
        )
        if not done.worked:
            log.info("VM %s %s: its clock could not be set: %s", vm.ip, vm.name, done.said)


def vm_memory_on_disk_mib(vm: VM) -> int:
    """The most that the memory of a VM takes on disk: all of it, and its devices. Pure."""
    own = max(vm.memory_mib, vm.running.memory_mib if vm.running is not None else 0)
    return own + max(16, own // 64)


def _check_same(vm: VM, to: SuspendTo) -> None:
    now = vm.suspended.to if vm.suspended is not None else to
    if now is not to:
        raise Conflict(
            f"cannot suspend VM {vm.name} to {to}: it is suspended to {now}",
            hint=f"let it go on first: atoll vm resume {vm.name}",
            details={"state": str(vm.state), "to": str(now)},
        )
