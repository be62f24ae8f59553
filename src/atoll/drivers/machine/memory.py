"""Memory of machines that have the host's kernel: it is a limit of their cgroup. Writes there."""

from __future__ import annotations

import asyncio

from atoll.drivers.machine.base import Machine
from atoll.errors import Conflict
from atoll.system import cgroups


async def hold_to(machine: Machine, overhead_mib: int) -> None:
    """Hold a running machine to its memory from now on. Conflict when it uses more than that."""
    # In a thread: what it has cached is written out and given back first, which can take its time.
    if not await asyncio.to_thread(cgroups.resize_memory, machine.cgroup, machine.memory_mib + overhead_mib):
        used_mib = cgroups.usage(machine.cgroup).memory_mib
        raise Conflict(
            f"machine {machine.name}: it uses {used_mib} MiB of memory and cannot be held to {machine.memory_mib}",
            hint="end something in it first, or stop the VM and change it then",
        )
