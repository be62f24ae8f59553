"""At start-up: find what runs, compare it with the records, finish or undo what was under way.

Nothing here keeps a node from starting: what cannot be put right is logged, and left for the next start. What takes
long is left for when the node serves: VMs that a reboot of the host ended are started again then, a few at a time.

Effects: through the parts of the service. The decisions are in atoll.plan.recovery.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Collection, Iterator
from typing import Protocol

from atoll.drivers.machine.base import Exit, Seen
from atoll.errors import AtollError
from atoll.hypervisor.vms.changes import with_volumes
from atoll.hypervisor.vms.creator import Creator
from atoll.hypervisor.vms.exits import Exits
from atoll.hypervisor.vms.life import Life
from atoll.hypervisor.vms.lost_links import LostLinks
from atoll.hypervisor.vms.records import Record
from atoll.hypervisor.vms.stalls import Stalls
from atoll.hypervisor.vms.suspensions import Suspensions
from atoll.hypervisor.vms.workbench import Workbench
from atoll.model.lifecycle import DOWN
from atoll.model.vm import VM, SuspendTo, VmState
from atoll.plan.recovery import Remedy, Want, remedy
from atoll.system import aside, cgroups, steps

log = logging.getLogger(__name__)


class Recovering(Protocol):
    """The parts of a Hypervisor that finish or undo what was under way."""

    creator: Creator
    life: Life
    exits: Exits
    lost_links: LostLinks
    stalls: Stalls
    suspensions: Suspensions

    async def sweep(self) -> None: ...

    def begin(self) -> None: ...


RELAUNCHES_PER_CORE = 2


async def recover(service: Recovering, bench: Workbench, cgroup: str) -> None:
    """Bring every VM of the records to where it should be. One that cannot be is logged and left."""
    machines, boot_id = bench.machines, bench.facts.boot_id
    # Looked for all at once, since a monitor may be slow to answer; handled in turn, since a start costs CPU.
    kept = list(bench.vms.records())
    found = await asyncio.gather(*(machines.seen(record.vm) for record in kept), return_exceptions=True)
    steps.step("recovery.seen")
    actions = [_action(record, seen, boot_id) for record, seen in zip(kept, found, strict=True)]
    running = [record.vm for record, action in zip(kept, actions, strict=True) if action is Remedy.ADOPT]
    # Together, because that is much quicker; if it fails, each of them is tried by itself.
    with _logged("giving VMs back their places in the network, all at once"):
        await machines.plug(*running)
    for record, seen, action in zip(kept, found, actions, strict=True):
        with _logged(f"VM {record.vm.ip} {record.vm.name} cannot be recovered, and is left"):
            await _recover_one(service, bench, record.vm, seen, action)
        steps.step("recovery.one")
    with _logged("looking for ports of no VM"):
        await service.sweep()
    for vm in bench.vms.list():
        with _logged(f"VM {vm.ip} {vm.name}: forgetting volumes that were never whole"):
            if not all(volume.made for volume in vm.volumes):
                made = tuple(volume for volume in vm.volumes if volume.made)
                await bench.vms.update(vm, **with_volumes(vm, made))
    service.begin()
    steps.step("recovery.begun")
    for group in _orphans(cgroup, bench.vms.keys()):
        log.warning("cgroup %s belongs to no VM: removed", group)
        with _logged(f"removing cgroup {group}"):
            await aside.run(cgroups.kill_all, group)
            await aside.run(cgroups.remove, group)
    steps.step("recovery.done")


def _orphans(cgroup: str, keys: Collection[str]) -> list[str]:
    """The groups of machines, which are below those of their kinds, that are at no VM's address."""
    kinds = [f"{cgroup}/{kind}" for kind in cgroups.children(cgroup)]
    return [f"{kind}/{ip}" for kind in sorted(kinds) for ip in sorted(cgroups.children(kind) - set(keys))]


def _action(record: Record, seen: Seen | BaseException | None, boot_id: str) -> Remedy | None:
    """What becomes of it; None when nobody knows what it is, or whether it runs."""
    if isinstance(seen, BaseException) or record.vm.state is VmState.DAMAGED:
        return None
    return remedy(
        committed=record.committed,
        want=record.want,
        noted=record.vm.state in DOWN,
        running=seen is not None and seen.exit is None,
        exited=seen is not None and seen.exit is not None,
        same_boot=record.boot_id == boot_id,
        on_disk=record.vm.suspended is not None and record.vm.suspended.to is SuspendTo.DISK,
    )


async def relaunch_all(life: Life, bench: Workbench) -> None:
    """Start the VMs that wait for it since the host was rebooted: in parallel, since most of a start is the guest's
    own work, but not all at once. May be repeated: those whose turn has come are left alone. One that fails does not
    keep the others; it is the failure in the end."""
    turns = asyncio.Semaphore(RELAUNCHES_PER_CORE * max(1, bench.facts.cores))

    async def one(vm: VM) -> None:
        async with turns:
            steps.step("relaunch.begun")
            await life.relaunch(vm)

    waiting = [
        record.vm
        for record in bench.vms.records()
        if record.want is Want.RUNNING and record.vm.state is not VmState.DAMAGED
    ]
    ends = await asyncio.gather(*(one(vm) for vm in waiting), return_exceptions=True)
    for error in ends:
        if error is not None:
            raise error


async def _recover_one(
    service: Recovering, bench: Workbench, vm: VM, seen: Seen | BaseException | None, action: Remedy | None
) -> None:
    if isinstance(seen, BaseException):
        raise seen
    if action is None:
        # Nobody knows what it is: it is left as it is found. What runs of it keeps its place in the network.
        if seen is not None and seen.exit is None:
            await bench.machines.adopt(vm)
        return
    log.info("VM %s %s: %s", vm.ip, vm.name, action)
    await _take(service, action, vm, seen)


async def _take(service: Recovering, action: Remedy, vm: VM, seen: Seen | None) -> None:
    match action:
        case Remedy.UNDO:
            await service.creator.undo(vm)
            steps.step("recovery.undone")
        case Remedy.FINISH_DESTROY:
            await service.life.finish_destroy(vm)
        case Remedy.FINISH_STOP | Remedy.NOTE_STOPPED:
            await service.life.finish_stop(vm)
        case Remedy.NOTE_EXIT:
            await service.exits.found(vm, (seen.exit if seen else None) or Exit.CRASHED)
        case Remedy.NOTE_CRASH:
            await service.exits.found(vm, Exit.CRASHED)
        case Remedy.ADOPT:
            await service.life.adopt(vm, held=seen is not None and seen.frozen)
            await service.lost_links.note(vm, seen)
            service.stalls.note(vm, seen is not None and seen.stalled)
        case Remedy.KEEP_HELD:
            await service.suspensions.keep_held(vm)
        case Remedy.KEEP_ON_DISK:
            await service.suspensions.keep_on_disk(vm)
        case Remedy.NOTE_LOST:
            await service.suspensions.note_lost(vm)
        case Remedy.RELAUNCH:
            await service.life.await_turn(vm)
        case Remedy.LEAVE:
            await service.exits.release(vm)


@contextlib.contextmanager
def _logged(doing: str) -> Iterator[None]:
    """A failure is logged, and not the end."""
    try:
        yield
    except (AtollError, OSError) as error:
        log.error("%s: %s", doing, error)
