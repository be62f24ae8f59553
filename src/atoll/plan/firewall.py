"""The nftables rules of a node's bridges, as data. Pure; atoll.system.nft applies them.

    table bridge atoll
      chain prerouting        every frame that enters any bridge of this namespace
        iifname vmap @ports   a known VM port goes to its own chain
        iifname "at-*" drop   a port of ours that no VM owns
      chain forward           what VMs ask of DHCP is for our server, not for each other
      chain vm-<link>         lets through only what this VM may send; frames for a metadata
                              address get the MAC of our service port in that bridge

A VM may send: ARP and IPv4 from its own MAC and IP; DHCP requests, so many a second; where its subnet has
IPv6, that from the two addresses that follow from its MAC, never as a router or DHCP server. Nothing else.
"""

from __future__ import annotations

import ipaddress
from typing import Any

from msgspec import Struct

from atoll.model.network import METADATA_IP, METADATA_IP6, link_local

TABLE = "atoll"
PORT_PREFIX = "at-"
SERVICE_PREFIX = "as-"
"""Begins the names of the links to the servers of a bridge."""
DHCP_PER_S = 20
CONNECTIONS_PER_S = 200

Command = dict[str, Any]


class Port(Struct, frozen=True):
    """One VM's attachment to a bridge."""

    link: str
    ip: str
    mac: str
    service_mac: str
    """Where the bridge's DHCP and metadata servers are."""
    ip6: str = ""
    """Its IPv6 address. Empty: it has none, and may not use IPv6 at all."""


def link_for(ip: str) -> str:
    """The name of a VM's port: unique in its namespace because the IP is."""
    return PORT_PREFIX + "".join(f"{int(octet):02x}" for octet in ip.split("."))


def ip_of(chain: str) -> str | None:
    """Whose chain this is, if it is that of a VM."""
    digits = chain.removeprefix(f"vm-{PORT_PREFIX}")
    if len(digits) != 8 or len(chain) == len(digits):
        return None
    try:
        return str(ipaddress.IPv4Address(bytes.fromhex(digits)))
    except ValueError:
        return None


def base() -> list[Command]:
    """What all VMs share, anew and in one transaction. Ports that are plugged stay so: their VMs run on."""
    prerouting = {"type": "filter", "hook": "prerouting", "prio": -300, "policy": "accept"}
    forward = {"type": "filter", "hook": "forward", "prio": 0, "policy": "accept"}
    from_any_vm = _equal({"meta": {"key": "iifname"}}, f"{PORT_PREFIX}*")
    to_any_vm = _equal({"meta": {"key": "oifname"}}, f"{PORT_PREFIX}*")
    to_no_service = _differs({"meta": {"key": "oifname"}}, f"{SERVICE_PREFIX}*")
    return [
        {"add": {"table": _TABLE}},
        {"add": {"map": {**_IN_TABLE, "name": "ports", "type": "ifname", "map": "verdict"}}},
        {"add": {"chain": {**_IN_TABLE, "name": "prerouting", **prerouting}}},
        {"flush": {"chain": {**_IN_TABLE, "name": "prerouting"}}},
        _rule("prerouting", {"vmap": {"key": {"meta": {"key": "iifname"}}, "data": "@ports"}}),
        _rule("prerouting", _equal({"meta": {"key": "iifname"}}, f"{PORT_PREFIX}*"), _DROP),
        {"add": {"chain": {**_IN_TABLE, "name": "forward", **forward}}},
        {"flush": {"chain": {**_IN_TABLE, "name": "forward"}}},
        _rule("forward", to_any_vm, _equal(_payload("udp", "dport"), {"set": [67, 547]}), _DROP),
        # A bridge over a physical port has other DHCP servers behind it: they are not for VMs.
        _rule(
            "forward", from_any_vm, to_no_service, _equal(_payload("udp", "dport"), {"set": [67, 547]}), _DROP
        ),
    ]


def plug(port: Port) -> list[Command]:
    """The chain of one VM; said before its link appears, so that no frame ever passes unchecked."""
    chain = f"vm-{port.link}"
    source_ip = _payload("ip", "saddr")
    is_dhcp = (
        _equal(source_ip, {"set": ["0.0.0.0", port.ip]}),
        _equal(_payload("udp", "sport"), 68),
        _equal(_payload("udp", "dport"), 67),
    )
    arp_mac, arp_ip = _payload("arp", "saddr ether"), _payload("arp", "saddr ip")
    return [
        {"add": {"chain": {**_IN_TABLE, "name": chain}}},
        {"flush": {"chain": {**_IN_TABLE, "name": chain}}},
        _rule(chain, _differs(_payload("ether", "saddr"), port.mac), _DROP),
        _rule(chain, _equal(arp_mac, port.mac), _equal(arp_ip, {"set": ["0.0.0.0", port.ip]}), _ACCEPT),
        *(_ipv6_rules(chain, port) if port.ip6 else ()),
        _rule(chain, _differs(_payload("ether", "type"), "ip"), _DROP),
        _rule(chain, *is_dhcp, _over(DHCP_PER_S), _DROP),
        *_metadata_rules(chain, port, _equal(_payload("ip", "daddr"), METADATA_IP)),
        _rule(chain, *is_dhcp, _ACCEPT),
        _rule(chain, _differs(source_ip, port.ip), _DROP),
        _rule(chain, _equal(_payload("udp", "sport"), 67), _DROP),
        _rule(chain, _ACCEPT),
        {"add": _entry(port.link)},
    ]


def _metadata_rules(chain: str, port: Port, to_metadata: Command) -> list[Command]:
    """Frames for our metadata service go there, whatever MAC the guest's routes gave them."""
    is_new = {"match": {"op": "in", "left": _payload("tcp", "flags"), "right": ["syn"]}}
    to_service = {"mangle": {"key": _payload("ether", "daddr"), "value": port.service_mac}}
    return [
        _rule(chain, to_metadata, is_new, _over(CONNECTIONS_PER_S), _DROP),
        _rule(chain, to_metadata, to_service),
    ]


def _ipv6_rules(chain: str, port: Port) -> list[Command]:
    """All that a VM may send over IPv6. Neighbour discovery names an address inside: it must be its own."""
    own = [link_local(port.mac), port.ip6]
    source, kind = _payload("ip6", "saddr"), _payload("icmpv6", "type")
    target = {"payload": {"base": "th", "offset": 64, "len": 128}}
    own_target = {"set": [f"0x{int(ipaddress.IPv6Address(ip)):032x}" for ip in own]}
    is_ip6 = _equal(_payload("ether", "type"), "ip6")
    return [
        _rule(chain, _equal(kind, {"set": ["nd-router-advert", "nd-redirect"]}), _DROP),
        # Whether somebody has the address that it is about to use, asked from none.
        _rule(
            chain,
            _equal(source, "::"),
            _equal(kind, "nd-neighbor-solicit"),
            _equal(target, own_target),
            _ACCEPT,
        ),
        _rule(chain, _differs(source, {"set": own}), _DROP),
        _rule(chain, _equal(kind, "nd-neighbor-advert"), _differs(target, own_target), _DROP),
        _rule(chain, is_ip6, _equal(_payload("udp", "sport"), 547), _DROP),
        _rule(chain, is_ip6, _equal(_payload("udp", "dport"), 547), _over(DHCP_PER_S), _DROP),
        *_metadata_rules(chain, port, _equal(_payload("ip6", "daddr"), METADATA_IP6)),
        _rule(chain, is_ip6, _ACCEPT),
    ]


def unplug(link: str) -> list[Command]:
    """Everything of `plug`. Not plugged is fine: what is added first can be deleted."""
    chain = f"vm-{link}"
    return [
        {"add": {"chain": {**_IN_TABLE, "name": chain}}},
        {"add": _entry(link)},
        {"delete": _entry(link)},
        {"flush": {"chain": {**_IN_TABLE, "name": chain}}},
        {"delete": {"chain": {**_IN_TABLE, "name": chain}}},
    ]


_TABLE = {"family": "bridge", "name": TABLE}
_IN_TABLE = {"family": "bridge", "table": TABLE}
_DROP: Command = {"drop": None}
_ACCEPT: Command = {"accept": None}


def _entry(link: str) -> Command:
    """What leads from a port to its chain."""
    return {"element": {**_IN_TABLE, "name": "ports", "elem": [[link, {"goto": {"target": f"vm-{link}"}}]]}}


def _rule(chain: str, *statements: Command) -> Command:
    return {"add": {"rule": {**_IN_TABLE, "chain": chain, "expr": list(statements)}}}


def _payload(protocol: str, field: str) -> Command:
    return {"payload": {"protocol": protocol, "field": field}}


def _equal(left: Command, right: Any) -> Command:
    return {"match": {"op": "==", "left": left, "right": right}}


def _differs(left: Command, right: Any) -> Command:
    return {"match": {"op": "!=", "left": left, "right": right}}


def _over(per_s: int) -> Command:
    return {"limit": {"rate": per_s, "per": "second", "burst": 2 * per_s, "inv": True}}
