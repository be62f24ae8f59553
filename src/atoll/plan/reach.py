"""What guests reach by way of their node, where it is their router: rules for packets, beside those for frames. Pure.

    table inet atoll
      chain input      to the node itself: answers, and whether their gateway is there
      chain forward    to elsewhere: answers, joined subnets, and networks that were opened

A guest opens connections to its own subnet, which the node does not route; to the subnets and networks that its own
one `reaches`; and to what the node opens to all (`guests_reach`). Its gateway's services are not the node's: they are
in a namespace of their own on its bridge. Subnets on bridges of others have other routers, and are not looked at.

Where bridged frames are shown to the host's iptables (net.bridge.bridge-nf-call-iptables) they come by here too, from a
bridge to itself. They are let through, and not tracked: no guest can fill the node's table of connections with them.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from atoll.model.checks import is_network
from atoll.model.network import Subnet

FAMILY, TABLE = "inet", "atoll"
NO_RULES = f"add table {FAMILY} {TABLE}\ndelete table {FAMILY} {TABLE}\n"
"""Takes the table away. Not there is fine."""

_REFUSE = ("meta l4proto tcp reject with tcp reset", "reject with icmpx admin-prohibited")
"""At once, and not by silence: whoever meets this by mistake sees what it is."""
_ANSWERS = "ct state established,related accept"
CONNECTIONS = 4096
"""That one guest address may have open through its node at a time: the table of them is the host's, and everybody's."""


class Routed(Struct, frozen=True):
    """A subnet that the node is the router of."""

    subnet: Subnet
    router_mac: str
    """That of its bridge."""


def rules(routed: Sequence[Routed], subnets: Sequence[Subnet], everybody: Sequence[str]) -> str:
    """All rules, anew and in one transaction; none where the node routes nothing.

    `subnets`: those of the node, of which some are joined. `everybody`: networks that guests of every subnet reach.
    """
    if not routed:
        return NO_RULES
    bridges = {subnet.id: subnet.bridge_name for subnet in subnets}
    ours = [one.subnet.bridge_name for one in routed]
    pairs = [(bridge, bridge) for bridge in ours]
    for one in routed:
        joined = (bridges[name] for name in one.subnet.reaches if name in bridges)
        pairs += [(one.subnet.bridge_name, other) for other in joined]
    macs = _some(f'"{one.subnet.bridge_name}" . {one.router_mac}' for one in routed)
    joins = _some(f'"{here}" . "{there}"' for here, there in dict.fromkeys(pairs))
    lines = (
        f"table {FAMILY} {TABLE} {{",
        f"set guest_bridges {{ type ifname; elements = {_some(map(_quoted, ours))} }}",
        f"set router_macs {{ type ifname . ether_addr; elements = {macs} }}",
        f"set joined {{ type ifname . ifname; elements = {joins} }}",
        "set connections { type ipv4_addr; size 65536; flags dynamic; }",
        "set connections6 { type ipv6_addr; size 65536; flags dynamic; }",
        "chain prerouting { type filter hook prerouting priority raw; policy accept;",
        "iifname @guest_bridges iifname . ether daddr != @router_macs notrack",
        "}",
        "chain input { type filter hook input priority filter - 10; policy accept;",
        "iifname @guest_bridges goto to_node",
        "}",
        "chain forward { type filter hook forward priority filter - 10; policy accept;",
        "iifname @guest_bridges goto from_guest",
        "}",
        "chain to_node {",
        _ANSWERS,
        *_pings(routed),
        "icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert, nd-router-solicit } accept",
        *_REFUSE,
        "}",
        "chain from_guest {",
        _ANSWERS,
        f"ct state new add @connections {{ ip saddr ct count over {CONNECTIONS} }} drop",
        f"ct state new add @connections6 {{ ip6 saddr ct count over {CONNECTIONS} }} drop",
        "iifname . oifname @joined accept",
        *(f"oifname @guest_bridges {refuse}" for refuse in _REFUSE),
        *(line for one in routed for line in _opened(one.subnet, everybody)),
        *_REFUSE,
        "}",
        "}",
    )
    return NO_RULES + "\n".join(lines) + "\n"


def _pings(routed: Iterable[Routed]) -> Iterator[str]:
    for one in routed:
        subnet = one.subnet
        if subnet.private:
            continue
        yield f'iifname "{subnet.bridge_name}" ip daddr {subnet.gateway} icmp type echo-request accept'
        if subnet.gateway6 is not None:
            there = f'iifname "{subnet.bridge_name}" ip6 daddr {subnet.gateway6}'
            yield f"{there} icmpv6 type echo-request accept"


def _opened(subnet: Subnet, everybody: Sequence[str]) -> Iterator[str]:
    networks = [ipaddress.ip_network(one) for one in (*subnet.reaches, *everybody) if is_network(one)]
    v4 = ipaddress.collapse_addresses(one for one in networks if isinstance(one, ipaddress.IPv4Network))
    v6 = ipaddress.collapse_addresses(one for one in networks if isinstance(one, ipaddress.IPv6Network))
    for protocol, some in (("ip", list(v4)), ("ip6", list(v6))):
        if not some:
            continue
        everything = some[0].prefixlen == 0
        what = f"{protocol} daddr {_some(map(str, some))}"
        yield f'iifname "{subnet.bridge_name}" {f"meta protocol {protocol}" if everything else what} accept'


def _quoted(name: str) -> str:
    return f'"{name}"'


def _some(elements: Iterable[str]) -> str:
    return f"{{ {', '.join(elements)} }}"
