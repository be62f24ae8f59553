"""The cloud's namespace, its uplink to the host, and NAT. Effects: links, routes, nftables, forwarding of the host.

What the rules of NAT are is decided in atoll.cli.cloud.nat.
"""

from __future__ import annotations

from atoll.cli.cloud import nat
from atoll.cli.cloud.layout import UPLINK, Cloud
from atoll.system import namespaces, nft, switches
from atoll.system.links import Links


def ensure(cloud: Cloud) -> None:
    """The namespace is reachable from the host by a route; nothing of the host's firewall is touched."""
    namespaces.ensure(cloud.namespace)
    with Links() as here, Links(cloud.namespace) as there:
        here.ensure_veth(cloud.uplink, UPLINK, cloud.namespace, ipv6=cloud.subnet.cidr6 is not None)
        here.add_address(cloud.uplink, f"{cloud.host_ip}/31")
        here.up(cloud.uplink)
        there.add_address(UPLINK, f"{cloud.node_ip}/31")
        there.up(UPLINK)
        there.ensure_route("0.0.0.0/0", via=cloud.host_ip)
        here.ensure_route(cloud.subnet.cidr, via=cloud.node_ip)
        if cloud.subnet.cidr6 is not None:
            here.add_address(cloud.uplink, f"{cloud.host_ip6}/64")
            there.add_address(UPLINK, f"{cloud.node_ip6}/64")
            there.ensure_route("::/0", via=cloud.host_ip6)
            here.ensure_route(cloud.subnet.cidr6, via=cloud.node_ip6)


def remove(cloud: Cloud) -> None:
    """Everything of `ensure`, and the agent's own namespaces. Gone is fine."""
    for name in namespaces.names():
        if name.startswith(f"{cloud.namespace}-"):
            namespaces.delete(name)
    with Links() as here:
        here.delete(cloud.uplink)
    namespaces.delete(cloud.namespace)


def ensure_nat(cloud: Cloud) -> None:
    """Guests reach what the host reaches, under the host's address. Nobody reaches guests, or the host, by that."""
    outward = _outward()
    keys = [f"net/ipv4/conf/{link}/forwarding" for link in (cloud.uplink, *outward)]
    # The rules first: there is no moment at which the host forwards what they are to stop.
    before = switches.claim(cloud.id, keys, known=cloud.forwarding)
    shut = [link for link in outward if before[f"net/ipv4/conf/{link}/forwarding"] == "0"]
    nft.run_blocking(nat.rules(cloud, shut))
    switches.set_claimed(cloud.id, "1")
    nft.run_blocking(nat.OPEN, cloud.namespace)


def remove_nat(cloud: Cloud) -> None:
    """Everything of `ensure_nat`. Gone is fine."""
    if cloud.namespace in namespaces.names():
        nft.run_blocking(nat.CLOSED, cloud.namespace)
    switches.give_back(cloud.id)
    nft.run_blocking(nat.no_rules(cloud))


def _outward() -> list[str]:
    """The links that lead from this host to everywhere."""
    with Links() as here:
        return sorted({route.link for route in here.routes() if route.cidr == "0.0.0.0/0" and route.link})
