"""What a user asks `atoll node install` for, checked against this host. Effects: looks at links; changes nothing."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from atoll.cli.cloud.layout import pool_for
from atoll.errors import Conflict, Invalid, NotFound
from atoll.model.checks import check_ip, check_name, network_of
from atoll.model.network import Address, Subnet
from atoll.system.uplinks import Uplinks

SUBNET_ID = "default"


class Certificates(Struct, frozen=True):
    """Files of an organisation that has a CA: used where they are."""

    ca: Path
    crl: Path
    certificate: Path
    key: Path


class Wish(Struct, frozen=True):
    """None: as it is, or by default."""

    name: str | None = None
    ip: str | None = None
    port: str | None = None
    """A link to make a bridge over."""
    subnet: Subnet | None = None
    addresses: tuple[Address, ...] = ()
    certificates: Certificates | None = None
    operators: tuple[str, ...] = ()

    @property
    def bridges(self) -> dict[str, str]:
        return {} if self.port is None else {bridge_over(self.port): self.port}


def bridge_over(port: str) -> str:
    """The name of a bridge over a port. Pure."""
    name = f"br-{port}"
    return name if len(name) <= 15 else f"br-{zlib.crc32(port.encode()):08x}"


def subnet_of(
    cidr: str | None,
    *,
    gateway: str | None,
    bridge: str | None,
    port: str | None,
    vlan: int | None,
    addresses: Sequence[Address],
) -> tuple[Subnet | None, tuple[Address, ...]]:
    """The first subnet of a node, and its addresses. Pure."""
    if cidr is None:
        for option, value in (("gateway", gateway), ("bridge", bridge), ("vlan", vlan)):
            if value is not None:
                raise Invalid(option, value, "is of a subnet, and none is given", hint="add --subnet CIDR")
        if addresses:
            raise Invalid(
                "addresses", addresses[0].ip, "is of a subnet, and none is given", hint="add --subnet CIDR"
            )
        return None, ()
    if bridge and port:
        raise Invalid(
            "bridge", bridge, f"and a port ({port}) cannot both be the subnet's", hint="give one of them"
        )
    on = bridge or (bridge_over(port) if port else "")
    network = network_of("subnet", cidr)
    subnet = Subnet(SUBNET_ID, str(network), gateway or str(network[1]), bridge=on, vlan=vlan)
    if on and not addresses:
        raise Invalid(
            "addresses", "", f"which addresses of {cidr} are for VMs: others may be in use there already",
            hint="for example: --addresses 10.9.0.50-10.9.0.99",
        )  # fmt: skip
    for address in addresses:
        subnet.check_holds(address)
    return subnet, tuple(addresses) or pool_for(subnet)


def own_address(links: Uplinks) -> str | None:
    """The address under which this host talks to others: that of the link of its default route."""
    for route in links.routes():
        if route.cidr == "0.0.0.0/0" and route.link:
            if route.source:
                return route.source
            return next((one.partition("/")[0] for one in sorted(links.addresses(route.link))), None)
    return None


def check_ip_is_here(ip: str, links: Uplinks) -> None:
    check_ip("ip", ip)
    known = _own_addresses(links)
    if ip not in known:
        raise Invalid(
            "ip", ip, "no link of this host has that address",
            hint=f"it has {', '.join(sorted(known - {'127.0.0.1'})) or 'none'}; give it one first",
        )  # fmt: skip


def check_host_has(wish: Wish, links: Uplinks) -> None:
    """All links that are named are there, and can be used so."""
    if wish.name is not None:
        check_name("name", wish.name)
    if wish.ip is not None:
        check_ip_is_here(wish.ip, links)
    for bridge, port in wish.bridges.items():
        links.check_port(port, bridge)
    if wish.subnet is not None and wish.subnet.bridge and not wish.bridges:
        found = links.find(wish.subnet.bridge)
        if found is None:
            raise NotFound(
                f"bridge {wish.subnet.bridge}: there is no such link on this host",
                hint="see what there is: ip link show type bridge; to make one over a port: --port LINK",
            )
        if found.kind != "bridge":
            raise Conflict(
                f"bridge {wish.subnet.bridge}: that link is not a bridge",
                hint=f"to make a bridge over it: --port {wish.subnet.bridge}",
            )


def _own_addresses(links: Uplinks) -> set[str]:
    """All IPv4 addresses of this machine. A link may go between the two looks, as those of machines do."""
    known: set[str] = set()
    for link in links.names():
        with contextlib.suppress(NotFound):
            known |= {one.partition("/")[0] for one in links.addresses(link)}
    return known
