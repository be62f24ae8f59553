"""Whether a VM fits on a node. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable

from msgspec import Struct, structs

from atoll.errors import NoCapacity
from atoll.model.node import MAX_OVERCOMMIT, Capacity, Overcommit
from atoll.model.size import show_mib
from atoll.model.vm import VM


class Promised(Struct, frozen=True):
    """What VMs may be given of a node, and how often that promises what there is."""

    total: Capacity
    ratio: Overcommit = Overcommit()


def overcommitted(there: Capacity, ratio: Overcommit) -> Capacity:
    """What VMs may be given of what there is. Disk is never promised twice."""
    return Capacity(
        int(there.milli_cpus * ratio.cpus), int(max(0, there.memory_mib) * ratio.memory), there.disk_mib
    )


def demand(vm: VM) -> Capacity:
    """What a VM counts for, stopped ones too: they may be started at any time. One that is suspended to disk counts
    for what it takes there, and asks for the rest again when it is resumed."""
    disk_mib = sum(volume.size_mib for volume in vm.volumes if not volume.in_memory)
    disk_mib += vm.suspended.disk_mib if vm.suspended is not None else 0
    if vm.is_on_disk:
        return Capacity(milli_cpus=0, memory_mib=0, disk_mib=disk_mib)
    return Capacity(milli_cpus=vm.milli_cpus, memory_mib=memory_mib(vm), disk_mib=disk_mib)


def memory_mib(vm: VM) -> int:
    """The guest's own, the larger of what it has and what it will have, and its disks in memory."""
    own = max(vm.memory_mib, vm.running.memory_mib if vm.running else 0)
    return own + sum(volume.size_mib for volume in vm.volumes if volume.in_memory)


def at_most(now: VM, coming: VM) -> VM:
    """A VM that is being changed, with the more of what it has and what it will have: what it counts for meanwhile."""
    volumes = {volume.name: volume for volume in now.volumes}
    for volume in coming.volumes:
        other = volumes.get(volume.name)
        if other is None or volume.size_mib >= other.size_mib:
            volumes[volume.name] = volume
    return structs.replace(
        coming,
        memory_mib=max(now.memory_mib, coming.memory_mib),
        milli_cpus=max(now.milli_cpus, coming.milli_cpus),
        volumes=tuple(volumes.values()),
        owner_users=tuple(dict.fromkeys((*coming.owner_users, *now.owner_users))),
        owner_groups=tuple(dict.fromkeys((*coming.owner_groups, *now.owner_groups))),
    )


def free(total: Capacity, vms: Iterable[VM]) -> Capacity:
    """What is left of a node."""
    left = total
    for vm in vms:
        left = left.minus(demand(vm))
    return left


def check_grows(new: VM, old: VM, promised: Promised, vms: Iterable[VM], doing: str) -> None:
    """Refuse a change that asks for more than is left; one that asks for no more always fits."""
    more = demand(new).minus(demand(old))
    check_fits(more, free(promised.total, vms), doing, promised)


def check_fits(wanted: Capacity, left: Capacity, doing: str, promised: Promised | None = None) -> None:
    """Refuse what does not fit, say what is free, and how an operator could promise more."""
    short = [
        f"{name} {_show(name, asked)} of {_show(name, max(there, 0))} free"
        for name, asked, there in (
            ("memory", wanted.memory_mib, left.memory_mib),
            ("cpus", wanted.milli_cpus, left.milli_cpus),
            ("disk", wanted.disk_mib, left.disk_mib),
        )
        if asked > max(there, 0)
    ]
    if short:
        raise NoCapacity(
            f"{doing}: not enough left: {', '.join(short)}",
            hint="ask for less, destroy a VM (those that are stopped count too), or use another node;"
            f" see: atoll node show{_more_often(wanted, left, promised) if promised else ''}",
            details={
                "free": {
                    "memory_mib": left.memory_mib,
                    "milli_cpus": left.milli_cpus,
                    "disk_mib": left.disk_mib,
                }
            },
        )


def _more_often(wanted: Capacity, left: Capacity, promised: Promised) -> str:
    """How often CPUs and memory would have to be promised, for those that are short."""
    total, ratio = promised.total, promised.ratio
    said = ""
    for what, option, times, asked, there, whole in (
        ("CPUs", "cpu", ratio.cpus, wanted.milli_cpus, left.milli_cpus, total.milli_cpus),
        ("memory", "memory", ratio.memory, wanted.memory_mib, left.memory_mib, total.memory_mib),
    ):
        if asked <= max(0, there) or not whole:
            continue
        said += f"; its {what} may be promised {times:g} times"
        enough = math.ceil(10 * times * (whole - there + asked) / whole) / 10
        if enough <= MAX_OVERCOMMIT:
            said += f", and an operator can change that: atoll node change --{option}-overcommit {enough:g}"
    return said


def _show(name: str, amount: int) -> str:
    return f"{amount / 1000:g}" if name == "cpus" else show_mib(amount)
