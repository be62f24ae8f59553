"""What a one-node cloud consists of: names, addresses and paths. Pure.

host ── atl-<n> ═══ uplink ── namespace atoll-<id> ── br-default ── VMs
10.213.<128+n>.0/31           10.213.<128+n>.1 is the node, 10.213.<n>.0/24 the subnet
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Collection, Iterable
from pathlib import Path

from msgspec import Struct

from atoll.errors import Conflict, Invalid
from atoll.model.network import Address, Subnet, mac_for

CLOUDS = 128
UPLINK = "uplink"
"""The link to the host, in the cloud's namespace."""
BLOCK = "10.213"
POOL_LIMIT = 1024


class Paths:
    """Where things are in the directory of a cloud or of an installed node, whose configuration is elsewhere."""

    def __init__(self, directory: Path, config: Path | None = None) -> None:
        self.directory = directory
        self.cloud = directory / "cloud.json"
        self.installed = directory / "install.json"
        self.settings = directory / "settings.toml"
        self.lock = directory / "up.lock"
        self.pki = directory / "pki"
        self.node = directory / "node"
        self.server = directory / "server"
        self.client = directory / "client"
        self.context = directory / "client" / "context.json"
        self.images = directory / "images"
        self.cache = directory / "cache"
        self.agent = config or directory / "agent.json"
        self.pid = directory / "agent.pid"
        self.log = directory / "agent.log"
        self.hooks = directory / "hooks.json"
        self.keeper = directory / "keeper.pid"
        self.keeper_lock = directory / "keeper.lock"


class Cloud(Struct, frozen=True):
    """The facts of one cloud, kept in cloud.json."""

    id: str
    number: int
    subnet: Subnet
    nat: bool = False
    forwarding: dict[str, str] = {}
    """Forwarding switches of the host as they were before NAT changed them, where an earlier version noted it here."""
    templates: int | None = None
    hot_pool: int | None = None
    """What the agent is told of both; None leaves it to the agent."""
    listen: tuple[str, ...] = ()
    """Addresses of the host, with ports, at which the API is served too."""
    known_as: tuple[str, ...] = ()
    """Names and addresses by which others reach it there, beside these."""

    @property
    def namespace(self) -> str:
        return f"atoll-{self.id}"

    @property
    def uplink(self) -> str:
        return f"atl-{self.number}"

    @property
    def host_ip(self) -> str:
        return f"{BLOCK}.{CLOUDS + self.number}.0"

    @property
    def node_ip(self) -> str:
        return f"{BLOCK}.{CLOUDS + self.number}.1"

    @property
    def host_ip6(self) -> str:
        return f"{_block6(self.id)}:ffff::1"

    @property
    def node_ip6(self) -> str:
        return f"{_block6(self.id)}:ffff::2"

    @property
    def cgroup(self) -> str:
        return f"atoll/{self.id}"

    @property
    def nat_table(self) -> str:
        return self.namespace


def plan(
    cloud_id: str,
    cidr: str | None,
    taken: Collection[str],
    links: Collection[str],
    nat: bool,
    ipv6: bool = False,
) -> Cloud:
    """A new cloud on addresses that nobody on this host uses. `taken`: the networks of its routes."""
    cidr6 = f"{_block6(cloud_id)}::/64" if ipv6 else None
    networks = [ipaddress.IPv4Network(network, strict=False) for network in taken]
    for number in range(CLOUDS):
        cloud = Cloud(cloud_id, number, subnet_for(cidr or f"{BLOCK}.{number}.0/24", cidr6), nat)
        link = ipaddress.IPv4Network(f"{cloud.host_ip}/31")
        if cloud.uplink in links or _overlap(link, networks):
            continue
        if not _overlap(cloud.subnet.network, networks):
            return cloud
        if cidr is not None:
            raise Conflict(
                f"subnet {cidr}: this host has a route to it already",
                hint="choose another one, or let atoll up choose",
            )
    raise Conflict(
        f"no free network in {BLOCK}.0.0/16 for another cloud",
        hint="name one with: atoll up --subnet 192.168.77.0/24",
    )


def _block6(cloud_id: str) -> str:
    """The first 48 bits of a cloud's IPv6 addresses: private ones (RFC 4193) that nobody else picks."""
    digits = hashlib.sha256(f"atoll {cloud_id}".encode()).hexdigest()
    groups = f"fd{digits[:2]}", digits[2:6], digits[6:10]
    return ":".join(f"{int(group, 16):x}" for group in groups)


def subnet_for(cidr: str, cidr6: str | None = None) -> Subnet:
    """The first subnet of a cloud: its gateway is the node."""
    try:
        network = ipaddress.IPv4Network(cidr)
    except ValueError as error:
        raise Invalid("subnet", cidr, str(error), hint="write a network such as 10.99.0.0/24") from None
    if cidr6 is None:
        return Subnet(id="default", cidr=str(network), gateway=str(network[1]), domain="atoll.internal")
    network6 = ipaddress.IPv6Network(cidr6)
    return Subnet(
        id="default",
        cidr=str(network),
        gateway=str(network[1]),
        domain="atoll.internal",
        cidr6=str(network6),
        gateway6=str(network6[1]),
    )


def pool_for(subnet: Subnet) -> tuple[Address, ...]:
    """Every address of the subnet but those of its gateway and services, up to a limit; more can be added."""
    hosts: Iterable[ipaddress.IPv4Address] = subnet.network.hosts()
    ips = (str(ip) for ip, _ in zip(hosts, range(POOL_LIMIT), strict=False))
    return tuple(Address(ip, mac_for(ip)) for ip in ips if ip not in (subnet.gateway, subnet.service_ip))


def _overlap(network: ipaddress.IPv4Network, others: Iterable[ipaddress.IPv4Network]) -> bool:
    # A default route is a route to everywhere and says nothing.
    return any(other.prefixlen and network.overlaps(other) for other in others)
