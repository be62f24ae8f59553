"""The life of a VM that is there: start, stop, reboot, destroy, and what a new agent does about each.

Effects: through the inventory, machines and stores. Which state allows what is in atoll.model.lifecycle.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator

from atoll.api.hypervisor import Progress, Wait
from atoll.api.route import Done
from atoll.errors import AtollError, Conflict
from atoll.hypervisor.vms.awaited_exits import AwaitedExits
from atoll.hypervisor.vms.permits import Permit
from atoll.hypervisor.vms.stages import Stages
from atoll.hypervisor.vms.suspensions import Suspensions
from atoll.hypervisor.vms.workbench import Workbench
from atoll.model.lifecycle import HELD, Action, begin, check_not_protected
from atoll.model.vm import VM, VmState
from atoll.plan.recovery import Want
from atoll.system import aside, clock, steps

log = logging.getLogger(__name__)

GRACE_S = 15.0
REBOOTED = "the host was rebooted; it is started again in its turn"


class Life:
    """One thing at a time is done to a VM: the methods for callers take its lock, the others expect it."""

    def __init__(
        self, bench: Workbench, stages: Stages, awaited: AwaitedExits, suspensions: Suspensions
    ) -> None:
        self._bench = bench
        self._vms = bench.vms
        self._machines = bench.machines
        self._stages = stages
        self._awaited = awaited
        self._suspensions = suspensions

    # --- for callers

    async def start(self, permit: Permit, wait: Wait) -> AsyncGenerator[Progress | Done[VM], None]:
        """Start a VM that is down. One that runs already is a success."""
        async with self._vms.alone_with(permit) as vm:
            was_down = begin(Action.START, vm.name, vm.state) is not None
            if was_down:
                self._bench.holdings.check_not_drained(f"starting VM {vm.name}")
                await self.launch(vm, restarted_at=())
        if not was_down:
            yield Done(vm)
            return
        async with contextlib.aclosing(self._stages.follow(vm, wait)) as lines:
            async for line in lines:
                yield line

    async def stop(self, permit: Permit, grace_s: float) -> VM:
        """Ask the guest to power down, then end it. One that is down already is a success."""
        async with self._vms.alone_with(permit) as vm:
            if vm.is_on_disk and grace_s > 0:
                raise Conflict(
                    f"cannot stop VM {vm.name}: it is suspended to disk, and cannot hear that it is to power down",
                    hint=f"let it go on first: atoll vm resume {vm.name};"
                    f" or end it without its memory: atoll vm stop --force {vm.name}",
                    details={"state": str(vm.state), "action": str(Action.STOP)},
                )
            if begin(Action.STOP, vm.name, vm.state) is None:
                if self._vms.record(vm).want is not Want.RUNNING:
                    return vm
                # It would have been started again, by a policy or after a reboot of the host.
                return await self._vms.update(vm, want=Want.STOPPED, restart_at=None)
            return await self._stop(vm, grace_s)

    async def reboot(self, permit: Permit, wait: Wait) -> AsyncGenerator[Progress | Done[VM], None]:
        """Shut the guest down and start it again."""
        async with self._vms.alone_with(permit) as vm:
            begin(Action.REBOOT, vm.name, vm.state)
            self._bench.holdings.check_not_drained(f"starting VM {vm.name} again")
            await self._stop(vm, GRACE_S)
            await self.launch(vm)
        async with contextlib.aclosing(self._stages.follow(vm, wait)) as lines:
            async for line in lines:
                yield line

    async def destroy(self, permit: Permit) -> None:
        """End it and remove all that is its own. One that goes while we wait for our turn is a success."""
        vm = permit.vm
        async with self._vms.lock(vm):
            if self._vms.holds(vm):
                check_not_protected(self._vms.permitted(permit))
                await self.finish_destroy(vm)

    # --- for policies, and for those above

    async def launch(self, vm: VM, reason: str = "", **changes: object) -> None:
        """Start a VM that is down, and note why it runs and what else has changed."""
        self._stages.begin(vm)
        begun = {"want": Want.RUNNING, "boot_id": self._bench.facts.boot_id, "restart_at": None}
        launched = False
        try:
            vm = await self._vms.update(vm, state=VmState.STARTING, ready={}, **begun, **changes)
            steps.step("start.noted")
            started_by = await self._machines.launch(vm)
            launched = True
            steps.step("start.launched")
            self._stages.started(vm)
            await self._vms.update(vm, state=VmState.RUNNING, started_by=started_by, reason=reason)
        except asyncio.CancelledError:
            # Once it runs, all that is left is a change, which is made to its end.
            if not launched:
                await self._give_up(vm, "interrupted")
            raise
        except BaseException as error:
            if self._vms.current(vm).state is VmState.STARTING:
                await self._give_up(vm, str(error))
            raise
        steps.step("start.running")

    async def _give_up(self, vm: VM, why: str) -> None:
        """It could not be started. What cannot be ended of it is ended by the next stop."""
        try:
            await self._machines.halt(vm)
        except AtollError as error:
            left = f"{why}; ending what is left of it: {error.brief}"
            await self._vms.update(vm, state=VmState.STOPPING, want=Want.STOPPED, reason=left)
            raise
        await self._vms.update(vm, state=VmState.FAILED_TO_START, reason=why)

    async def _stop(self, vm: VM, grace_s: float) -> VM:
        await self._vms.update(vm, state=VmState.STOPPING, want=Want.STOPPED)
        steps.step("stop.noted")
        if vm.state in HELD and grace_s > 0:
            await self._suspensions.wake(vm)
        obeyed = grace_s > 0 and await self._power_down(vm, grace_s)
        steps.step("stop.asked")
        await self._machines.halt(vm)
        await self._suspensions.forget(vm)
        steps.step("stop.halted")
        reason = "" if obeyed else "ended by force" + (f" after {grace_s:g} s" if grace_s else "")
        vm = await self._vms.update(vm, state=VmState.STOPPED, reason=reason)
        steps.step("stop.stopped")
        return vm

    async def _power_down(self, vm: VM, grace_s: float) -> bool:
        """Whether the guest went by itself in time."""
        with self._awaited.until_end_of(vm) as end:
            try:
                # The asking counts: a machine that hangs does not even take it.
                async with asyncio.timeout(grace_s):
                    await self._machines.driver(vm.driver).power_down(self._machines.machine(vm))
                    await end
            except Conflict:
                pass  # it had gone before it could be asked
            except (TimeoutError, AtollError) as error:
                log.info("VM %s did not power down: %s", vm.ip, error)
                return False
        return True

    async def finish_destroy(self, vm: VM, why: str = "") -> None:
        """The record goes last: killed half-way, this is done again at start-up."""
        await self._vms.update(vm, state=VmState.DESTROYING, want=Want.GONE, reason=why)
        steps.step("destroy.noted")
        await self._machines.remove(vm)
        steps.step("destroy.halted")
        await aside.run(self._bench.stores.discard, vm.ip)
        steps.step("destroy.discarded")
        await self._vms.forget(vm)
        steps.step("destroy.forgotten")

    # --- for recovery

    async def await_turn(self, vm: VM) -> None:
        """The host was rebooted under it: it waits to be started again. On a drained node, until that is over."""
        if self._bench.holdings.drained:
            reason = "the host was rebooted, and the node is drained"
            await self._vms.update(vm, state=VmState.STOPPED, reason=reason, restart_at=clock.now())
        else:
            await self._vms.update(vm, state=VmState.STOPPED, reason=REBOOTED)

    async def relaunch(self, vm: VM) -> None:
        """Its turn has come, unless somebody started, stopped or destroyed it since."""
        async with self._vms.lock(vm):
            if not self._vms.holds(vm):
                return
            record = self._vms.record(vm)
            if record.want is not Want.RUNNING or record.boot_id == self._bench.facts.boot_id:
                return
            try:
                await self.launch(record.vm)
            except asyncio.CancelledError:
                # The agent is told to stop: the next one goes on.
                await self._vms.update(vm, boot_id=record.boot_id, state=VmState.STOPPED, reason=REBOOTED)
                raise

    async def adopt(self, vm: VM, *, held: bool = False) -> None:
        """It ran on while there was no agent. `held`: it is wanted running, and stands still."""
        self._stages.resume(vm)
        await self._machines.adopt(vm)
        await self._suspensions.let_run(vm, held=held)

    async def finish_stop(self, vm: VM) -> None:
        """An earlier agent was asked to stop it. Nothing is told anew of one that is stopped already."""
        await self._machines.halt(vm)
        await self._suspensions.forget(vm)
        if vm.state is not VmState.STOPPED:
            await self._vms.update(vm, state=VmState.STOPPED)
