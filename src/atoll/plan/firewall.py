"""The firewall of a node's bridges: rules that never change, over sets of what each port may send as. Pure.

    table bridge atoll
      chain prerouting           every frame that enters any bridge of this namespace
        iifname "at-*" goto …    what comes from a port of VMs: plugged or not
      sets port_…                who is behind each port: (port, MAC), (port, MAC, address); and the MAC of the
                                 service port of its bridge
      sets asking, connecting    how much each port asked of our services lately

All is decided where a frame comes in, by the port that it comes in by: the forward hook of bridges is passed over
where the host's iptables see bridged frames (net.bridge.bridge-nf-call-iptables). To plug a port is to add elements,
to unplug it is to take them away: that costs the same whatever the number of ports. atoll.system.nft applies it.

A VM may send: ARP and IPv4 from its own MAC and IP; where its subnet has IPv6, that from the two addresses that follow
from its MAC. It is never a router, DHCP server or multicast querier, and what cannot be looked into is dropped. What it
asks of DHCP, and what is for a metadata address, gets the MAC of our service port: it goes there and nowhere else, so
many a second.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from msgspec import Struct

from atoll.model.network import METADATA_IP, METADATA_IP6, link_local

FAMILY, TABLE = "bridge", "atoll"
PORT_PREFIX = "at-"
SERVICE_PREFIX = "as-"
"""Begins the names of the links to the servers of a bridge."""
NO_RULES = f"add table {FAMILY} {TABLE}\ndelete table {FAMILY} {TABLE}\n"
"""Takes the table away. Not there is fine."""
DHCP_PER_S = 20
CONNECTIONS_PER_S = 200

_MACS, _IPS, _IP6S, _TARGETS, _SERVICES = (
    *("port_macs", "port_ips", "port_ip6s"),
    *("port_targets", "port_services"),
)
_OF_PORTS = (_MACS, _IPS, _IP6S, _TARGETS, _SERVICES)

Element = tuple[str, str]
"""The name of a set, and what is in it, in nft's words."""


def _number(ip6: str) -> str:
    return f"0x{int(ipaddress.IPv6Address(ip6)):032x}"


def _over(per_s: int) -> str:
    return f"limit rate over {per_s}/second burst {2 * per_s} packets"


_REPORTS = "mld-listener-report, mld-listener-done, mld2-listener-report"
_REPORTS4 = "membership-report-v1, membership-report-v2, membership-report-v3, leave-group"
# Multicast routers make themselves known (151) and take their leave (153), which has no name in nft.
_OF_ROUTERS = "nd-router-advert, nd-redirect, router-renumbering, mld-listener-query, 151, 153"
_SOUND = "meta l4proto 0-255"
"""Matches what nft can look into. In a packet that is shorter than it says no protocol is found, and no rule about
one would hold."""
_TARGET = "@th,64,128"  # the address that neighbour discovery is about, which has no name in nft
_CHAINS = {
    "prerouting": f'iifname "{PORT_PREFIX}*" goto from_vm',
    "from_vm": f"""
        iifname . ether saddr != @{_MACS} drop
        ether type vmap {{ arp : goto arp_from_vm, ip : goto ipv4_from_vm, ip6 : goto ipv6_from_vm }}
        drop""",
    "arp_from_vm": f"""
        arp htype != 1 drop
        arp ptype != ip drop
        arp hlen != 6 drop
        arp plen != 4 drop
        arp operation != {{ request, reply }} drop
        iifname . arp saddr ether != @{_MACS} drop
        arp saddr ip != 0.0.0.0 iifname . arp saddr ether . arp saddr ip != @{_IPS} drop
        arp daddr ip {METADATA_IP} goto to_services
        accept""",
    "ipv4_from_vm": f"""
        {_SOUND} goto sound_ipv4_from_vm
        drop""",
    # Answers of DHCP servers, whatever port they come from; then requests, which may come from no address.
    "sound_ipv4_from_vm": f"""
        udp dport 68 drop
        udp dport 67 goto dhcp_from_vm
        iifname . ether saddr . ip saddr != @{_IPS} drop
        icmp type {{ redirect, router-advertisement }} drop
        igmp type {{ {_REPORTS4} }} accept
        ip protocol {{ igmp, pim }} drop
        ip daddr {METADATA_IP} ip frag-off & 0x3fff != 0 drop
        ip daddr {METADATA_IP} goto to_metadata
        accept""",
    "dhcp_from_vm": f"""
        udp sport != 68 drop
        ip saddr != 0.0.0.0 iifname . ether saddr . ip saddr != @{_IPS} drop
        goto to_dhcp""",
    "ipv6_from_vm": f"""
        {_SOUND} goto sound_ipv6_from_vm
        drop""",
    # What comes first behind the IPv6 header is what it looks like: other headers, and pieces, can hide what they
    # carry. The third rule: whether somebody has the address that a guest is about to use, asked from none.
    "sound_ipv6_from_vm": f"""
        ip6 nexthdr != {{ tcp, udp, ipv6-icmp, sctp, esp, gre }} goto extended_ipv6_from_vm
        icmpv6 type {{ {_OF_ROUTERS} }} drop
        ip6 saddr :: icmpv6 type nd-neighbor-solicit iifname . ether saddr . {_TARGET} @{_TARGETS} accept
        iifname . ether saddr . ip6 saddr != @{_IP6S} drop
        icmpv6 type nd-neighbor-advert iifname . ether saddr . {_TARGET} != @{_TARGETS} drop
        icmpv6 type nd-neighbor-solicit {_TARGET} {_number(METADATA_IP6)} goto to_services
        udp dport 546 drop
        udp dport 547 goto to_dhcp
        ip6 daddr {METADATA_IP6} goto to_metadata
        accept""",
    # Which groups a guest listens to is told in packets with such a header, and nothing else needs one.
    "extended_ipv6_from_vm": f"""
        iifname . ether saddr . ip6 saddr != @{_IP6S} drop
        ip6 nexthdr 0 hbh nexthdr 58 icmpv6 type {{ {_REPORTS} }} accept
        drop""",
    "to_dhcp": f"""
        update @asking {{ iifname {_over(DHCP_PER_S)} }} drop
        goto to_services""",
    "to_metadata": f"""
        tcp flags syn update @connecting {{ iifname {_over(CONNECTIONS_PER_S)} }} drop
        goto to_services""",
    "to_services": f"""
        ether daddr set iifname map @{_SERVICES} accept
        drop""",
}
_PACE = "type ifname; size 65536; flags dynamic; timeout 10s;"

RULES = "\n".join(
    (
        f"table {FAMILY} {TABLE} {{",
        f"set {_MACS} {{ type ifname . ether_addr; }}",
        f"set {_IPS} {{ type ifname . ether_addr . ipv4_addr; }}",
        f"set {_IP6S} {{ type ifname . ether_addr . ipv6_addr; }}",
        f"set {_TARGETS} {{ typeof iifname . ether saddr . {_TARGET}; }}",
        f"map {_SERVICES} {{ type ifname : ether_addr; }}",
        f"set asking {{ {_PACE} }}",
        f"set connecting {{ {_PACE} }}",
        "chain prerouting { type filter hook prerouting priority -300; policy accept; }",
        *(f"chain {name} {{ }}" for name in _CHAINS if name != "prerouting"),
        "}",
        *(f"flush chain {FAMILY} {TABLE} {name}" for name in _CHAINS),
        f"table {FAMILY} {TABLE} {{",
        *(f"chain {name} {{ {rules}\n}}" for name, rules in _CHAINS.items()),
        "}",
    )
)
"""All rules, anew and in one transaction. What is in the sets stays: ports that are plugged are so all the while."""


class Port(Struct, frozen=True):
    """What a port may send as."""

    link: str
    mac: str
    ip: str
    service_mac: str
    """Where the DHCP and metadata servers of its bridge are."""
    ip6: str = ""
    """Its IPv6 address. Empty: it has none, and may not use IPv6 at all."""


def link_for(vm_ip: str, index: int = 0) -> str:
    """The name of a VM's port, by the VM's own address and the place of the interface among its interfaces.

    Unique in its namespace because the first is, whatever addresses the others have.
    """
    name = PORT_PREFIX + ipaddress.IPv4Address(vm_ip).packed.hex()
    return f"{name}.{index}" if index else name


def port_of(link: str) -> tuple[str, int] | None:
    """The VM and the place of the interface of a port, if it is one of a VM."""
    digits, dot, index = link.removeprefix(PORT_PREFIX).partition(".")
    if not link.startswith(PORT_PREFIX) or len(digits) != 8 or (dot and not index.isdecimal()):
        return None
    try:
        found = str(ipaddress.IPv4Address(bytes.fromhex(digits))), int(index or 0)
    except ValueError:
        return None
    return found if link_for(*found) == link else None


def elements(port: Port) -> frozenset[Element]:
    """What plugging a port adds to the sets."""
    of = f'"{port.link}" . {port.mac}'
    mine = [(_MACS, of), (_IPS, f"{of} . {port.ip}"), (_SERVICES, f'"{port.link}" : {port.service_mac}')]
    for ip6 in (link_local(port.mac), port.ip6) if port.ip6 else ():
        mine += [(_IP6S, f"{of} . {ip6}"), (_TARGETS, f"{of} . {_number(ip6)}")]
    return frozenset(mine)


def port_with(elements: Iterable[Element]) -> Port | None:
    """The port that these are the elements of, if they are those of one."""
    words = {name: text.replace('"', "").split() for name, text in elements if name != _IP6S}
    ip6s = [text.split()[-1] for name, text in elements if name == _IP6S]
    if not {_MACS, _IPS, _SERVICES} <= words.keys():
        return None
    link, _, mac = words[_MACS]
    ip6 = next((ip6 for ip6 in ip6s if ip6 != link_local(mac)), "")
    return Port(link, mac, words[_IPS][-1], words[_SERVICES][-1], ip6)


def change(found: Collection[Element], wanted: Collection[Element]) -> str:
    """The script that makes the sets hold these elements in the place of those; one transaction.

    What is there already is not touched. What is to go may have gone: it is added first.
    """
    gone = [element for element in found if element not in wanted]
    new = [element for element in wanted if element not in found]
    return "".join([*_commands("add", gone), *_commands("delete", gone), *_commands("add", new)])


def forget(link: str) -> str:
    """The script that forgets how much a port asked for lately: the next one of that name begins anew."""
    return "".join(
        f'{verb} element {FAMILY} {TABLE} {name} {{ "{link}" }}\n'
        for name in ("asking", "connecting")
        for verb in ("add", "delete")  # it may not have asked for anything
    )


def _commands(verb: str, elements: Iterable[Element]) -> list[str]:
    by_set: dict[str, list[str]] = {}
    for name, element in elements:
        by_set.setdefault(name, []).append(element)
    return [
        f"{verb} element {FAMILY} {TABLE} {name} {{ {', '.join(some)} }}\n" for name, some in by_set.items()
    ]


def plugged(listing: Iterable[Mapping[str, Any]]) -> dict[str, frozenset[Element]]:
    """The elements of each port, by its link, in what nft lists of the table as JSON."""
    found: dict[str, set[Element]] = {}
    for entry in listing:
        listed = entry.get("set") or entry.get("map") or {}
        if listed.get("table") != TABLE or listed.get("name") not in _OF_PORTS:
            continue
        for element in listed.get("elem", ()):
            link, *rest = element["concat"] if isinstance(element, dict) else element
            between = " : " if listed["name"] == _SERVICES else " . "
            if listed["name"] == _TARGETS:
                *rest, target = rest
                rest = [*rest, f"0x{int(target, 16):032x}"]
            words = between.join((f'"{link}"', *rest))
            found.setdefault(link, set()).add((listed["name"], words))
    return {link: frozenset(some) for link, some in found.items()}
