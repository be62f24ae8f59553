"""The cloud's namespace, its uplink to the host, and NAT. Effects: links, routes and one nftables table."""

from __future__ import annotations

from typing import Any

from atoll.cli.cloud.layout import Cloud
from atoll.system import namespaces, nft
from atoll.system.links import Links, read_sysctl, sysctl

UPLINK = "uplink"


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


def forwarding_now(cloud: Cloud) -> dict[str, str]:
    """The switches that NAT needs, as they are."""
    with Links() as here:
        outward = {route.link for route in here.routes() if route.cidr == "0.0.0.0/0" and route.link}
    keys = [f"net/ipv4/conf/{link}/forwarding" for link in sorted({cloud.uplink, *outward})]
    return {key: read_sysctl(key) for key in keys}


def ensure_nat(cloud: Cloud) -> None:
    """Guests reach what the host reaches, under the host's address."""
    nft.apply_blocking(_nat(cloud))
    for key in cloud.forwarding:
        sysctl(key, "1")


def remove_nat(cloud: Cloud) -> None:
    table = {"family": "ip", "name": cloud.nat_table}
    nft.apply_blocking([{"add": {"table": table}}, {"delete": {"table": table}}])
    with Links() as here:
        present = here.names()
    for key, value in cloud.forwarding.items():
        if key.split("/")[3] in present:
            sysctl(key, value)


def _nat(cloud: Cloud) -> list[dict[str, Any]]:
    table = {"family": "ip", "name": cloud.nat_table}
    inside = {"family": "ip", "table": cloud.nat_table}
    source = {"payload": {"protocol": "ip", "field": "saddr"}}
    network = {
        "prefix": {"addr": str(cloud.subnet.network.network_address), "len": cloud.subnet.network.prefixlen}
    }
    outward = {"meta": {"key": "oifname"}}
    hook = {"type": "nat", "hook": "postrouting", "prio": 100, "policy": "accept"}
    return [
        {"add": {"table": table}},
        {"delete": {"table": table}},
        {"add": {"table": table}},
        {"add": {"chain": {**inside, "name": "postrouting", **hook}}},
        {
            "add": {
                "rule": {
                    **inside,
                    "chain": "postrouting",
                    "expr": [
                        {"match": {"op": "==", "left": source, "right": network}},
                        {"match": {"op": "!=", "left": outward, "right": cloud.uplink}},
                        {"masquerade": None},
                    ],
                }
            }
        },
    ]
