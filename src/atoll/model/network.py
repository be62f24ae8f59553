"""Subnets and the addresses in them. Pure values."""

from __future__ import annotations

import ipaddress
from typing import Annotated

from msgspec import Meta, Struct

from atoll.errors import Invalid
from atoll.model.checks import (
    DOMAIN_PATTERN,
    LINK_PATTERN,
    Cidr,
    Ip,
    Mac,
    Name,
    Principal,
    check_ip,
    check_mac,
    check_name,
    check_pattern,
    check_principal,
    check_range,
    network_of,
)

METADATA_IP = "169.254.169.254"
MIN_MTU = 576
MAX_MTU = 9216
MAX_DNS = 8


class Address(Struct, frozen=True, order=True, forbid_unknown_fields=True):
    """One address that a VM can have: its IP is the VM's key, its MAC goes with it."""

    ip: Ip
    mac: Mac

    def __post_init__(self) -> None:
        check_ip("ip", self.ip)
        check_mac("mac", self.mac)


def mac_for(ip: str) -> str:
    """The MAC that goes with an address when nobody chose one: 52:54 and the four bytes of the IP."""
    return "52:54:" + ":".join(f"{byte:02x}" for byte in ipaddress.IPv4Address(ip).packed)


class Subnet(Struct, frozen=True, forbid_unknown_fields=True):
    """One broadcast domain of VMs and what its DHCP server says."""

    id: Name
    cidr: Cidr
    gateway: Ip
    bridge: Annotated[str, Meta(pattern=f"{LINK_PATTERN}|^$", max_length=15)] = ""
    dns: Annotated[tuple[Ip, ...], Meta(max_length=MAX_DNS)] = ()
    domain: Annotated[str, Meta(pattern=f"{DOMAIN_PATTERN}|^$", max_length=253)] = ""
    mtu: Annotated[int, Meta(ge=MIN_MTU, le=MAX_MTU)] = 1500
    allowed_users: tuple[Principal, ...] = ()
    allowed_groups: tuple[Principal, ...] = ()

    def __post_init__(self) -> None:
        check_name("subnet id", self.id)
        network = network_of("cidr", self.cidr)
        _check_usable(network)
        check_ip("gateway", self.gateway)
        if ipaddress.IPv4Address(self.gateway) not in network:
            raise Invalid("gateway", self.gateway, f"is not inside {self.cidr}")
        if self.gateway in (str(network.network_address), str(network.broadcast_address)):
            raise Invalid("gateway", self.gateway, f"is the network or broadcast address of {self.cidr}")
        if self.bridge:
            check_pattern("bridge", self.bridge, LINK_PATTERN, "a link name of at most 15 characters")
        if len(self.dns) > MAX_DNS:
            raise Invalid("dns", f"{len(self.dns)} servers", f"must be at most {MAX_DNS}")
        for server in self.dns:
            check_ip("dns", server)
        self._check_domain()
        check_range("mtu", self.mtu, MIN_MTU, MAX_MTU)
        for who in (*self.allowed_users, *self.allowed_groups):
            check_principal("allowed", who)

    def _check_domain(self) -> None:
        if len(self.domain) > 253:
            raise Invalid("domain", self.domain, "is longer than 253 characters")
        for label in self.domain.split(".") if self.domain else ():
            check_name("domain", label)

    @property
    def network(self) -> ipaddress.IPv4Network:
        return ipaddress.IPv4Network(self.cidr)

    def check_holds(self, address: Address) -> None:
        """A VM may have this address here: inside, and not the network's, broadcast's or gateway's."""
        network, ip = self.network, ipaddress.IPv4Address(address.ip)
        if ip not in network:
            raise Invalid("ip", address.ip, f"is not inside subnet {self.id} ({self.cidr})")
        if ip in (network.network_address, network.broadcast_address) or address.ip == self.gateway:
            raise Invalid(
                "ip", address.ip, f"is the network, broadcast or gateway address of subnet {self.id}"
            )


def _check_usable(network: ipaddress.IPv4Network) -> None:
    """Machines can have addresses of this network, and none of them is our metadata service's."""
    first_byte = network.network_address.packed[0]
    if network.is_loopback or first_byte == 0 or first_byte >= 224:
        raise Invalid("cidr", str(network), "is a network that machines cannot have addresses of")
    if ipaddress.IPv4Address(METADATA_IP) in network:
        raise Invalid("cidr", str(network), f"holds {METADATA_IP}, where guests find their metadata")
