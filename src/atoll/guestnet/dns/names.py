"""What the machines of a node are called, and which of them each one may know. Pure.

A machine knows those that share a network with it, by their addresses there:

    web, web.atoll.internal         every interface in a network of the asker's, the one it asks from first
    web.<domain of a subnet>        the interfaces in subnets of that domain
    the address of an interface     web.<domain of its subnet>, or web.atoll.internal where that has none
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

import dns.name
from dns.name import Name
from msgspec import Struct

from atoll.guestnet.dns.zones import DEFAULT_ZONE, zones_of
from atoll.model.lease import Reservation
from atoll.model.network import DEFAULT_DOMAIN, Subnet, link_local
from atoll.model.vm import VM


class Known(Struct, frozen=True):
    """What a node has: subnets, VMs, and machines that are not VMs but have a lease."""

    subnets: tuple[Subnet, ...]
    vms: tuple[VM, ...]
    leases: tuple[Reservation, ...] = ()


class Interface(Struct, frozen=True):
    """One interface of a machine."""

    machine: str
    """The key of the machine: names are no keys, since a lease may have that of a VM."""
    label: str
    subnet: str
    mac: str
    addresses: tuple[str, ...]


class Directory:
    """Finds machines by name and address. `known` is asked with every question; an index is kept of it."""

    def __init__(self, known: Callable[[], Known]) -> None:
        self._ask = known
        self._known = Known((), ())
        self._subnets: dict[str, Subnet] = {}
        self._zones: dict[str, frozenset[Name]] = {}
        self._by_label: dict[str, list[Interface]] = {}
        self._by_machine: dict[str, list[Interface]] = {}
        self._by_address: dict[tuple[str, str], Interface] = {}

    def view(self, served: Collection[str], ip: str) -> View | None:
        """What the machine at this address may know, if it is in one of these subnets and they serve DNS."""
        self._refresh()
        for subnet in served:
            asker = self._by_address.get((subnet, ip))
            if asker is not None and self._subnets[subnet].resolver:
                return View(self, asker, self._networks(asker))
        return None

    def zones(self, subnet: str) -> frozenset[Name]:
        return self._zones[subnet]

    def interfaces(self, label: str) -> list[Interface]:
        """Those of the machine of this name."""
        return self._by_label.get(label, [])

    def interface_at(self, subnet: str, address: str) -> Interface | None:
        return self._by_address.get((subnet, address))

    def _networks(self, asker: Interface) -> tuple[Subnet, ...]:
        """Those of a machine, the one that it asks from first."""
        mine = dict.fromkeys((asker.subnet, *(each.subnet for each in self._by_machine[asker.machine])))
        return tuple(self._subnets[subnet] for subnet in mine)

    def _refresh(self) -> None:
        known = self._ask()
        if known == self._known:  # mostly the very same values, which is quick to see
            return
        if known.subnets != self._known.subnets:
            self._subnets = {subnet.id: subnet for subnet in known.subnets}
            self._zones = {subnet.id: zones_of(subnet) for subnet in known.subnets}
        self._by_label, self._by_machine, self._by_address = {}, {}, {}
        for interface in _interfaces(known, self._subnets):
            self._add(interface)
        self._known = known

    def _add(self, interface: Interface) -> None:
        # Of two machines with one name the first has it: VMs come first, and their names are unique.
        named = self._by_label.setdefault(interface.label, [])
        if not named or named[0].machine == interface.machine:
            named.append(interface)
        self._by_machine.setdefault(interface.machine, []).append(interface)
        for address in (*interface.addresses, link_local(interface.mac)):
            self._by_address[interface.subnet, address] = interface


class View(Struct, frozen=True):
    """What one machine may know. The node's answers to its questions are made from it: see answer.Names."""

    directory: Directory
    asker: Interface
    networks: tuple[Subnet, ...]

    @property
    def caller(self) -> str:
        """Who asks, whatever the address."""
        return self.asker.machine

    def zones(self) -> frozenset[Name]:
        return frozenset((DEFAULT_ZONE,)).union(*(self.directory.zones(each.id) for each in self.networks))

    def addresses(self, label: str, zone: Name | None) -> tuple[str, ...]:
        found = self.directory.interfaces(label)
        anywhere = zone is None or zone == DEFAULT_ZONE
        return tuple(
            address
            for network in self.networks
            if anywhere or (network.domain and dns.name.from_text(network.domain) == zone)
            for interface in found
            if interface.subnet == network.id
            for address in interface.addresses
        )

    def name_at(self, address: str) -> Name | None:
        for network in self.networks:
            interface = self.directory.interface_at(network.id, address)
            if interface is not None and address in interface.addresses:
                return dns.name.from_text(f"{interface.label}.{network.domain or DEFAULT_DOMAIN}")
        return None


def _interfaces(known: Known, subnets: dict[str, Subnet]) -> Iterator[Interface]:
    for vm in known.vms:
        for nic in vm.all_nics:
            if nic.subnet in subnets:
                addresses = tuple(filter(None, (nic.ip, nic.ip6)))
                yield Interface(vm.instance_id, vm.name, nic.subnet, nic.mac, addresses)
    for lease in known.leases:
        subnet = subnets.get(lease.subnet)
        if subnet is not None:
            addresses = tuple(filter(None, (lease.ip, subnet.ip6_of(lease.mac))))
            yield Interface(lease.mac, lease.hostname, lease.subnet, lease.mac, addresses)
