"""Bridges of subnets that are networks outside of this node: over a physical port, a VLAN of it, or existing ones.

    eth1 ────────────── lan ─────── VMs of a subnet on bridge lan
     └── eth1.123 ───── lan.123 ─── VMs of a subnet on bridge lan with vlan 123

Effects: links of the namespace that the agent lives in, through atoll.system.
"""

from __future__ import annotations

from collections.abc import Mapping

from atoll.errors import Conflict, NotFound
from atoll.model.network import Subnet
from atoll.plan.firewall import PORT_PREFIX, SERVICE_PREFIX
from atoll.system.uplinks import Uplinks


def ensure_bridges(bridges: Mapping[str, str]) -> None:
    """The bridges of this node's configuration: name and port."""
    with Uplinks() as links:
        for bridge, port in bridges.items():
            links.ensure_bridge_over(port, bridge)


def ensure_bridge(subnet: Subnet, namespace: str | None = None) -> None:
    """The bridge that a subnet names is there; that of its VLAN is made. `namespace`: the name of where we are."""
    with Uplinks() as links:
        found = links.find(subnet.bridge)
        if found is None:
            raise _no_bridge(subnet, namespace)
        if found.kind != "bridge":
            raise Conflict(
                f"subnet {subnet.id}: link {subnet.bridge} is not a bridge",
                hint=f'to make one over it: lan = "{subnet.bridge}" under [bridges] in the configuration',
            )
        if subnet.vlan is not None:
            port = _port_of(subnet, links.attached(subnet.bridge))
            links.ensure_vlan_bridge(port, subnet.vlan, subnet.bridge_name)


def _no_bridge(subnet: Subnet, namespace: str | None) -> NotFound:
    if namespace is None:
        return NotFound(
            f"subnet {subnet.id}: bridge {subnet.bridge} does not exist on this node",
            hint="make it, or have the agent make it over a port: [bridges] in its configuration;"
            " or leave the bridge out, and the agent makes one of its own",
        )
    return NotFound(
        f"subnet {subnet.id}: bridge {subnet.bridge} does not exist in network namespace {namespace}, where this"
        " node lives: bridges of the host are not there",
        hint="leave the bridge out, and the agent makes one of its own; or give the node a port of the host:"
        f" ip link set dev PORT netns {namespace}, and [bridges] in its settings",
    )


def _port_of(subnet: Subnet, attached: set[str]) -> str:
    """The way out of a bridge: its one port that is neither a VM's nor ours. Pure."""
    ways_out = sorted(port for port in attached if not port.startswith((PORT_PREFIX, SERVICE_PREFIX)))
    if len(ways_out) != 1:
        raise Conflict(
            f"subnet {subnet.id}: vlan {subnet.vlan} of bridge {subnet.bridge}, which has"
            f" {', '.join(ways_out) or 'no port'}: it must have one port, and only one",
            hint="name a bridge over the port that the VLAN comes in on",
        )
    return ways_out[0]
