"""Which addresses a node has, and which are free. Pure.

A node keeps on disk which addresses were *given* to it; which are *held* follows from its VMs. One fact
in one place: no crash can make the two disagree, and the write that makes a VM is what claims its address.
"""

from __future__ import annotations

import ipaddress
import itertools
from collections.abc import Collection, Iterable, Mapping

from msgspec import Struct, structs

from atoll.errors import Conflict, NotFound, PoolEmpty
from atoll.model.lease import Reservation
from atoll.model.network import Address, Subnet
from atoll.model.vm import VmNic


class Given(Struct, frozen=True):
    """The subnets of a node, and the addresses in each that it may hand out, in the order of their use."""

    subnets: tuple[Subnet, ...] = ()
    addresses: dict[str, tuple[Address, ...]] = {}
    leases: tuple[Reservation, ...] = ()
    """Addresses of machines that are not VMs; a VM never gets one, also where it is in the pool."""
    drained: bool = False
    """No VM is made or started here, and no address offered."""

    def subnet(self, subnet_id: str) -> Subnet:
        for subnet in self.subnets:
            if subnet.id == subnet_id:
                return subnet
        known = ", ".join(subnet.id for subnet in self.subnets) or "none yet"
        raise NotFound(
            f"subnet {subnet_id!r}: not on this node",
            hint=f"there are: {known}; see: atoll node add-subnet",
        )

    def add_subnet(self, subnet: Subnet) -> Given:
        """The same one again is a success; another under its id, or one that overlaps, is a conflict."""
        for other in self.subnets:
            if other == subnet:
                return self
            if other.id == subnet.id:
                raise Conflict(f"subnet {subnet.id}: exists with other settings", hint="choose another id")
            if other.network.overlaps(subnet.network):
                raise Conflict(
                    f"subnet {subnet.id} ({subnet.cidr}): overlaps subnet {other.id} ({other.cidr})"
                )
            if subnet.cidr6 and other.cidr6 and _overlap6(subnet.cidr6, other.cidr6):
                raise Conflict(f"subnet {subnet.id} ({subnet.cidr6}): subnet {other.id} has the same network")
        return structs.replace(self, subnets=(*self.subnets, subnet))

    def add_addresses(self, subnet_id: str, addresses: Iterable[Address]) -> Given:
        """Those that are there already are left; an IP or MAC that goes with another one is a conflict."""
        subnet = self.subnet(subnet_id)
        mine = dict.fromkeys(self.addresses.get(subnet_id, ()))
        ips = {address.ip: address for group in self.addresses.values() for address in group}
        macs = {address.mac: address for address in ips.values()}
        leased = {lease.mac: lease for lease in self.leases} | {lease.ip: lease for lease in self.leases}
        for address in addresses:
            subnet.check_holds(address)
            if lease := leased.get(address.ip) or leased.get(address.mac):
                raise Conflict(
                    f"address {address.ip} {address.mac}: clashes with the lease of {lease.hostname}",
                    hint=f"take that away first: atoll node delete-lease {lease.ip}",
                )
            for seen in (ips.get(address.ip), macs.get(address.mac)):
                if seen is not None and seen != address:
                    raise Conflict(
                        f"address {address.ip} {address.mac}: clashes with {seen.ip} {seen.mac}",
                        hint="every IP and every MAC can be in the pool once",
                    )
            mine[address] = None
            ips[address.ip] = macs[address.mac] = address
        return structs.replace(self, addresses={**self.addresses, subnet_id: tuple(mine)})

    def add_lease(self, lease: Reservation) -> Given:
        """The same one again is a success, and so is one that changes the name or boot of a machine."""
        self.subnet(lease.subnet).check_holds(Address(lease.ip, lease.mac))
        others = []
        for other in self.leases:
            if (other.ip, other.mac, other.subnet) == (lease.ip, lease.mac, lease.subnet):
                continue
            if lease.ip == other.ip or lease.mac == other.mac:
                raise Conflict(
                    f"lease {lease.ip} {lease.mac}: clashes with {other.hostname}, {other.ip} {other.mac}",
                    hint="every IP and every MAC can have one lease",
                )
            others.append(other)
        for address in itertools.chain.from_iterable(self.addresses.values()):
            if address.mac == lease.mac and address.ip != lease.ip:
                raise Conflict(
                    f"lease {lease.ip} {lease.mac}: the MAC goes with {address.ip} of the pool",
                    hint="every IP and every MAC can be on a node once",
                )
        return structs.replace(self, leases=(*others, lease))

    def delete_lease(self, ip: str) -> Given:
        """Gone is fine."""
        return structs.replace(self, leases=tuple(lease for lease in self.leases if lease.ip != ip))


def free_addresses(
    given: Given, held: Collection[str], recently_freed: Mapping[str, int]
) -> dict[str, tuple[Address, ...]]:
    """By subnet; what was freed last comes last, so that neighbours have had time to forget it."""
    taken = {*held, *(lease.ip for lease in given.leases)}
    return {
        subnet.id: tuple(
            sorted(
                (address for address in given.addresses.get(subnet.id, ()) if address.ip not in taken),
                key=lambda address: recently_freed.get(address.ip, 0),
            )
        )
        for subnet in given.subnets
    }


def choose(
    given: Given,
    free: Mapping[str, tuple[Address, ...]],
    wanted: str | None,
    allowed: Collection[str],
    node: str,
) -> tuple[Subnet, Address]:
    """The subnet and address of a new VM: from the subnet asked for, else the first that has one free."""
    if wanted is not None:
        candidates = [given.subnet(wanted)]
    else:
        candidates = [subnet for subnet in given.subnets if subnet.id in allowed]
    for subnet in candidates:
        if free.get(subnet.id):
            return subnet, free[subnet.id][0]
    names = ", ".join(subnet.id for subnet in candidates)
    if not names:
        raise PoolEmpty(
            f"creating a VM on {node}: the node has no subnet that you may use",
            hint="add one with: atoll node add-subnet ID --cidr 10.1.2.0/24 --gateway 10.1.2.1",
        )
    raise PoolEmpty(
        f"creating a VM on {node}: no free address in subnet {names}",
        hint=f"add some with: atoll node add-address --subnet {candidates[0].id} IP…, or destroy a VM",
    )


def nic_of(subnet: Subnet, address: Address) -> VmNic:
    """The interface that a VM has by this address."""
    return VmNic(address.ip, address.mac, subnet.id, subnet.ip6_of(address.mac))


def _overlap6(one: str, other: str) -> bool:
    return ipaddress.IPv6Network(one).overlaps(ipaddress.IPv6Network(other))
