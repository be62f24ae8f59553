"""Subnets and the addresses in them. Pure values."""

from __future__ import annotations

import ipaddress
import zlib
from typing import Annotated

from msgspec import Meta, Struct

from atoll.errors import Invalid
from atoll.model.checks import (
    DOMAIN_PATTERN,
    LINK_PATTERN,
    Cidr,
    Cidr6,
    Ip,
    Ip6,
    Mac,
    Name,
    Principal,
    check_ip,
    check_ip6,
    check_mac,
    check_name,
    check_network,
    check_pattern,
    check_principal,
    check_range,
    is_network,
    network6_of,
    network_of,
)

METADATA_IP = "169.254.169.254"
METADATA_IP6 = "fd00:ec2::254"
DEFAULT_DOMAIN = "atoll.internal"
"""Every VM has a name in it, whatever the domain of its subnet."""
MIN_MTU = 576
MIN_MTU6 = 1280
MAX_MTU = 9216
MAX_DNS = 8
MAX_VLAN = 4094
MAX_REACHES = 64

Reaches = Annotated[tuple[str, ...], Meta(max_length=MAX_REACHES)]
Domain = Annotated[str, Meta(pattern=f"{DOMAIN_PATTERN}|^$", max_length=253)]


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


def link_local(mac: str) -> str:
    """The IPv6 address that a machine with this MAC has on its link."""
    return str(ipaddress.IPv6Address(0xFE80 << 112 | _interface_id(mac)))


def _interface_id(mac: str) -> int:
    """The lower half of an address that follows from a MAC (RFC 4291, appendix A)."""
    first, *rest = bytes.fromhex(mac.replace(":", ""))
    return int.from_bytes(bytes((first ^ 2, *rest[:2], 0xFF, 0xFE, *rest[2:])), "big")


class Subnet(Struct, frozen=True, forbid_unknown_fields=True):
    """One broadcast domain of VMs and what its DHCP server says."""

    id: Name
    cidr: Cidr
    gateway: Ip
    bridge: Annotated[str, Meta(pattern=f"{LINK_PATTERN}|^$", max_length=15)] = ""
    dns: Annotated[tuple[Ip, ...], Meta(max_length=MAX_DNS)] = ()
    domain: Domain = ""
    mtu: Annotated[int, Meta(ge=MIN_MTU, le=MAX_MTU)] = 1500
    allowed_users: tuple[Principal, ...] = ()
    allowed_groups: tuple[Principal, ...] = ()
    metadata: bool = True
    """Whether its VMs are told of themselves on the metadata address."""
    resolver: bool = True
    """Whether the node answers DNS on the metadata address here. DHCP names it, unless `dns` names others."""
    service_ip: Ip | None = None
    """Where machines that are not VMs find DHCP, TFTP and HTTP: an address in it that is nobody else's."""
    cidr6: Cidr6 | None = None
    """Its IPv6 network, if it has one. The address of a VM in it follows from the VM's MAC."""
    gateway6: Ip6 | None = None
    autoconf6: bool = True
    """Whether guests make up that address by themselves. Otherwise they get it by DHCPv6 only."""
    private: bool = False
    """Only for interfaces beside the first: no VM has its own address, its key, here, and neither has the node.
    So it may overlap other subnets, on a bridge of its own."""
    vlan: Annotated[int, Meta(ge=1, le=MAX_VLAN)] | None = None
    """The tag (802.1Q) that its frames have on the port of the bridge that it names; none: they have none."""
    reaches: Reaches = ()
    """What its guests may open connections to beyond it, where the node is its router: other subnets of the node by
    id, and networks outside of it such as `10.0.0.0/8`. Answers come back; the other way has to be opened there."""

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
        if self.vlan is not None:
            check_range("vlan", self.vlan, 1, MAX_VLAN)
            if not self.bridge:
                raise Invalid("vlan", self.vlan, "needs the bridge whose port it is on", hint="--bridge NAME")
        if len(self.dns) > MAX_DNS:
            raise Invalid("dns", f"{len(self.dns)} servers", f"must be at most {MAX_DNS}")
        for server in self.dns:
            check_ip("dns", server)
        self._check_domain()
        self._check_service_ip()
        self._check_ipv6()
        self._check_reaches()
        check_range("mtu", self.mtu, MIN_MTU, MAX_MTU)
        for who in (*self.allowed_users, *self.allowed_groups):
            check_principal("allowed", who)

    def _check_domain(self) -> None:
        if len(self.domain) > 253:
            raise Invalid("domain", self.domain, "is longer than 253 characters")
        for label in self.domain.split(".") if self.domain else ():
            check_name("domain", label)

    def _check_reaches(self) -> None:
        if len(self.reaches) > MAX_REACHES:
            raise Invalid("reaches", f"{len(self.reaches)} of them", f"must be at most {MAX_REACHES}")
        for one in self.reaches:
            (check_network if is_network(one) else check_name)("reaches", one)
        if self.reaches and (self.bridge or self.private):
            why = "is private" if self.private else f"has a router of its own on bridge {self.bridge}"
            raise Invalid(
                "reaches", ", ".join(self.reaches), f"subnet {self.id} {why}: the node routes nothing there"
            )
        if self.id in self.reaches:
            raise Invalid("reaches", self.id, "is the subnet itself, which its guests reach in any case")

    def _check_service_ip(self) -> None:
        if self.service_ip is None:
            return
        check_ip("service_ip", self.service_ip)
        network = self.network
        if ipaddress.IPv4Address(self.service_ip) not in network:
            raise Invalid("service_ip", self.service_ip, f"is not inside {self.cidr}")
        if self.service_ip in (self.gateway, str(network.network_address), str(network.broadcast_address)):
            raise Invalid("service_ip", self.service_ip, "is the network, broadcast or gateway address")

    def _check_ipv6(self) -> None:
        if self.cidr6 is None:
            if self.gateway6 is not None:
                raise Invalid("gateway6", self.gateway6, "makes no sense without cidr6")
            return
        network = network6_of("cidr6", self.cidr6)
        if network.is_multicast or network.is_link_local or network.is_loopback or network.is_unspecified:
            raise Invalid("cidr6", self.cidr6, "is a network that machines cannot have addresses of")
        if ipaddress.IPv6Address(METADATA_IP6) in network:
            raise Invalid("cidr6", self.cidr6, f"holds {METADATA_IP6}, where guests find their metadata")
        if self.gateway6 is None:
            raise Invalid("gateway6", self.gateway6, "must be given where cidr6 is")
        check_ip6("gateway6", self.gateway6)
        if ipaddress.IPv6Address(self.gateway6) not in network:
            raise Invalid("gateway6", self.gateway6, f"is not inside {self.cidr6}")
        if self.mtu < MIN_MTU6:
            raise Invalid("mtu", self.mtu, f"must be at least {MIN_MTU6} for IPv6")

    @property
    def network(self) -> ipaddress.IPv4Network:
        return ipaddress.IPv4Network(self.cidr)

    @property
    def hands_out_resolver(self) -> bool:
        """Whether machines are told that the node itself is their DNS server."""
        return self.resolver and not self.dns

    @property
    def name_servers(self) -> tuple[str, ...]:
        """What VMs are told to ask for names."""
        return (METADATA_IP,) if self.hands_out_resolver else self.dns

    @property
    def search_domain(self) -> str:
        """Where machines look for names of one label. There is one wherever we answer for them."""
        return self.domain or (DEFAULT_DOMAIN if self.hands_out_resolver else "")

    @property
    def bridge_name(self) -> str:
        """The bridge that it is on: the existing one that it names, else one that is made for it."""
        if self.bridge:
            return self.bridge if self.vlan is None else vlan_link(self.bridge, self.vlan)
        # Of a long id the end is replaced, and not just cut: two subnets must never meet in one bridge.
        name = f"br-{self.id}"
        return name if len(name) <= 15 else f"{name[:7]}{zlib.crc32(self.id.encode()):08x}"

    def overlaps(self, other: Subnet) -> bool:
        """Whether an address can be in both."""
        if self.network.overlaps(other.network):
            return True
        if self.cidr6 is None or other.cidr6 is None:
            return False
        return ipaddress.IPv6Network(self.cidr6).overlaps(ipaddress.IPv6Network(other.cidr6))

    def ip6_of(self, mac: str) -> str:
        """The IPv6 address here of the machine with this MAC; empty where there is no IPv6."""
        if self.cidr6 is None:
            return ""
        return str(ipaddress.IPv6Network(self.cidr6).network_address + _interface_id(mac))

    def check_holds(self, address: Address) -> None:
        """A VM may have this address here: inside, and not the network's, broadcast's or gateway's."""
        network, ip = self.network, ipaddress.IPv4Address(address.ip)
        if ip not in network:
            raise Invalid("ip", address.ip, f"is not inside subnet {self.id} ({self.cidr})")
        if ip in (network.network_address, network.broadcast_address) or address.ip == self.gateway:
            raise Invalid(
                "ip", address.ip, f"is the network, broadcast or gateway address of subnet {self.id}"
            )
        if address.ip == self.service_ip:
            raise Invalid("ip", address.ip, f"is the address of the services in subnet {self.id}")


def _check_usable(network: ipaddress.IPv4Network) -> None:
    """Machines can have addresses of this network, and none of them is our metadata service's."""
    first_byte = network.network_address.packed[0]
    if network.is_loopback or first_byte == 0 or first_byte >= 224:
        raise Invalid("cidr", str(network), "is a network that machines cannot have addresses of")
    if ipaddress.IPv4Address(METADATA_IP) in network:
        raise Invalid("cidr", str(network), f"holds {METADATA_IP}, where guests find their metadata")


def vlan_link(link: str, vlan: int) -> str:
    """The usual name of a VLAN of a link; of a long one the end is replaced, so that no two are the same."""
    name = f"{link}.{vlan}"
    return name if len(name) <= 15 else f"{link[:6]}-{zlib.crc32(name.encode()):08x}"
