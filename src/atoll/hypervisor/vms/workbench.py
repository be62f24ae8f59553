"""What everything that happens to VMs works with, in one object: made once, in service.py. No effects of its own."""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol

from msgspec import Struct

from atoll.hypervisor.launch.machines import Machines
from atoll.hypervisor.network.base import Network
from atoll.hypervisor.network.holdings import Holdings
from atoll.hypervisor.vms.inventory import Inventory
from atoll.hypervisor.vms.records import Records
from atoll.hypervisor.vms.room import NodeFacts, Room
from atoll.identity.access import Operators
from atoll.images.store import ImageStore
from atoll.model.node import Capacity, Overcommit
from atoll.model.vm import VM
from atoll.model.volume import Unclaimed, Volume
from atoll.plan import capacity
from atoll.plan.volumes import Space
from atoll.serving.supervisor import Supervisor


class VolumeStores(Protocol):
    """Where the volumes of VMs are kept, as far as their VMs are concerned. Everything may be repeated."""

    @property
    def spaces(self) -> tuple[Space, ...]:
        """What there is room for."""
        ...

    @property
    def unclaimed(self) -> tuple[Unclaimed, ...]:
        """What is no VM's."""
        ...

    async def make(self, ip: str, volume: Volume, uid: int) -> None: ...

    def carry(self, source: str, target: str) -> None:
        """All volumes of the VM at one address become those of the VM at another."""
        ...

    def discard(self, ip: str) -> None:
        """Remove all volumes of a VM."""
        ...

    def free_mib(self, vm: VM) -> int | None:
        """What is free where its volumes are, at the place that has least; None when it has none in a store."""
        ...


@lru_cache(maxsize=4)
def _joined(named: Operators, users: tuple[str, ...], groups: tuple[str, ...]) -> Operators:
    """Asked for every call, and changes about never."""
    return Operators(
        users=tuple(dict.fromkeys((*named.users, *users))),
        groups=tuple(dict.fromkeys((*named.groups, *groups))),
    )


class Workbench(Struct, frozen=True):
    """The parts of one node."""

    facts: NodeFacts
    records: Records
    vms: Inventory
    holdings: Holdings
    machines: Machines
    network: Network
    images: ImageStore
    stores: VolumeStores
    background: Supervisor

    def operators(self) -> Operators:
        """Those that the node's configuration names, and those that it was given as owners."""
        given = self.holdings.given
        return _joined(self.facts.operators, given.owner_users, given.owner_groups)

    def room(self) -> Room:
        """What the node has at this moment."""
        return Room(
            node=self.facts.name,
            operators=self.operators(),
            total=self.total(),
            vms=self.vms.accounted(),
            given=self.holdings.given,
            held=self.vms.held(),
            freed=self.vms.freed,
            has_roles=self.facts.has_roles,
            role_callers=self.facts.role_callers,
            takes_credentials=self.facts.takes_credentials,
            cores=self.facts.cores,
            spaces=self.stores.spaces,
            disk_kinds=self.machines.disk_kinds(),
            screen_kinds=self.machines.screen_kinds(),
            hardware_kinds=self.machines.hardware_kinds(),
            memory_kinds=self.machines.memory_kinds(),
            root_kinds=self.machines.root_kinds(),
            root_mib=self.facts.root_mib,
            overcommit=self.overcommit(),
            quotas=self.holdings.given.quotas,
            shares=self.machines.folders.by_name(),
            share_kinds=self.machines.share_kinds(),
        )

    def unused(self) -> Capacity:
        """Capacity that no VM uses; the hot pool draws on it."""
        return capacity.free(self.total(), self.vms.accounted())

    def overcommit(self) -> Overcommit:
        """How often what there is may be promised: as the node was told, else as its configuration says."""
        given, configured = self.holdings.given, self.facts.overcommit
        return Overcommit(
            configured.cpus if given.cpu_overcommit is None else given.cpu_overcommit,
            configured.memory if given.memory_overcommit is None else given.memory_overcommit,
        )

    def total(self) -> Capacity:
        """What VMs may be promised."""
        return capacity.overcommitted(self.facts.there, self.overcommit())
