"""What a node was given: subnets, addresses for VMs, leases for other machines, owners; and whether it is drained.

Effects: through records and the network. What may be given with what is decided in atoll.plan.addresses.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Any, Protocol

from msgspec import structs

from atoll.errors import Conflict, NoCapacity
from atoll.hypervisor.network.base import Network
from atoll.hypervisor.network.leases import Leases
from atoll.model.lease import Reservation
from atoll.model.network import Address, Subnet
from atoll.model.node import Pool
from atoll.model.quota import Holder, Limits, Quotas
from atoll.model.share import Share
from atoll.model.vm import VM, VmNic
from atoll.plan.addresses import Given, Place, free_addresses
from atoll.plan.quotas import limits_of, with_limits, without_limits
from atoll.plan.shares import users_of, with_share, without_share
from atoll.serving.signals import Signal
from atoll.system import aside, clock, steps


async def _nobody_there(places: Collection[Place]) -> None:
    """Where there is no hot pool, nothing but a VM is at an address."""


class Tenants(Protocol):
    """The VMs of a node, as far as they have addresses."""

    freed: dict[Place, int]

    def list(self) -> tuple[VM, ...]: ...

    def held(self) -> frozenset[Place]: ...

    def with_coming(self) -> tuple[VM, ...]:
        """All VMs, and what those will be that are on their way to another address."""
        ...

    def find_port(self, subnet: str, mark: str) -> tuple[VM, int] | None: ...


class GivenRecords(Protocol):
    """Where what a node was given is kept."""

    @property
    def unreadable(self) -> frozenset[str]:
        """Addresses of VMs whose records cannot be read."""
        ...

    def given(self) -> Given: ...

    async def write_given(self, given: Given) -> None:
        """On disk when this returns."""
        ...


class Holdings:
    def __init__(self, node: str, records: GivenRecords, network: Network, vms: Tenants) -> None:
        self._node = node
        self._records = records
        self._network = network
        self._vms = vms
        self.changed: Signal[[]] = Signal()
        """Told after every change, when it is on disk."""
        self._lock = asyncio.Lock()
        self.given = records.given()
        self.leases = Leases(vms.list, lambda: self.given, clock.now)
        self.vacate: Callable[[Collection[Place]], Awaitable[None]] = _nobody_there
        """Ends what is at these addresses and is no VM: members of the hot pool."""

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
            if given != self.given:
                await aside.run(self._network.check_free, subnet)
            await self._network.serve(given.subnets)
            await self._keep(given)

    async def change_subnet(self, subnet_id: str, changes: Mapping[str, Any]) -> None:
        """Guests learn of it with their next lease."""
        async with self._lock:
            await self._keep(self.given.change_subnet(subnet_id, changes, self._users(subnet_id)))
            steps.step("subnet.changed")
            await self._network.serve(self.given.subnets)

    async def remove_subnet(self, subnet_id: str) -> None:
        """Already gone is success. The addresses that were given for it go with it."""
        async with self._lock:
            # No await from the check to the change: no VM gets an address there in between.
            going = self.given.addresses.get(subnet_id, ())
            await self._take_back(self.given.remove_subnet(subnet_id, self._users(subnet_id)))
            steps.step("subnet.forgotten")
            await self._vacate(subnet_id, {address.ip for address in going})
            await self._network.serve(self.given.subnets)

    async def add_addresses(self, subnet_id: str, new: Iterable[Address]) -> None:
        async with self._lock:
            await self._keep(self.given.add_addresses(subnet_id, new))

    async def remove_addresses(self, subnet_id: str, ips: Collection[str]) -> None:
        """Already gone is success."""
        async with self._lock:
            # No await from the check to the change: no VM gets one of them in between.
            await self._take_back(self.given.remove_addresses(subnet_id, ips, self._vms_in(subnet_id)))
            steps.step("addresses.forgotten")
            await self._vacate(subnet_id, ips)

    async def add_lease(self, lease: Reservation) -> None:
        async with self._lock:
            bridge = self.given.subnet(lease.subnet).bridge_name
            for subnet in self.given.on_bridge(bridge):
                for mark in (lease.ip, lease.mac):
                    if (held := self._vms.find_port(subnet.id, mark)) is not None:
                        vm = held[0]
                        raise _clash(lease, f"VM {vm.name}, {vm.ip} {vm.mac}")
            if (lease.subnet, lease.ip) in self._vms.held():
                raise _clash(lease, "what the node uses itself")
            await self._keep(self.given.add_lease(lease))

    async def delete_lease(self, ip: str, subnet_id: str | None = None) -> None:
        """Already gone is success. The machine keeps the address until its lease ends."""
        async with self._lock:
            going = self.given.leases_at(ip, subnet_id)
            await self._keep(self.given.delete_lease(ip, subnet_id))
            for lease in going:
                self.leases.forget(lease.subnet, lease.mac)

    async def drain(self, drained: bool) -> None:
        """Whether VMs are made and started here. Those that run run on."""
        async with self._lock:
            await self._keep(structs.replace(self.given, drained=drained))

    async def set_owners(self, users: tuple[str, ...], groups: tuple[str, ...]) -> None:
        """Who operates the node, beside those that its configuration names."""
        async with self._lock:
            await self._keep(structs.replace(self.given, owner_users=users, owner_groups=groups))

    async def set_quota(self, holder: Holder, change: Callable[[Limits], Limits]) -> None:
        """What they have, they keep; what they ask for from now on is measured by it.

        The first quota of a user's own begins as the default that they had.
        """
        async with self._lock:
            quotas = self.given.quotas
            limits = change(limits_of(holder, quotas)[0] or Limits())
            await self._keep_quotas(with_limits(quotas, holder, limits))

    async def delete_quota(self, holder: Holder) -> None:
        """Already gone is success."""
        async with self._lock:
            await self._keep_quotas(without_limits(self.given.quotas, holder))

    async def _keep_quotas(self, quotas: Quotas) -> None:
        await self._keep(structs.replace(self.given, quotas=quotas))
        steps.step("quota.recorded")

    async def allow_share(self, share: Share) -> None:
        """Guests may have this folder. The same again is a success."""
        async with self._lock:
            users = users_of(share.name, self._vms.with_coming())
            await self._keep(structs.replace(self.given, shares=with_share(self.given.shares, share, users)))
            steps.step("share.allowed")

    async def deny_share(self, name: str) -> None:
        """No guest may have it any longer. Already gone is success."""
        async with self._lock:
            # No await from the check to the change: no VM gets it in between.
            users = users_of(name, self._vms.with_coming())
            left = without_share(self.given.shares, name, users)
            await self._take_back(structs.replace(self.given, shares=left))
            steps.step("share.denied")

    async def set_overcommit(self, changes: Mapping[str, float | None]) -> None:
        """How often CPUs and memory may be promised. VMs that are there stay."""
        async with self._lock:
            await self._keep(structs.replace(self.given, **changes))
            steps.step("node.changed")

    def _users(self, subnet_id: str) -> set[str]:
        """Who has an address in a subnet, by name."""
        leases = (lease.hostname for lease in self.given.leases if lease.subnet == subnet_id)
        return {*self._vms_in(subnet_id).values(), *(f"the lease of {name}" for name in leases)}

    def _vms_in(self, subnet_id: str) -> dict[str, str]:
        """The VMs that have an address in a subnet, by the address."""
        subnets = (subnet for subnet in self.subnets if subnet.id == subnet_id)
        unknown = {
            ip: f"a VM at {ip} whose record cannot be read"
            for subnet in subnets
            for ip in self._records.unreadable
            if ipaddress.IPv4Address(ip) in subnet.network
        }
        return unknown | {
            nic.ip: f"VM {vm.name}"
            for vm in self._vms.with_coming()
            for nic in vm.all_nics
            if nic.subnet == subnet_id
        }

    async def _vacate(self, subnet_id: str, ips: Collection[str]) -> None:
        places = {(subnet_id, ip) for ip in ips}
        await self.vacate(places)
        for place in places:
            self._vms.freed.pop(place, None)

    async def _keep(self, given: Given) -> None:
        """What is given can be used when it is on disk."""
        if given != self.given:
            await self._records.write_given(given)
            self.given = given
            self._tell()

    async def _take_back(self, given: Given) -> None:
        """What is taken back cannot be used from this moment on."""
        before = self.given
        if given == before:
            return
        self.given = given
        try:
            await self._records.write_given(given)
        except BaseException:
            self.given = before
            raise
        self._tell()

    def _tell(self) -> None:
        self.leases.wake()
        self.changed()


def _clash(lease: Reservation, who: str) -> Conflict:
    return Conflict(f"lease {lease.ip} {lease.mac}: clashes with {who}", hint="choose another one")
