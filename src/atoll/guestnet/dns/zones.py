"""The zones that a subnet makes ours: its domain, and the names of its addresses. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator

import dns.name
from dns.name import Name

from atoll.model.network import DEFAULT_DOMAIN, Subnet

IPV4_REVERSE = dns.name.from_text("in-addr.arpa.")
IPV6_REVERSE = dns.name.from_text("ip6.arpa.")
DEFAULT_ZONE = dns.name.from_text(DEFAULT_DOMAIN)

_IPV4_LABELS, _IPV6_LABELS = 4, 32


def zones_of(subnet: Subnet) -> frozenset[Name]:
    """All zones that questions about this subnet fall into."""
    forward = [dns.name.from_text(subnet.domain)] if subnet.domain else []
    networks: list[ipaddress.IPv4Network | ipaddress.IPv6Network] = [subnet.network]
    if subnet.cidr6 is not None:
        networks.append(ipaddress.IPv6Network(subnet.cidr6))
    return frozenset((*forward, *(zone for network in networks for zone in _reverse_zones(network))))


def enclosing(name: Name, zones: Iterable[Name]) -> Name | None:
    """The closest of these zones that a name is in."""
    known = frozenset(zones)
    return next((ancestor for ancestor in _ancestors(name) if ancestor in known), None)


def is_reverse(zone: Name) -> bool:
    return zone.is_subdomain(IPV4_REVERSE) or zone.is_subdomain(IPV6_REVERSE)


def reverse_name(address: str) -> Name:
    """The name under which an address is looked up."""
    return dns.name.from_text(f"{ipaddress.ip_address(address).reverse_pointer}.")


def address_of(name: Name) -> str | None:
    """The address that a name in a reverse zone is for; empty: many, of which this is the beginning of all.

    None: such a name is for no address.
    """
    is_ipv4 = name.is_subdomain(IPV4_REVERSE)
    whole = _IPV4_LABELS if is_ipv4 else _IPV6_LABELS
    labels = name.relativize(IPV4_REVERSE if is_ipv4 else IPV6_REVERSE).labels
    digits = [label.decode("latin-1").lower() for label in reversed(labels)]
    if len(digits) > whole or not all(map(_is_octet if is_ipv4 else _is_nibble, digits)):
        return None
    if len(digits) < whole:
        return ""
    if is_ipv4:
        return ".".join(digits)
    return str(ipaddress.IPv6Address(int("".join(digits), 16)))


def _ancestors(name: Name) -> Iterator[Name]:
    """The name itself, its parent, and so on up to the root."""
    while True:
        yield name
        if name == dns.name.root:
            return
        name = name.parent()


def _reverse_zones(network: ipaddress.IPv4Network | ipaddress.IPv6Network) -> list[Name]:
    """Names end between bytes, or half bytes: a network that does not is several zones, 128 at the most."""
    step = 8 if network.version == 4 else 4
    length = -(-network.prefixlen // step) * step
    host_labels = (network.max_prefixlen - length) // step
    parts = network.subnets(new_prefix=length)
    return [_cut(reverse_name(str(part.network_address)), host_labels) for part in parts]


def _cut(name: Name, count: int) -> Name:
    return Name(name.labels[count:])


def _is_octet(text: str) -> bool:
    # As they are written in names: 010 is not 10.
    return text.isascii() and text.isdigit() and str(int(text)) == text and int(text) < 256


def _is_nibble(text: str) -> bool:
    return len(text) == 1 and text in "0123456789abcdef"
