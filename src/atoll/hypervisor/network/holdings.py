"""What a node was given: subnets, addresses for VMs, leases for other machines; and whether it is drained.

Effects: through records and the network. What may be given with what is decided in atoll.plan.addresses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from msgspec import structs

from atoll.errors import Conflict, NoCapacity
from atoll.hypervisor.network.base import Network
from atoll.hypervisor.network.leases import Leases
from atoll.hypervisor.vms.inventory import Inventory
from atoll.hypervisor.vms.records import Records
from atoll.model.lease import Reservation
from atoll.model.network import Address, Subnet
from atoll.model.node import Pool
from atoll.model.vm import VM, VmNic
from atoll.plan.addresses import Given, free_addresses
from atoll.serving.signals import Signal
from atoll.system import clock


class Holdings:
    def __init__(self, node: str, records: Records, network: Network, vms: Inventory) -> None:
        self._node = node
        self._records = records
        self._network = network
        self._vms = vms
        self.changed: Signal[[]] = Signal()
        """Told after every change, when it is on disk."""
        self._lock = asyncio.Lock()
        self.given = records.given()
        self.leases = Leases(vms.list, lambda: self.given, clock.now)

    @property
    def drained(self) -> bool:
        return self.given.drained

    @property
    def subnets(self) -> tuple[Subnet, ...]:
        return self.given.subnets

    def free(self) -> dict[str, tuple[Address, ...]]:
        """Addresses that nobody has, by subnet."""
        return free_addresses(self.given, self._vms.held(), self._vms.freed)

    def pools(self) -> tuple[Pool, ...]:
        """What is offered and what is in use, by subnet."""
        free = self.free()
        return tuple(
            Pool(
                subnet=subnet,
                free=() if self.drained else free[subnet.id],
                used=len(self.given.addresses.get(subnet.id, ())) - len(free[subnet.id]),
            )
            for subnet in self.subnets
        )

    def subnet_of(self, at: VM | VmNic) -> Subnet:
        """That of an interface; of a VM, that of its first."""
        return self.given.subnet(at.subnet)

    def check_not_drained(self, doing: str) -> None:
        if self.drained:
            raise NoCapacity(
                f"{doing}: node {self._node} is drained",
                hint="use another node, or have an operator call: atoll node undrain",
            )

    async def add_subnet(self, subnet: Subnet) -> None:
        async with self._lock:
            given = self.given.add_subnet(subnet)
            await self._network.serve(given.subnets)
            await self._keep(given)

    async def add_addresses(self, subnet_id: str, new: Iterable[Address]) -> None:
        async with self._lock:
            await self._keep(self.given.add_addresses(subnet_id, new))

    async def add_lease(self, lease: Reservation) -> None:
        async with self._lock:
            held = self._vms.find_by_mark(lease.ip) or self._vms.find_by_mark(lease.mac)
            if held is not None or lease.ip in self._vms.held():
                who = f"VM {held.name}, {held.ip} {held.mac}" if held else "what the node uses itself"
                raise Conflict(f"lease {lease.ip} {lease.mac}: clashes with {who}", hint="choose another one")
            await self._keep(self.given.add_lease(lease))

    async def delete_lease(self, ip: str) -> None:
        """Already gone is success. The machine keeps the address until its lease ends."""
        async with self._lock:
            if self.leases.machine_at(ip) is not None:
                await self._keep(self.given.delete_lease(ip))
                self.leases.forget(ip)

    async def drain(self, drained: bool) -> None:
        """Whether VMs are made and started here. Those that run run on."""
        async with self._lock:
            await self._keep(structs.replace(self.given, drained=drained))

    async def _keep(self, given: Given) -> None:
        if given != self.given:
            await self._records.write_given(given)
            self.given = given
            self.leases.wake()
            self.changed()
