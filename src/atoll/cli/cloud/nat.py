"""The rules of NAT for a cloud's guests, on the host and in the cloud's namespace. Pure; wires.py applies them.

    LAN ── eth0 (host) atl-<n> ═══ uplink ── guests

With NAT guests open connections to what the host reaches. They open none to the host itself or to another cloud, and
nobody opens one to them through the host, which forwards for nobody else either.
"""

from __future__ import annotations

from collections.abc import Sequence

from atoll.cli.cloud.layout import UPLINK, Cloud

_GATE = "atoll-uplink"
_NO_GATE = f"add table inet {_GATE}\ndelete table inet {_GATE}\n"
_ANSWERS = "ct state established,related accept"

OPEN = _NO_GATE
"""In the cloud's namespace, with NAT: what guests reach is their subnets' and the host's to say."""
CLOSED = f"""{_NO_GATE}
table inet {_GATE} {{
    chain forward {{ type filter hook forward priority filter - 10; policy accept;
        oifname "{UPLINK}" goto to_host
    }}
    chain to_host {{
        {_ANSWERS}
        meta l4proto tcp reject with tcp reset
        reject with icmpx admin-prohibited
    }}
}}
"""
"""The same without NAT: guests answer the host, and open no connection to it or beyond, also while no agent runs."""


def no_rules(cloud: Cloud) -> str:
    """Takes the host's tables of a cloud away, also the one of versions before. Not there is fine."""
    return "".join(
        f"add table {family} {cloud.nat_table}\ndelete table {family} {cloud.nat_table}\n"
        for family in ("ip", "inet")
    )


def rules(cloud: Cloud, shut: Sequence[str]) -> str:
    """The host's table, anew. `shut`: links on which the host forwarded nothing before."""
    nodes = [f"ip saddr {cloud.node_ip} accept"]
    if cloud.subnet.cidr6 is not None:
        nodes += [f"ip6 saddr {cloud.node_ip6} accept"]
    kept_shut = "".join(f'iifname "{link}" goto answers\n' for link in shut)
    return f"""{no_rules(cloud)}
table inet {cloud.nat_table} {{
    chain postrouting {{ type nat hook postrouting priority srcnat; policy accept;
        meta nfproto ipv4 iifname "{cloud.uplink}" oifname != "{cloud.uplink}" masquerade
    }}
    chain input {{ type filter hook input priority filter - 10; policy accept;
        iifname "{cloud.uplink}" goto from_cloud
    }}
    chain forward {{ type filter hook forward priority filter - 10; policy accept;
        oifname "{cloud.uplink}" goto answers
        iifname "{cloud.uplink}" oifname "atl-*" drop
        {kept_shut}
    }}
    chain from_cloud {{
        {chr(10).join(nodes)}
        icmpv6 type {{ nd-neighbor-solicit, nd-neighbor-advert }} accept
        goto answers
    }}
    chain answers {{
        {_ANSWERS}
        drop
    }}
}}
"""
