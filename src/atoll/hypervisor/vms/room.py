"""What a node is and what it has to offer, as far as VMs are concerned. Pure values."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from msgspec import Struct

from atoll.identity.access import Operators
from atoll.identity.roles import RoleCallers
from atoll.model.node import Capacity, DriverInfo, Overcommit
from atoll.model.quota import Quotas
from atoll.model.share import Share
from atoll.model.vm import VM
from atoll.model.volume import Volume
from atoll.plan import quotas
from atoll.plan.addresses import Given, Place
from atoll.plan.capacity import Promised
from atoll.plan.policies import Backoff
from atoll.plan.volumes import Space

DEFAULT_ROOT_MIB = 1024


class NodeFacts(Struct, frozen=True):
    """What does not change while the agent runs."""

    name: str
    ip: str
    boot_id: str
    there: Capacity
    """What VMs may be given of the host, each piece once. How often it may be promised is `Workbench.overcommit`."""
    operators: Operators
    drivers: tuple[DriverInfo, ...]
    has_roles: bool = False
    """Whether VMs can be given roles: somebody issues their credentials."""
    role_callers: RoleCallers = RoleCallers()
    takes_credentials: bool = False
    """Whether that issuer takes the credential that a VM comes with."""
    cores: int = 0
    overcommit: Overcommit = Overcommit()
    """That of its configuration."""
    backoff: Backoff = Backoff()
    root_mib: int = DEFAULT_ROOT_MIB
    """The size of a root that nobody asked for."""
    acknowledge_within_s: float = 15.0
    """How long a creator that said it would has to acknowledge the VM that it was given."""


class Room(Struct, frozen=True):
    """What a node has at this moment."""

    node: str
    operators: Operators
    total: Capacity
    vms: tuple[VM, ...]
    given: Given
    held: Collection[Place]
    """Addresses that are in use."""
    freed: dict[Place, int]
    """When addresses were given back, as a count: the later the larger."""
    has_roles: bool = False
    """Somebody issues credentials for the roles of VMs here."""
    role_callers: RoleCallers = RoleCallers()
    takes_credentials: bool = False
    """And takes the credential that a VM comes with."""
    cores: int = 0
    """Those of the host; none given: as many as there are CPUs to promise."""
    spaces: tuple[Space, ...] = ()
    """Stores for volumes."""
    disk_kinds: frozenset[str] = frozenset()
    """Kinds of machine that take disks."""
    screen_kinds: frozenset[str] = frozenset()
    """Kinds of machine that can have a screen."""
    hardware_kinds: frozenset[str] = frozenset()
    """Kinds of machine that have a kernel and devices of their own."""
    memory_kinds: frozenset[str] = frozenset()
    """Kinds of machine whose memory is a limit, which can change while they run."""
    root_kinds: frozenset[str] = frozenset()
    """Kinds of machine that keep roots on the node's disk."""
    root_mib: int = DEFAULT_ROOT_MIB
    """The size of a root that nobody asked for."""
    overcommit: Overcommit = Overcommit()
    """How often `total` promises what there is."""
    quotas: Quotas = Quotas()
    shares: Mapping[str, Share] = {}
    """Folders that guests may have."""
    share_kinds: Mapping[str, str] = {}
    """Kinds of machine that can have folders, each with why not on this host."""

    @property
    def promised(self) -> Promised:
        return Promised(self.total, self.overcommit)

    def check_quotas(self, new: VM, old: VM | None, doing: str) -> None:
        """Refuse what the owners of a VM have no quota left for."""
        quotas.check_within(new, old, self.quotas, self.vms, doing, self.operators.named)

    @property
    def vcpus(self) -> int:
        """The most virtual CPUs that a VM can have."""
        return self.cores or self.total.milli_cpus // 1000

    @property
    def volumes(self) -> tuple[Volume, ...]:
        return tuple(volume for vm in self.vms for volume in vm.volumes)
