"""Whether a VM fits on a node. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from atoll.errors import NoCapacity
from atoll.model.node import Capacity
from atoll.model.size import show_mib
from atoll.model.vm import VM


def demand(vm: VM) -> Capacity:
    """What a VM counts for, stopped ones too: they may be started at any time."""
    disk_mib = sum(volume.size_mib for volume in vm.volumes)
    return Capacity(milli_cpus=vm.milli_cpus, memory_mib=vm.memory_mib, disk_mib=disk_mib)


def free(total: Capacity, vms: Iterable[VM]) -> Capacity:
    """What is left of a node."""
    left = total
    for vm in vms:
        left = left.minus(demand(vm))
    return left


def check_fits(wanted: Capacity, left: Capacity, node: str) -> None:
    """Refuse what does not fit, and say what is free."""
    short = [
        f"{name} {_show(name, asked)} of {_show(name, max(there, 0))} free"
        for name, asked, there in (
            ("memory", wanted.memory_mib, left.memory_mib),
            ("cpus", wanted.milli_cpus, left.milli_cpus),
            ("disk", wanted.disk_mib, left.disk_mib),
        )
        if asked > there
    ]
    if short:
        raise NoCapacity(
            f"creating a VM on {node}: not enough left: {', '.join(short)}",
            hint="ask for less, destroy a VM, or use another node; see: atoll node show",
            details={
                "free": {
                    "memory_mib": left.memory_mib,
                    "milli_cpus": left.milli_cpus,
                    "disk_mib": left.disk_mib,
                }
            },
        )


def _show(name: str, amount: int) -> str:
    return f"{amount / 1000:g}" if name == "cpus" else show_mib(amount)
