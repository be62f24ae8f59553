"""At start-up: find what runs, compare it with the records, finish or undo what was under way.

Effects: through the service. The decisions are in atoll.plan.recovery.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from atoll.drivers.machine.base import Exit, Seen
from atoll.errors import AtollError
from atoll.hypervisor.machines import Machines
from atoll.hypervisor.records import Record
from atoll.hypervisor.service import Hypervisor
from atoll.model.lifecycle import DOWN
from atoll.model.vm import VM, VmState
from atoll.plan.recovery import Step, step
from atoll.system import cgroups, steps

log = logging.getLogger(__name__)


async def recover(
    service: Hypervisor, machines: Machines, records: Mapping[str, Record], boot_id: str, cgroup: str
) -> None:
    """Bring every VM of the records to where it should be. One that cannot be is logged and left."""
    # Looked for all at once, since a monitor may be slow to answer; handled in turn, since a start costs CPU.
    vms = list(records.values())
    seen = await asyncio.gather(*(machines.seen(record.vm) for record in vms), return_exceptions=True)
    steps.step("recovery.seen")
    for record, found in zip(vms, seen, strict=True):
        await _recover_one(service, record, found, boot_id)
        steps.step("recovery.one")
    await service.sweep()
    service.begin()
    steps.step("recovery.begun")
    for orphan in cgroups.children(cgroup) - service.held():
        log.warning("cgroup %s/%s belongs to no VM: removed", cgroup, orphan)
        cgroups.kill_all(f"{cgroup}/{orphan}")
        cgroups.remove(f"{cgroup}/{orphan}")
        await service.clear(orphan)
    steps.step("recovery.done")


async def _recover_one(
    service: Hypervisor, record: Record, seen: Seen | BaseException | None, boot_id: str
) -> None:
    vm = record.vm
    try:
        if isinstance(seen, BaseException):
            raise seen
        if vm.state is VmState.DAMAGED:
            await service.keep_damaged(vm, seen is not None and seen.exit is None)
            return
        action = step(
            committed=record.committed,
            want=record.want,
            noted=vm.state in DOWN,
            running=seen is not None and seen.exit is None,
            exited=seen is not None and seen.exit is not None,
            same_boot=record.boot_id == boot_id,
        )
        log.info("VM %s %s: %s", vm.ip, vm.name, action)
        await _take(service, action, vm, seen)
    except (AtollError, OSError) as error:
        log.error("VM %s %s cannot be recovered, and is left: %s", vm.ip, vm.name, error)


async def _take(service: Hypervisor, action: Step, vm: VM, seen: Seen | None) -> None:
    match action:
        case Step.UNDO:
            await service.undo_create(vm)
            steps.step("recovery.undone")
        case Step.FINISH_DESTROY:
            await service.finish_destroy(vm)
        case Step.FINISH_STOP | Step.NOTE_STOPPED:
            await service.finish_stop(vm)
        case Step.NOTE_EXIT:
            await service.note_down(vm, (seen.exit if seen else None) or Exit.CRASHED)
        case Step.NOTE_CRASH:
            await service.note_down(vm, Exit.CRASHED)
        case Step.ADOPT:
            await service.adopt(vm)
        case Step.RELAUNCH:
            await service.relaunch(vm)
        case Step.LEAVE:
            await service.finish_exit(vm)
