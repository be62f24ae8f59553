"""Physical ports: what a port carries, bridges over it, VLANs of it. Speaks netlink."""

from __future__ import annotations

import errno
import socket
import zlib

from pyroute2.netlink import rtnl
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg

from atoll.errors import Conflict, HostFailure, NotFound
from atoll.model.network import vlan_link
from atoll.system.addressing import IFF_UP, Link, checked_name
from atoll.system.failures import failing
from atoll.system.links import Links
from atoll.system.netlink import NLM_F_CREATE, NLM_F_EXCL, Attributes

OWN_BRIDGE = "02:a8:"
"""Begins the MAC of every bridge that we make, and of nobody else's."""


class Uplinks(Links):
    """The links of one namespace, seen as ways out of it. Each method may be repeated."""

    def attached(self, bridge: str) -> set[str]:
        """The names of the ports of a bridge."""
        index = self._get(bridge).index
        with failing(f"listing the ports of bridge {bridge}"):
            return {
                one.get_attr("IFLA_IFNAME") for one in self._all() if one.get_attr("IFLA_MASTER") == index
            }

    def carried(self, port: str) -> set[str]:
        """The addresses and routes that the host has on a link: what it would lose as a port of a bridge."""
        lasting = {one for one in self.addresses(port, socket.AF_INET6) if not one.startswith("fe80:")}
        routes = {f"a route to {route.cidr}" for route in self.routes() if route.link == port}
        return self.addresses(port) | lasting | routes

    def check_port(self, port: str, bridge: str) -> Link:
        """The link, if a bridge can be made over it: ours to take, and the host does not talk through it."""
        found = self.find(port)
        if found is None:
            raise NotFound(
                f"bridge {bridge}: there is no link {port} to make it over", hint="see what there is: ip link"
            )
        if found.kind == "bridge":
            raise Conflict(
                f"bridge {bridge} over {port}: that is a bridge itself",
                hint=f"name it as it is: --bridge {port}",
            )
        master = self.find(bridge)
        if master is not None and not master.mac.startswith(OWN_BRIDGE):
            raise Conflict(
                f"bridge {bridge} over {port}: a link of that name is there, and not ours",
                hint="choose another name for the bridge; an existing one is used with: --bridge NAME",
            )
        if master is not None and found.master_index == master.index:
            return found
        if found.master_index:
            raise Conflict(
                f"bridge {bridge} over {port}: it is the port of another bridge",
                hint="name that one with: --bridge NAME (see: ip link)",
            )
        if carried := self.carried(port):
            raise Conflict(
                f"bridge {bridge} over {port}: the host itself talks through it ({', '.join(sorted(carried))})",
                hint="make a bridge over it in the host's own network settings, which move its addresses safely,"
                " then name that one with: --bridge NAME",
            )
        return found

    def down(self, link: str) -> None:
        """Switch a link off."""
        with failing(f"switching off link {link}"):
            fields = {"index": self._get(link).index, "flags": 0, "change": IFF_UP}
            self._netlink.request(rtnl.RTM_NEWLINK, ifinfmsg, fields, [])

    def ensure_bridge_over(self, port: str, bridge: str) -> None:
        """A bridge with this port in it. The host has no address there."""
        found = self.check_port(port, bridge)
        self._bridge(found, bridge)

    def ensure_vlan_bridge(self, port: str, vlan: int, bridge: str) -> None:
        """A bridge of what is tagged with one VLAN on a port."""
        link = vlan_link(port, vlan)
        parent = self._get(port)
        with failing(f"making VLAN {vlan} of link {port}"):
            found = self.find(link)
            if found is None:
                self._add_vlan(link, parent, vlan)
                found = self._get(link)
            elif found.kind != "vlan":
                raise Conflict(
                    f"making VLAN {vlan} of link {port}: a link that is no VLAN has the name {link}",
                    hint=f"rename or remove it: ip link delete {link}",
                )
        self.up(port)
        self._bridge(found, bridge)

    def _bridge(self, port: Link, bridge: str) -> None:
        self.ensure_bridge(bridge, own_mac(bridge, port.mac), port.mtu)
        self.up(port.name)
        self.set_master(port.name, bridge)

    def _add_vlan(self, link: str, port: Link, vlan: int) -> None:
        try:
            self._link(
                rtnl.RTM_NEWLINK, 0, vlan_attributes(link, port.index, vlan), NLM_F_CREATE | NLM_F_EXCL
            )
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.ENODEV):
                raise
            raise HostFailure(
                f"making VLAN {vlan} of link {port.name}: this kernel has no 802.1Q",
                hint="modprobe 8021q, or boot a kernel with CONFIG_VLAN_8021Q",
            ) from None


def vlan_attributes(link: str, port_index: int, vlan: int) -> Attributes:
    """What the kernel is told to make a VLAN of a link. Pure."""
    info = [("IFLA_INFO_KIND", "vlan"), ("IFLA_INFO_DATA", {"attrs": [("IFLA_VLAN_ID", vlan)]})]
    return [
        ("IFLA_IFNAME", checked_name(link)),
        ("IFLA_LINK", port_index),
        ("IFLA_LINKINFO", {"attrs": info}),
    ]


def own_mac(bridge: str, port_mac: str) -> str:
    """The MAC of a bridge over a port: the same each time, and another on every node of that network. Pure."""
    digits = zlib.crc32(f"{bridge} {port_mac}".encode()).to_bytes(4, "big")
    return OWN_BRIDGE + ":".join(f"{byte:02x}" for byte in digits)
