"""Bridges, pairs of links, bridge ports and taps of one network namespace. Speaks netlink.

What is made here carries IPv4 only, unless it is told otherwise: IPv6 is switched off on it, or every link
would chatter on its own.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pyroute2.netlink import rtnl
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
from pyroute2.netlink.rtnl.ndmsg import ndmsg

from atoll.errors import Conflict
from atoll.system import namespaces
from atoll.system.addressing import IFF_UP, Addressing, Link, Route, checked_name
from atoll.system.failures import failing, ignoring
from atoll.system.netlink import NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, Attributes

__all__ = ["Link", "Links", "Route", "missing", "open_tap", "sysctl"]

T = TypeVar("T")

_NUD_NOARP = 0x40
_NTF_MASTER = 0x04
_NTF_STICKY = 0x40
_TUNSETIFF = 0x400454CA
_IFF_TAP = 0x0002
_IFF_NO_PI = 0x1000
_IFF_VNET_HDR = 0x4000


class Links(Addressing):
    """The links of one namespace (None: where we are). Each method may be repeated."""

    def ensure_bridge(
        self, name: str, mac: str, mtu: int, addresses: Sequence[str] = (), ipv6: bool = False
    ) -> None:
        """A bridge that forwards at once, keeps its MAC whatever joins it, and has these addresses."""
        with failing(f"making bridge {name}"):
            found = self.find(name)
            if found is not None and found.kind != "bridge":
                raise _not_a("bridge", name, found)
            settings = _info(
                "bridge",
                [("IFLA_BR_FORWARD_DELAY", 0), ("IFLA_BR_STP_STATE", 0), ("IFLA_BR_MCAST_SNOOPING", 0)],
            )
            attributes = [("IFLA_IFNAME", checked_name(name)), ("IFLA_MTU", mtu), settings]
            if found is None or found.mac != mac:
                attributes.append(("IFLA_ADDRESS", mac))
            self._link(rtnl.RTM_NEWLINK, 0 if found is None else found.index, attributes, NLM_F_CREATE)
            self._set_ipv6(name, ipv6)
            self.up(name)
        for address in addresses:
            self.add_address(name, address)

    def ensure_veth(
        self,
        name: str,
        peer: str,
        peer_namespace: str | None,
        mac: str | None = None,
        peer_mac: str | None = None,
        mtu: int = 1500,
        master: str | None = None,
        ipv6: bool = False,
    ) -> None:
        """A pair of links, both up; the peer in another namespace, or beside it when that is None."""
        there = self.namespace if peer_namespace is None else peer_namespace
        with failing(f"making link {name} with peer {peer}"), Links(there) as peers:
            if not self._paired(name, peers.find(peer)):
                self.delete(name)
                self._make_veth(name, peer, there)
            self._repair(name, mac, mtu, ipv6)
            peers._repair(peer, peer_mac, mtu, ipv6)
            if master is not None:
                self.set_master(name, master)

    def make_port(
        self, name: str, bridge: str, mtu: int, peer: str, peer_mac: str, peer_namespace: str | None = None
    ) -> None:
        """A pair of links: one end up in a bridge, the other, with its MAC, switched off, to be given away.

        What goes into another namespace goes there fastest while it is off, and at once if it is known.
        """
        with (
            failing(f"making link {name} in bridge {bridge} with peer {peer}"),
            contextlib.ExitStack() as stack,
        ):
            master = self._get(bridge).index
            other = [("IFLA_IFNAME", checked_name(peer)), ("IFLA_ADDRESS", peer_mac), ("IFLA_MTU", mtu)]
            if peer_namespace is not None:
                other.append(("IFLA_NET_NS_FD", stack.enter_context(namespaces.opened(peer_namespace))))
            pair = _info("veth", [("VETH_INFO_PEER", {"attrs": other})])
            attributes = [
                ("IFLA_IFNAME", checked_name(name)),
                ("IFLA_MTU", mtu),
                ("IFLA_MASTER", master),
                pair,
            ]
            self._link(rtnl.RTM_NEWLINK, 0, attributes, NLM_F_CREATE | NLM_F_EXCL)
            self._set_ipv6(name, False)
            self.up(name)

    def set_master(self, link: str, bridge: str) -> None:
        """Put a link into a bridge."""
        with failing(f"putting link {link} into bridge {bridge}"):
            port, to = self._get(link), self._get(bridge)
            if port.master_index != to.index:
                self._link(rtnl.RTM_NEWLINK, port.index, [("IFLA_MASTER", to.index)])

    def up(self, link: str) -> None:
        """Switch a link on."""
        with failing(f"switching on link {link}"):
            found = self._get(link)
            if not found.up:
                fields = {"index": found.index, "flags": IFF_UP, "change": IFF_UP}
                self._netlink.request(rtnl.RTM_NEWLINK, ifinfmsg, fields, [])

    def allow_ipv6(self, link: str) -> None:
        """Let a link have IPv6 addresses, and one of its own that follows from its MAC."""
        with failing(f"switching on IPv6 on link {link}"):
            self._set_ipv6(self._get(link).name, True)

    def delete(self, link: str) -> None:
        """Remove a link; of a pair, both ends go. Gone is fine."""
        with failing(f"removing link {link}"), ignoring(errno.ENODEV):
            self._link(rtnl.RTM_DELLINK, 0, [("IFLA_IFNAME", checked_name(link))])

    def set_fdb(self, link: str, mac: str) -> None:
        """Tell the bridge of a port for good that a MAC is behind that port, whoever else sends as it."""
        with failing(f"binding {mac} to port {link}"):
            fields = {
                "family": socket.AF_BRIDGE,
                "ifindex": self._get(link).index,
                "state": _NUD_NOARP,
                "flags": _NTF_MASTER | _NTF_STICKY,
            }
            attributes = [("NDA_LLADDR", mac)]
            self._netlink.request(rtnl.RTM_NEWNEIGH, ndmsg, fields, attributes, NLM_F_CREATE | NLM_F_REPLACE)

    def port_flags(self, link: str, learning: bool, isolated: bool) -> None:
        """Whether a bridge learns MACs from a port, and whether isolated ports may talk to each other."""
        with failing(f"setting the flags of port {link}"):
            flags = [("IFLA_BRPORT_LEARNING", int(learning)), ("IFLA_BRPORT_ISOLATED", int(isolated))]
            port = [("IFLA_INFO_SLAVE_KIND", "bridge"), ("IFLA_INFO_SLAVE_DATA", {"attrs": flags})]
            self._link(rtnl.RTM_NEWLINK, self._get(link).index, [("IFLA_LINKINFO", {"attrs": port})])

    def _paired(self, name: str, peer: Link | None) -> bool:
        found = self.find(name)
        if found is not None and found.kind != "veth":
            raise _not_a("veth", name, found)
        return found is not None and peer is not None and found.peer_index == peer.index

    def _make_veth(self, name: str, peer: str, peer_namespace: str | None) -> None:
        with contextlib.ExitStack() as stack:
            other: list[tuple[str, Any]] = [("IFLA_IFNAME", checked_name(peer))]
            if peer_namespace is not None:
                descriptor = stack.enter_context(namespaces.opened(peer_namespace))
                other.append(("IFLA_NET_NS_FD", descriptor))
            pair = _info("veth", [("VETH_INFO_PEER", {"attrs": other})])
            attributes = [("IFLA_IFNAME", checked_name(name)), pair]
            self._link(rtnl.RTM_NEWLINK, 0, attributes, NLM_F_CREATE | NLM_F_EXCL)

    def _repair(self, name: str, mac: str | None, mtu: int, ipv6: bool = False) -> None:
        found = self._get(name)
        attributes: list[tuple[str, Any]] = []
        if mac is not None and found.mac != mac:
            attributes.append(("IFLA_ADDRESS", mac))
        if found.mtu != mtu:
            attributes.append(("IFLA_MTU", mtu))
        if attributes:
            self._link(rtnl.RTM_NEWLINK, found.index, attributes)
        self._set_ipv6(name, ipv6)
        self.up(name)

    def _set_ipv6(self, name: str, on: bool) -> None:
        """With IPv6 or without it. With it, a link believes no router, and its addresses are good at once."""
        switches = {"accept_ra": "0", "accept_dad": "0", "disable_ipv6": "0"} if on else {"disable_ipv6": "1"}
        folder = Path("/proc/sys/net/ipv6/conf", name)

        def switch() -> None:
            # Writing takes milliseconds even where nothing changes. No such file: a kernel without IPv6.
            for key, value in switches.items():
                path = folder / key
                if path.exists() and path.read_text().strip() != value:
                    path.write_text(value)

        _in(self.namespace, switch)


def open_tap(name: str, bridge: str, mtu: int, namespace: str | None = None) -> int:
    """A tap in a bridge, up; it lives as long as somebody has its descriptor open, which is returned.

    Without a bridge (an empty name) it leads nowhere.
    """
    with failing(f"making tap {name} in bridge {bridge or '(none)'}"), Links(namespace) as links:
        descriptor = _in(namespace, lambda: _open_tap(checked_name(name)))
        try:
            links._repair(name, None, mtu)
            if bridge:
                links.set_master(name, bridge)
        except BaseException:
            os.close(descriptor)
            raise
    return descriptor


def missing(names: Sequence[str], namespace: str | None = None) -> tuple[str, ...]:
    """Those of these links that are not there."""
    with Links(namespace) as links:
        return tuple(name for name in names if not links.exists(name))


def sysctl(key: str, value: str, namespace: str | None = None) -> None:
    """Set a kernel parameter: net.ipv4.ip_forward, or net/ipv4/conf/a.b/rp_filter where names have dots."""
    with failing(f"setting {key} to {value}"):
        # What is below net is that of the namespace of the thread that opens it.
        _in(namespace, lambda: _parameter(key).write_text(value))


def forward_ipv6(namespace: str | None = None) -> None:
    """Pass IPv6 packets on between links. Those that listened to routers go on doing so, which would end."""

    def switch() -> None:
        folder = Path("/proc/sys/net/ipv6/conf")
        if (folder / "all/forwarding").read_text().strip() == "1":
            return
        for path in folder.glob("*/accept_ra"):
            if path.parent.name not in ("all", "default") and path.read_text().strip() == "1":
                path.write_text("2")
        (folder / "all/forwarding").write_text("1")

    with failing("forwarding IPv6"):
        _in(namespace, switch)


def read_sysctl(key: str, namespace: str | None = None) -> str:
    """A kernel parameter, named as for `sysctl`."""
    with failing(f"reading {key}"):
        return _in(namespace, lambda: _parameter(key).read_text().strip())


def _parameter(key: str) -> Path:
    return Path("/proc/sys", key if "/" in key else key.replace(".", "/"))


def _open_tap(name: str) -> int:
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
    try:
        request = struct.pack("16sH22x", name.encode(), _IFF_TAP | _IFF_NO_PI | _IFF_VNET_HDR)
        fcntl.ioctl(descriptor, _TUNSETIFF, request)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _in(namespace: str | None, function: Callable[[], T]) -> T:
    return function() if namespace is None else namespaces.inside(namespace, function)


def _info(kind: str, data: Attributes) -> tuple[str, Any]:
    return "IFLA_LINKINFO", {"attrs": [("IFLA_INFO_KIND", kind), ("IFLA_INFO_DATA", {"attrs": list(data)})]}


def _not_a(kind: str, name: str, found: Link) -> Conflict:
    return Conflict(
        f"making {kind} {name}: a link of kind {found.kind or 'physical'} has that name",
        hint=f"rename or remove it: ip link delete {name}",
    )
