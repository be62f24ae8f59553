"""The host around a node: the networks that it has already, and its routes to the node's subnets.

    host ── uplink ═══ node ── bridges of its subnets

A node that lives in a network namespace of its own is reached over one link of the host. Effects: routes of the host.
"""

from __future__ import annotations

import ipaddress
import logging
import socket
from collections.abc import Iterable, Sequence

from atoll.errors import Conflict, HostFailure
from atoll.hypervisor.config import Uplink
from atoll.model.network import Subnet
from atoll.system import steps
from atoll.system.links import Links, Route

log = logging.getLogger(__name__)


class Outside:
    """The namespace around the node's own; None: the node lives in the host's."""

    def __init__(self, namespace: str | None = None, node_ip: str = "", uplink: Uplink | None = None) -> None:
        self._namespace = namespace
        self._node_ip = node_ip
        self._uplink = uplink

    def check_free(self, subnet: Subnet) -> None:
        """The host has no network of its own where this subnet, which the node routes, would be."""
        if subnet.bridge or subnet.private:
            return
        with Links(self._namespace) as links:
            routes = links.routes()
        taken = overlapping(subnet, routes, self._node_ip)
        if taken is not None:
            where = f"on {taken.link}" if taken.link else f"by way of {taken.via}"
            raise Conflict(
                f"subnet {subnet.id} ({subnet.cidr}): this host has a route to {taken.cidr} {where} already",
                hint="choose another network; ip route shows those of the host",
            )

    def settle(self, subnets: Sequence[Subnet]) -> None:
        """Routes to the subnets that the node routes, and to no other by way of it.

        A host that refuses keeps no node from serving: that is logged, and tried again with the next subnet or agent.
        """
        if self._uplink is None:
            return
        try:
            self._settle(self._uplink, subnets)
        except HostFailure as error:
            log.error("the host's routes to subnets over %s: %s", self._uplink.link, error)
        steps.step("subnet.routed")

    def _settle(self, uplink: Uplink, subnets: Sequence[Subnet]) -> None:
        own = [subnet for subnet in subnets if not subnet.bridge and not subnet.private]
        with Links(self._namespace) as links:
            _keep_routes(links, socket.AF_INET, self._node_ip, {subnet.cidr for subnet in own})
            if uplink.ip6 is not None:
                networks = {subnet.cidr6 for subnet in own if subnet.cidr6 is not None}
                _keep_routes(links, socket.AF_INET6, uplink.ip6, networks)


def _keep_routes(links: Links, family: int, via: str, wanted: set[str]) -> None:
    """To these networks, and to no others this way."""
    here = {route.cidr for route in links.routes(family) if route.via == via}
    for cidr in sorted(here - wanted):
        links.delete_route(cidr)
    for cidr in sorted(wanted - here):
        links.ensure_route(cidr, via=via)


def overlapping(subnet: Subnet, routes: Iterable[Route], node_ip: str) -> Route | None:
    """The host's route to where a subnet would be, but for default routes and those that lead to the subnet. Pure."""
    for route in routes:
        network = ipaddress.IPv4Network(route.cidr)
        ours = route.via == node_ip or route.link == subnet.bridge_name
        if network.prefixlen and not ours and network.overlaps(subnet.network):
            return route
    return None
