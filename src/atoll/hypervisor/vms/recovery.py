"""At start-up: find what runs, compare it with the records, finish or undo what was under way.

Nothing here keeps a node from starting: what cannot be put right is logged, and left for the next start.

Effects: through the service. The decisions are in atoll.plan.recovery.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Collection, Iterator, Mapping

from atoll.drivers.machine.base import Exit, Seen
from atoll.errors import AtollError
from atoll.hypervisor.launch.machines import Machines
from atoll.hypervisor.service import Hypervisor
from atoll.hypervisor.vms.records import Record
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
    kept = list(records.values())
    found = await asyncio.gather(*(machines.seen(record.vm) for record in kept), return_exceptions=True)
    steps.step("recovery.seen")
    actions = [_action(record, seen, boot_id) for record, seen in zip(kept, found, strict=True)]
    running = [record.vm for record, action in zip(kept, actions, strict=True) if action is Step.ADOPT]
    # Together, because that is much quicker; if it fails, each of them is tried by itself.
    with _logged("giving VMs back their places in the network, all at once"):
        await machines.plug(*running)
    for record, seen, action in zip(kept, found, actions, strict=True):
        with _logged(f"VM {record.vm.ip} {record.vm.name} cannot be recovered, and is left"):
            await _recover_one(service, record.vm, seen, action)
        steps.step("recovery.one")
    with _logged("looking for ports of no VM"):
        await service.sweep()
    service.begin()
    steps.step("recovery.begun")
    for group in _orphans(cgroup, service.held()):
        log.warning("cgroup %s belongs to no VM: removed", group)
        with _logged(f"removing cgroup {group}"):
            cgroups.kill_all(group)
            cgroups.remove(group)
            await service.clear(group.rpartition("/")[2])
    steps.step("recovery.done")


def _orphans(cgroup: str, held: Collection[str]) -> list[str]:
    """The groups of machines, which are below those of their kinds, that are at no VM's address."""
    kinds = [f"{cgroup}/{kind}" for kind in cgroups.children(cgroup)]
    return [f"{kind}/{ip}" for kind in sorted(kinds) for ip in sorted(cgroups.children(kind) - set(held))]


def _action(record: Record, seen: Seen | BaseException | None, boot_id: str) -> Step | None:
    """What becomes of it; None when nobody knows what it is, or whether it runs."""
    if isinstance(seen, BaseException) or record.vm.state is VmState.DAMAGED:
        return None
    return step(
        committed=record.committed,
        want=record.want,
        noted=record.vm.state in DOWN,
        running=seen is not None and seen.exit is None,
        exited=seen is not None and seen.exit is not None,
        same_boot=record.boot_id == boot_id,
    )


async def _recover_one(
    service: Hypervisor, vm: VM, seen: Seen | BaseException | None, action: Step | None
) -> None:
    if isinstance(seen, BaseException):
        raise seen
    if action is None:
        await service.keep_damaged(vm, seen is not None and seen.exit is None)
        return
    log.info("VM %s %s: %s", vm.ip, vm.name, action)
    await _take(service, action, vm, seen)


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
            await service.exits.found(vm, (seen.exit if seen else None) or Exit.CRASHED)
        case Step.NOTE_CRASH:
            await service.exits.found(vm, Exit.CRASHED)
        case Step.ADOPT:
            await service.adopt(vm, seen.lost if seen else ())
        case Step.RELAUNCH:
            await service.relaunch(vm)
        case Step.LEAVE:
            await service.finish_exit(vm)


@contextlib.contextmanager
def _logged(doing: str) -> Iterator[None]:
    """A failure is logged, and not the end."""
    try:
        yield
    except (AtollError, OSError) as error:
        log.error("%s: %s", doing, error)
