"""Which addresses a node has, and which are free. Pure.

A node keeps on disk which addresses were *given* to it; which are *held* follows from its VMs. One fact
in one place: no crash can make the two disagree, and the write that makes a VM is what claims its address.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from msgspec import Struct, structs

from atoll.errors import Conflict, NotFound, PoolEmpty
from atoll.model.checks import is_network
from atoll.model.lease import Reservation
from atoll.model.network import Address, Subnet
from atoll.model.quota import Quotas
from atoll.model.share import Share
from atoll.model.vm import VmNic

Place = tuple[str, str]
"""A subnet and an address in it: the same address may be in two subnets."""
ANYWHERE = ""
"""In the place of a subnet that is not known: the address counts as held in all of them."""


class Given(Struct, frozen=True):
    """The subnets of a node, and the addresses in each that it may hand out, in the order of their use."""

    subnets: tuple[Subnet, ...] = ()
    addresses: dict[str, tuple[Address, ...]] = {}
    leases: tuple[Reservation, ...] = ()
    """Addresses of machines that are not VMs; a VM never gets one, also where it is in the pool."""
    drained: bool = False
    """No VM is made or started here, and no address offered."""
    owner_users: tuple[str, ...] = ()
    """Who operates the node beside those that its configuration names."""
    owner_groups: tuple[str, ...] = ()
    quotas: Quotas = Quotas()
    """How much of the node users and groups may have."""
    cpu_overcommit: float | None = None
    """How many times its CPUs may be promised; None: as its configuration says."""
    memory_overcommit: float | None = None
    shares: tuple[Share, ...] = ()
    """Folders that operators allowed by a call."""

    def subnet(self, subnet_id: str) -> Subnet:
        for subnet in self.subnets:
            if subnet.id == subnet_id:
                return subnet
        known = ", ".join(subnet.id for subnet in self.subnets) or "none yet"
        raise NotFound(
            f"subnet {subnet_id!r}: not on this node",
            hint=f"there are: {known}; see: atoll subnet add",
        )

    def on_bridge(self, bridge: str) -> Iterator[Subnet]:
        """The subnets that share a bridge."""
        return (subnet for subnet in self.subnets if subnet.bridge_name == bridge)

    def add_subnet(self, subnet: Subnet) -> Given:
        """The same one again is a success; another under its id, or one that overlaps, is a conflict."""
        for other in self.subnets:
            if other == subnet:
                return self
            if other.id == subnet.id:
                raise Conflict(
                    f"subnet {subnet.id}: exists with other settings",
                    hint="choose another id, or see: atoll subnet change",
                )
            if subnet.overlaps(other) and not _apart(subnet, other):
                raise Conflict(
                    f"subnet {subnet.id} ({_networks(subnet)}): overlaps subnet {other.id} ({_networks(other)})",
                    hint="of two that overlap, one is private, and each is on a bridge of its own",
                )
        self._check_joins(subnet)
        return structs.replace(self, subnets=(*self.subnets, subnet))

    def change_subnet(self, subnet_id: str, changes: Mapping[str, Any], users: Collection[str]) -> Given:
        """The same with other settings. `users`: who has an address there; to them its router stays the same."""
        old = self.subnet(subnet_id)
        new = structs.replace(old, **changes)
        self._check_joins(new)
        if new.gateway != old.gateway:
            if users:
                raise Conflict(
                    f"subnet {subnet_id}: its gateway {old.gateway} is the router of {_some(users)}",
                    hint="destroy them first, or add another subnet",
                )
            for address in self.addresses.get(subnet_id, ()):
                new.check_holds(address)
        return structs.replace(
            self, subnets=tuple(new if one.id == subnet_id else one for one in self.subnets)
        )

    def remove_subnet(self, subnet_id: str, users: Collection[str]) -> Given:
        """Without it, and without the addresses that were given for it. Gone is fine."""
        if users:
            raise Conflict(
                f"subnet {subnet_id}: is in use by {_some(users)}",
                hint="destroy those VMs first, and take the leases away: atoll node delete-lease",
            )
        return structs.replace(
            self,
            # Another one that gets its name later is joined to nothing.
            subnets=tuple(_apart_from(subnet_id, one) for one in self.subnets if one.id != subnet_id),
            addresses={name: some for name, some in self.addresses.items() if name != subnet_id},
        )

    def add_addresses(self, subnet_id: str, addresses: Iterable[Address]) -> Given:
        """Those that are there already are left; an IP or MAC that goes with another one is a conflict."""
        subnet = self.subnet(subnet_id)
        mine = dict.fromkeys(self.addresses.get(subnet_id, ()))
        known = list(self._addresses_beside(subnet))
        ips = {address.ip: address for address in known}
        macs = {address.mac: address for address in known}
        leases = list(self._leases_beside(subnet))
        leased = {lease.mac: lease for lease in leases} | {lease.ip: lease for lease in leases}
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

    def remove_addresses(self, subnet_id: str, ips: Collection[str], users: Mapping[str, str]) -> Given:
        """Without these in the pool of a subnet. Gone is fine. `users`: who has an address there, by the IP."""
        self.subnet(subnet_id)
        in_use = [f"{ip} ({users[ip]})" for ip in ips if ip in users]
        if in_use:
            raise Conflict(
                f"subnet {subnet_id}: addresses are in use: {_some(in_use)}",
                hint="destroy those VMs first, or leave these addresses out",
            )
        left = tuple(one for one in self.addresses.get(subnet_id, ()) if one.ip not in ips)
        return structs.replace(self, addresses={**self.addresses, subnet_id: left})

    def add_lease(self, lease: Reservation) -> Given:
        """The same one again is a success, and so is one that changes the name or boot of a machine."""
        subnet = self.subnet(lease.subnet)
        subnet.check_holds(Address(lease.ip, lease.mac))
        for other in self._leases_beside(subnet):
            if _key(other) != _key(lease) and (lease.ip == other.ip or lease.mac == other.mac):
                raise Conflict(
                    f"lease {lease.ip} {lease.mac}: clashes with {other.hostname}, {other.ip} {other.mac}",
                    hint="every IP and every MAC can have one lease",
                )
        for address in self._addresses_beside(subnet):
            if address.mac == lease.mac and address.ip != lease.ip:
                raise Conflict(
                    f"lease {lease.ip} {lease.mac}: the MAC goes with {address.ip} of the pool",
                    hint="every IP and every MAC can be on a node once",
                )
        others = (other for other in self.leases if _key(other) != _key(lease))
        return structs.replace(self, leases=(*others, lease))

    def leases_at(self, ip: str, subnet_id: str | None) -> tuple[Reservation, ...]:
        """Those of this address, in that subnet or in any."""
        return tuple(one for one in self.leases if one.ip == ip and subnet_id in (None, one.subnet))

    def delete_lease(self, ip: str, subnet_id: str | None = None) -> Given:
        """Gone is fine. The subnet must be named where several have a lease of that address."""
        going = self.leases_at(ip, subnet_id)
        if len(going) > 1:
            raise Conflict(
                f"lease {ip}: there is one in each of {', '.join(lease.subnet for lease in going)}",
                hint="say which: --subnet ID",
            )
        return structs.replace(self, leases=tuple(lease for lease in self.leases if lease not in going))

    def _check_joins(self, subnet: Subnet) -> None:
        """What a subnet is joined to is there, and can be routed to."""
        for name in subnet.reaches:
            if not is_network(name) and self.subnet(name).private:
                raise Conflict(
                    f"subnet {subnet.id}: reaches {name}, which is private: the node routes nothing there",
                    hint="give the VM an interface there: --extra-subnet",
                )

    def _beside(self, subnet: Subnet) -> list[str]:
        """The subnets in which addresses and MACs must differ from those of this one, itself among them."""
        return [other.id for other in self.subnets if not _apart(subnet, other)]

    def _addresses_beside(self, subnet: Subnet) -> Iterator[Address]:
        return itertools.chain.from_iterable(self.addresses.get(one, ()) for one in self._beside(subnet))

    def _leases_beside(self, subnet: Subnet) -> Iterator[Reservation]:
        beside = self._beside(subnet)
        return (lease for lease in self.leases if lease.subnet in beside)


def _apart(one: Subnet, other: Subnet) -> bool:
    """Whether the same address can be in both, without anybody taking one machine for the other."""
    return one.bridge_name != other.bridge_name and (one.private or other.private)


def _apart_from(subnet_id: str, subnet: Subnet) -> Subnet:
    left = tuple(name for name in subnet.reaches if name != subnet_id)
    return structs.replace(subnet, reaches=left) if left != subnet.reaches else subnet


def _networks(subnet: Subnet) -> str:
    return f"{subnet.cidr}, {subnet.cidr6}" if subnet.cidr6 else subnet.cidr


def _key(lease: Reservation) -> tuple[str, str, str]:
    return lease.ip, lease.mac, lease.subnet


def _some(names: Collection[str], most: int = 5) -> str:
    listed = sorted(names)
    return ", ".join(listed[:most]) + (f" and {len(listed) - most} more" if len(listed) > most else "")


def free_addresses(
    given: Given, held: Collection[Place], recently_freed: Mapping[Place, int]
) -> dict[str, tuple[Address, ...]]:
    """By subnet; what was freed last comes last, so that neighbours have had time to forget it."""
    leased = {(lease.subnet, lease.ip) for lease in given.leases}

    def is_free(subnet: str, ip: str) -> bool:
        return (subnet, ip) not in held and (ANYWHERE, ip) not in held and (subnet, ip) not in leased

    return {
        subnet.id: tuple(
            sorted(
                (one for one in given.addresses.get(subnet.id, ()) if is_free(subnet.id, one.ip)),
                key=lambda address: recently_freed.get((subnet.id, address.ip), 0),
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
            hint="add one with: atoll subnet add ID 10.1.2.0/24",
        )
    raise PoolEmpty(
        f"creating a VM on {node}: no free address in subnet {names}",
        hint=f"add some with: atoll subnet change {candidates[0].id} --add IP…, or destroy a VM",
    )


def check_gives_key(subnet: Subnet) -> Subnet:
    """Refuse a subnet in which no VM has the address that is its key."""
    if subnet.private:
        raise Conflict(
            f"subnet {subnet.id}: is private, and only for interfaces beside a VM's first one",
            hint=f"name another one for the first, and this one beside it: --extra-subnet {subnet.id}",
        )
    return subnet


def nic_of(subnet: Subnet, address: Address) -> VmNic:
    """The interface that a VM has by this address."""
    return VmNic(address.ip, address.mac, subnet.id, subnet.ip6_of(address.mac))
