"""A node and what it has to give. Pure values."""

from __future__ import annotations

from msgspec import Struct

from atoll.errors import Invalid
from atoll.model.checks import Ip
from atoll.model.network import Address, Subnet
from atoll.model.volume import StoreInfo, Unclaimed

MAX_OVERCOMMIT = 64


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


class Overcommit(Struct, frozen=True, forbid_unknown_fields=True):
    """How many times what there is may be promised. Disk never is."""

    cpus: float = 1.0
    memory: float = 1.0

    def __post_init__(self) -> None:
        for name, ratio in (("cpus", self.cpus), ("memory", self.memory)):
            if not 1 <= ratio <= MAX_OVERCOMMIT:
                raise Invalid(f"overcommit {name}", ratio, f"must be from 1 to {MAX_OVERCOMMIT}")


class DriverInfo(Struct, frozen=True):
    """A machine driver that this node can use, and how it confines what it runs."""

    name: str
    capabilities: tuple[str, ...]
    accelerator: str = ""
    overhead_mib: int | None = None
    """Memory of a machine beside its guest's own. None: this kind runs nothing on the host."""
    max_processes: int = 128
    """Processes and threads of a machine, on the host: those of a guest too where it has the host's kernel."""
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
    drained: bool = False
    """No VM is made or started here."""
    stores: tuple[StoreInfo, ...] = ()
    overcommit: Overcommit = Overcommit()
    templates: int = 0
    """Of which forks can be made just now."""
    pooled: int = 0
    """Machines of the hot pool that wait to become VMs. Their memory is not free, until a VM needs it."""
    record_format: int = 0
    """Of what the agent keeps on disk; 0: not told."""
    unclaimed: tuple[Unclaimed, ...] = ()
    """What was found in stores and is no VM's, as far as it is not too much to be told."""
