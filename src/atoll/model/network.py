"""Subnets and the addresses in them. Pure values."""

from __future__ import annotations

import ipaddress

from msgspec import Struct

from atoll.errors import Invalid
from atoll.model.checks import (
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


class Address(Struct, frozen=True, order=True):
    """One address that a VM can have: its IP is the VM's key, its MAC goes with it."""

    ip: Ip
    mac: Mac

    def __post_init__(self) -> None:
        check_ip("ip", self.ip)
        check_mac("mac", self.mac)


def mac_for(ip: str) -> str:
    """The MAC that goes with an address when nobody chose one: 52:54 and the four bytes of the IP."""
    return "52:54:" + ":".join(f"{byte:02x}" for byte in ipaddress.IPv4Address(ip).packed)


class Subnet(Struct, frozen=True, omit_defaults=False):
    """One broadcast domain of VMs and what its DHCP server says."""

    id: Name
    cidr: Cidr
    gateway: Ip
    bridge: str = ""
    dns: tuple[Ip, ...] = ()
    domain: str = ""
    mtu: int = 1500
    allowed_users: tuple[Principal, ...] = ()
    allowed_groups: tuple[Principal, ...] = ()

    def __post_init__(self) -> None:
        check_name("subnet id", self.id)
        network = network_of("cidr", self.cidr)
        check_ip("gateway", self.gateway)
        if ipaddress.IPv4Address(self.gateway) not in network:
            raise Invalid("gateway", self.gateway, f"is not inside {self.cidr}")
        if self.gateway in (str(network.network_address), str(network.broadcast_address)):
            raise Invalid("gateway", self.gateway, f"is the network or broadcast address of {self.cidr}")
        if self.bridge:
            check_pattern(
                "bridge",
                self.bridge,
                r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,14}",
                "a link name of at most 15 characters",
            )
        for server in self.dns:
            check_ip("dns", server)
        if self.domain:
            for label in self.domain.split("."):
                check_name("domain", label)
            if len(self.domain) > 253:
                raise Invalid("domain", self.domain, "is longer than 253 characters")
        check_range("mtu", self.mtu, 576, 9216)
        for who in (*self.allowed_users, *self.allowed_groups):
            check_principal("allowed", who)

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
