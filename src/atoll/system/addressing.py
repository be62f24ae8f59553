"""Addresses, routes and neighbours of one network namespace, and finding its links. Speaks netlink."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import struct
from collections.abc import Collection, Mapping
from types import TracebackType
from typing import Any, Protocol, Self

from msgspec import Struct
from pyroute2.netlink import nlmsg, rtnl
from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
from pyroute2.netlink.rtnl.rtmsg import rtmsg

from atoll.errors import Invalid, NotFound
from atoll.system.failures import failing, ignoring
from atoll.system.netlink import (
    NLM_F_CREATE,
    NLM_F_EXCL,
    NLM_F_REPLACE,
    Attributes,
    Netlink,
    attribute,
)

IFF_UP = 0x1
_SKIP_STATISTICS = 0x8
_NUD_PERMANENT = 0x80
_NEIGHBOUR = struct.Struct("=B3xiHBB")
_NDA_DST, _NDA_LLADDR = 1, 2
_IFA_F_NODAD = 0x02
_RT_TABLE_MAIN = 254
_RTPROT_STATIC = 4
_RTN_UNICAST = 1
_SCOPE_LINK = 253


Interface = ipaddress.IPv4Interface | ipaddress.IPv6Interface


class Versioned(Protocol):
    """An address or a network of either family."""

    @property
    def version(self) -> int: ...


class Link(Struct, frozen=True):
    """A link as the kernel shows it. `peer_index` is the other end of a veth, `master_index` its bridge."""

    index: int
    name: str
    kind: str
    mac: str
    mtu: int
    up: bool
    master_index: int
    peer_index: int


class Route(Struct, frozen=True):
    """A route of the main table."""

    cidr: str
    via: str | None
    link: str | None
    source: str | None


class Addressing:
    """Finds the links of one namespace (None: where we are), and says what goes where. For `Links`."""

    def __init__(self, namespace: str | None = None) -> None:
        self.namespace = namespace
        self._netlink = Netlink(namespace)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._netlink.close()

    def find(self, link: str) -> Link | None:
        """The link of that name, if there is one."""
        attributes = [("IFLA_IFNAME", checked_name(link)), ("IFLA_EXT_MASK", _SKIP_STATISTICS)]
        with failing(f"looking for link {link}"), ignoring(errno.ENODEV):
            return _seen(self._link(rtnl.RTM_GETLINK, 0, attributes)[0])
        return None

    def exists(self, link: str) -> bool:
        return self.find(link) is not None

    def names(self) -> set[str]:
        """The names of all links."""
        with failing("listing links"):
            return {link.get_attr("IFLA_IFNAME") for link in self._all()}

    def add_address(self, link: str, cidr: str) -> None:
        """Give a link an address, 10.1.0.1/24 or fd00::1/64. The same one with another prefix is replaced."""
        wanted = _interface(cidr)
        with failing(f"giving address {cidr} to link {link}"):
            index = self._get(link).index
            for other in self.addresses(link, _family(wanted)) - {str(wanted)}:
                if ipaddress.ip_interface(other).ip == wanted.ip:
                    self._address(rtnl.RTM_DELADDR, index, _interface(other))
            with ignoring(errno.EEXIST):
                self._address(rtnl.RTM_NEWADDR, index, wanted, NLM_F_CREATE | NLM_F_EXCL)

    def keep_addresses(self, link: str, wanted: Collection[str]) -> None:
        """Take from a link all addresses but these, and but those that are of the link alone."""
        with failing(f"taking addresses from link {link}"):
            index = self._get(link).index
            found = self.addresses(link) | self.addresses(link, socket.AF_INET6)
            for other in map(_interface, found - set(wanted)):
                if other.version == 4 or not other.is_link_local:
                    self._address(rtnl.RTM_DELADDR, index, other)

    def addresses(self, link: str, family: int = socket.AF_INET) -> set[str]:
        """The addresses of a link, with their prefix lengths: of IPv4, or those of another family."""
        with failing(f"listing addresses of link {link}"):
            fields = {"family": family, "index": self._get(link).index}
            found = self._netlink.dump(rtnl.RTM_GETADDR, ifaddrmsg, fields)
            # Those of IPv6 have no IFA_LOCAL: no two ends of a link.
            ips = ((one.get_attr("IFA_LOCAL") or one.get_attr("IFA_ADDRESS"), one) for one in found)
            return {f"{ip}/{one['prefixlen']}" for ip, one in ips}

    def ensure_route(
        self, cidr: str, via: str | None = None, link: str | None = None, source: str | None = None
    ) -> None:
        """Send what goes to a network through a gateway or a link. Replaces another route to that network."""
        with failing(f"routing {cidr}"):
            attributes: list[tuple[str, Any]] = []
            if via is not None:
                attributes.append(("RTA_GATEWAY", via))
            if link is not None:
                attributes.append(("RTA_OIF", self._get(link).index))
            if source is not None:
                attributes.append(("RTA_PREFSRC", source))
            scope = _SCOPE_LINK if via is None else 0
            self._route(rtnl.RTM_NEWROUTE, cidr, scope, attributes, NLM_F_CREATE | NLM_F_REPLACE)

    def delete_route(self, cidr: str) -> None:
        """Remove the route to a network. Gone is fine."""
        with failing(f"removing the route to {cidr}"), ignoring(errno.ESRCH):
            # 255, "nowhere": matches a route of any scope.
            self._route(rtnl.RTM_DELROUTE, cidr, 255, [])

    def routes(self, family: int = socket.AF_INET) -> list[Route]:
        """The routes of the main table, of IPv4 or IPv6."""
        everywhere = "0.0.0.0" if family == socket.AF_INET else "::"
        with failing("listing routes"):
            names = {link["index"]: link.get_attr("IFLA_IFNAME") for link in self._all()}
            fields = {"family": family, "table": _RT_TABLE_MAIN}
            found = self._netlink.dump(rtnl.RTM_GETROUTE, rtmsg, fields)
            return [
                Route(
                    cidr=f"{one.get_attr('RTA_DST') or everywhere}/{one['dst_len']}",
                    via=one.get_attr("RTA_GATEWAY"),
                    link=names.get(one.get_attr("RTA_OIF")),
                    source=one.get_attr("RTA_PREFSRC"),
                )
                for one in found
            ]

    def set_neighbour(self, link: str, ip: str, mac: str) -> None:
        """Tell the kernel for good which MAC an address has, so that it need not ask."""
        self.set_neighbours(link, {ip: mac})

    def set_neighbours(self, link: str, macs: Mapping[str, str]) -> None:
        """As `set_neighbour`, of many: MACs by their addresses."""
        with failing(f"setting neighbours of link {link}"):
            index = self._netlink.index(checked_name(link))
            for ip, mac in macs.items():
                body = _neighbour(index, ip) + attribute(_NDA_LLADDR, bytes.fromhex(mac.replace(":", "")))
                self._netlink.tell(rtnl.RTM_NEWNEIGH, body, NLM_F_CREATE | NLM_F_REPLACE)

    def delete_neighbour(self, link: str, ip: str) -> None:
        """Forget a neighbour. Gone is fine, and so is a link that is gone."""
        gone = (errno.ENOENT, errno.ENODEV)
        with failing(f"forgetting neighbour {ip} of link {link}"), ignoring(*gone):
            index = self._netlink.index(checked_name(link))
            self._netlink.tell(rtnl.RTM_DELNEIGH, _neighbour(index, ip))

    def _get(self, name: str) -> Link:
        found = self.find(name)
        if found is None:
            where = "here" if self.namespace is None else f"in namespace {self.namespace}"
            raise NotFound(f"looking for link {name}: there is none {where}", hint="see: ip link")
        return found

    def _all(self) -> list[nlmsg]:
        return self._netlink.dump(rtnl.RTM_GETLINK, ifinfmsg, {"family": socket.AF_UNSPEC})

    def _link(self, kind: int, index: int, attributes: Attributes, flags: int = 0) -> list[nlmsg]:
        return self._netlink.request(kind, ifinfmsg, {"index": index}, attributes, flags)

    def _address(self, kind: int, index: int, address: Interface, flags: int = 0) -> None:
        fields = {"family": _family(address), "prefixlen": address.network.prefixlen, "index": index}
        if address.version == 6:
            # Ours by decree: nobody needs to be asked, and a second's wait would be one of the first guest.
            fields["flags"] = _IFA_F_NODAD
        attributes = [("IFA_LOCAL", str(address.ip)), ("IFA_ADDRESS", str(address.ip))]
        if address.version == 4 and address.network.prefixlen < 31:
            attributes.append(("IFA_BROADCAST", str(address.network.broadcast_address)))
        self._netlink.request(kind, ifaddrmsg, fields, attributes, flags)

    def _route(self, kind: int, cidr: str, scope: int, attributes: Attributes, flags: int = 0) -> None:
        network = ipaddress.ip_network(cidr)
        fields = {
            "family": _family(network),
            "dst_len": network.prefixlen,
            "table": _RT_TABLE_MAIN,
            "scope": scope,
        }
        if kind == rtnl.RTM_NEWROUTE:
            fields |= {"proto": _RTPROT_STATIC, "type": _RTN_UNICAST}
        target = [("RTA_DST", str(network.network_address))] if network.prefixlen else []
        self._netlink.request(kind, rtmsg, fields, [*target, *attributes], flags)


def _neighbour(index: int, ip: str) -> bytes:
    """The head of a message about a neighbour that is known for good. Pure."""
    address = ipaddress.ip_address(ip)
    head = _NEIGHBOUR.pack(_family(address), index, _NUD_PERMANENT, 0, 0)
    return head + attribute(_NDA_DST, address.packed)


def _seen(message: nlmsg) -> Link:
    info = message.get_attr("IFLA_LINKINFO")
    return Link(
        index=message["index"],
        name=message.get_attr("IFLA_IFNAME"),
        kind=(info.get_attr("IFLA_INFO_KIND") if info else None) or "",
        mac=message.get_attr("IFLA_ADDRESS") or "",
        mtu=message.get_attr("IFLA_MTU"),
        up=bool(message["flags"] & IFF_UP),
        master_index=message.get_attr("IFLA_MASTER") or 0,
        peer_index=message.get_attr("IFLA_LINK") or 0,
    )


def checked_name(name: str) -> str:
    """The name itself, if a link can have it."""
    if not 0 < len(os.fsencode(name)) < 16 or name in (".", "..") or any(c in "/:" or c <= " " for c in name):
        raise Invalid("link", name, "must be 1 to 15 characters without '/', ':' and blanks")
    return name


def _interface(cidr: str) -> Interface:
    try:
        return ipaddress.ip_interface(cidr)
    except ValueError:
        raise Invalid("address", cidr, "must be such as 10.1.0.1/24") from None


def _family(address: Versioned) -> int:
    return socket.AF_INET6 if address.version == 6 else socket.AF_INET
