"""A node and what it has to give. Pure values."""

from __future__ import annotations

from msgspec import Struct

from atoll.model.checks import Ip
from atoll.model.network import Address, Subnet


class Capacity(Struct, frozen=True):
    """An amount of everything that VMs consume."""

    milli_cpus: int
    memory_mib: int
    disk_mib: int

    def minus(self, other: Capacity) -> Capacity:
        return Capacity(
            milli_cpus=self.milli_cpus - other.milli_cpus,
            memory_mib=self.memory_mib - other.memory_mib,
            disk_mib=self.disk_mib - other.disk_mib,
        )


class DriverInfo(Struct, frozen=True):
    """A machine driver that this node can use, and how it confines what it runs."""

    name: str
    capabilities: tuple[str, ...]
    accelerator: str = ""
    overhead_mib: int | None = None
    """Memory of a machine beside its guest's own. None: this kind runs nothing on the host."""
    confinement: dict[str, str] = {}


class Pool(Struct, frozen=True):
    """A subnet of this node with the addresses that are free in it."""

    subnet: Subnet
    free: tuple[Address, ...]
    used: int


class Node(Struct, frozen=True):
    """A machine that runs a Hypervisor."""

    ip: Ip
    name: str
    version: str
    boot_id: str
    total: Capacity
    free: Capacity
    drivers: tuple[DriverInfo, ...]
    pools: tuple[Pool, ...]
    vms: dict[str, int]
    owner_users: tuple[str, ...] = ()
    owner_groups: tuple[str, ...] = ()
