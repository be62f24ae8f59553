"""The rules, by what becomes of frames: a small reader of nftables' JSON plays the kernel."""

from __future__ import annotations

import ipaddress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from atoll.plan import firewall
from atoll.plan.firewall import Port, link_for

PORT = Port(link_for("10.1.0.5"), "10.1.0.5", "52:54:0a:01:00:05", "02:00:00:00:00:fe")
FRAME = {"ether saddr": PORT.mac, "ether daddr": "52:54:0a:01:00:01"}
IPV4 = {**FRAME, "ether type": "ip", "ip saddr": PORT.ip, "ip daddr": "10.1.0.9"}
DHCP = {**IPV4, "ip saddr": "0.0.0.0", "ip daddr": "255.255.255.255", "udp sport": 68, "udp dport": 67}
ARP = {**FRAME, "ether type": "arp", "arp saddr ether": PORT.mac, "arp saddr ip": PORT.ip}


def number(ip: str) -> str:
    return f"0x{int(ipaddress.IPv6Address(ip)):032x}"


PORT6 = structs.replace(PORT, ip6="fd00::5054:aff:fe01:5")
IPV6 = {**FRAME, "ether type": "ip6", "ip6 saddr": "fe80::5054:aff:fe01:5"}


def rules(commands: list[dict[str, Any]], chain: str) -> list[list[dict[str, Any]]]:
    added = (command["add"]["rule"] for command in commands if "rule" in command.get("add", {}))
    return [rule["expr"] for rule in added if rule["chain"] == chain]


def matches(match: dict[str, Any], frame: dict[str, Any]) -> bool:
    payload = match["left"]["payload"]
    # What has no name in nft: the address that neighbour discovery is about.
    name = f"{payload['protocol']} {payload['field']}" if "protocol" in payload else "nd target"
    value = frame.get(name)
    if value is None:
        return False
    right = match["right"]
    wanted = right["set"] if isinstance(right, dict) else [right]
    if match["op"] == "in":
        return any(flag in value for flag in right)
    return (value in wanted) == (match["op"] == "==")


def verdict(frame: dict[str, Any], flood: bool = False, port: Port = PORT) -> tuple[str, str]:
    """What becomes of a frame of this VM, and the MAC that it goes to."""
    frame = dict(frame)
    for statements in rules(firewall.plug(port), f"vm-{port.link}"):
        for statement in statements:
            if "match" in statement and not matches(statement["match"], frame):
                break
            if "limit" in statement and not flood:
                break
            if "mangle" in statement:
                frame["ether daddr"] = statement["mangle"]["value"]
            if "drop" in statement:
                return "drop", frame["ether daddr"]
            if "accept" in statement:
                return "accept", frame["ether daddr"]
    return "accept", frame["ether daddr"]


@pytest.mark.parametrize("frame", [IPV4, DHCP, ARP, {**ARP, "arp saddr ip": "0.0.0.0"}])
def test_a_vm_may_send_as_itself(frame: dict[str, Any]):
    assert verdict(frame) == ("accept", FRAME["ether daddr"])


@pytest.mark.parametrize(
    "forged",
    [
        {**IPV4, "ether saddr": "52:54:0a:01:00:06"},
        {**IPV4, "ip saddr": "10.1.0.6"},
        {**IPV4, "ip saddr": "0.0.0.0"},
        {**ARP, "arp saddr ip": "10.1.0.1"},
        {**ARP, "arp saddr ether": "52:54:0a:01:00:06"},
        {**DHCP, "ip saddr": "10.1.0.6"},
        {**IPV4, "udp sport": 67, "udp dport": 68},
        {**FRAME, "ether type": "ip6"},
        {**FRAME, "ether type": "8021q"},
    ],
    ids=["mac", "ip", "no ip", "arp ip", "arp mac", "dhcp ip", "dhcp server", "ipv6", "vlan"],
)
def test_nothing_else_passes(forged: dict[str, Any]):
    assert verdict(forged)[0] == "drop"


@pytest.mark.parametrize(
    "frame",
    [
        IPV6,
        {**IPV6, "ip6 saddr": PORT6.ip6},
        {**IPV6, "icmpv6 type": "nd-router-solicit"},
        {**IPV6, "icmpv6 type": "nd-neighbor-solicit", "nd target": number("fd00::1")},
        {**IPV6, "icmpv6 type": "nd-neighbor-advert", "nd target": number(PORT6.ip6)},
        {**IPV6, "ip6 saddr": "::", "icmpv6 type": "nd-neighbor-solicit", "nd target": number(PORT6.ip6)},
        {**IPV6, "udp sport": 546, "udp dport": 547},
    ],
    ids=["link-local", "own", "looks for a router", "asks", "answers", "is it free", "dhcp"],
)
def test_with_ipv6_a_vm_may_send_as_itself_over_that_too(frame: dict[str, Any]):
    assert verdict(frame, port=PORT6)[0] == "accept"
    assert verdict(frame, port=PORT)[0] == "drop"


@pytest.mark.parametrize(
    "forged",
    [
        {**IPV6, "ip6 saddr": "fd00::5054:aff:fe01:6"},
        {**IPV6, "ip6 saddr": "fe80::1"},
        {**IPV6, "ip6 saddr": "::"},
        {**IPV6, "ether saddr": "52:54:0a:01:00:06"},
        {**IPV6, "icmpv6 type": "nd-router-advert"},
        {**IPV6, "icmpv6 type": "nd-redirect"},
        {**IPV6, "icmpv6 type": "nd-neighbor-advert", "nd target": number("fd00::1")},
        {**IPV6, "ip6 saddr": "::", "icmpv6 type": "nd-neighbor-solicit", "nd target": number("fd00::1")},
        {**IPV6, "udp sport": 547, "udp dport": 546},
        {**FRAME, "ether type": "8021q"},
    ],
    ids=[
        "ip",
        "link-local",
        "none",
        "mac",
        "router",
        "redirect",
        "answers for others",
        "claims",
        "dhcp",
        "vlan",
    ],
)
def test_with_ipv6_nothing_else_passes(forged: dict[str, Any]):
    assert verdict(forged, port=PORT6)[0] == "drop"


def test_with_ipv6_the_rules_of_ipv4_are_the_same():
    assert verdict(IPV4, port=PORT6)[0] == "accept"
    assert verdict({**IPV4, "ip saddr": "10.1.0.6"}, port=PORT6)[0] == "drop"
    assert verdict({**IPV6, "udp sport": 546, "udp dport": 547}, flood=True, port=PORT6)[0] == "drop"


def test_metadata_goes_to_the_service_port_whatever_the_route_was():
    frame = {**IPV4, "ip daddr": "169.254.169.254", "tcp flags": ["syn"]}
    assert verdict(frame) == ("accept", PORT.service_mac)


METADATA6 = {**IPV6, "ip6 saddr": PORT6.ip6, "ip6 daddr": "fd00:ec2::254", "tcp flags": ["syn"]}


@pytest.mark.parametrize("source", [PORT6.ip6, IPV6["ip6 saddr"]])
def test_over_ipv6_metadata_goes_to_the_service_port_too(source: str):
    assert verdict({**METADATA6, "ip6 saddr": source}, port=PORT6) == ("accept", PORT.service_mac)
    assert verdict({**METADATA6, "ip6 daddr": "fd00:ec2::253"}, port=PORT6)[1] == FRAME["ether daddr"]
    assert verdict(METADATA6, flood=True, port=PORT6)[0] == "drop"
    assert verdict(METADATA6, port=PORT)[0] == "drop"


def test_a_forged_sender_reaches_no_metadata():
    assert verdict({**IPV4, "ip saddr": "10.1.0.6", "ip daddr": "169.254.169.254"})[0] == "drop"
    assert verdict({**METADATA6, "ip6 saddr": "fd00::5054:aff:fe01:6"}, port=PORT6)[0] == "drop"
    assert verdict({**METADATA6, "ether saddr": "52:54:0a:01:00:06"}, port=PORT6)[0] == "drop"


@pytest.mark.parametrize("frame", [DHCP, {**IPV4, "ip daddr": "169.254.169.254", "tcp flags": ["syn"]}])
def test_a_flood_of_requests_to_our_services_is_dropped(frame: dict[str, Any]):
    assert verdict(frame, flood=True)[0] == "drop"


def test_a_flood_of_anything_else_is_not_our_business():
    assert verdict(IPV4, flood=True)[0] == "accept"


@given(st.lists(st.ip_addresses(v=4).map(str), unique=True, max_size=20))
def test_links_have_names_of_their_own_that_the_kernel_takes(ips: list[str]):
    links = [link_for(ip) for ip in ips]
    assert len(set(links)) == len(ips)
    assert all(len(link) <= 15 and link.startswith(firewall.PORT_PREFIX) for link in links)


def test_unplugging_removes_all_that_plugging_added():
    added = [command["add"] for command in firewall.plug(PORT) if "add" in command]
    made = {(kind, one[kind].get("name")) for one in added for kind in one if kind in ("chain", "element")}
    removed = [command["delete"] for command in firewall.unplug(PORT.link) if "delete" in command]
    assert {(kind, one[kind].get("name")) for one in removed for kind in one} == made


def test_a_port_of_ours_that_no_vm_owns_is_closed():
    last = rules(firewall.base(), "prerouting")[-1]
    assert last[0]["match"]["right"] == f"{firewall.PORT_PREFIX}*"
    assert last[1] == {"drop": None}


def test_the_chain_is_whole_before_the_port_leads_to_it():
    assert "element" in firewall.plug(PORT)[-1]["add"]


@pytest.mark.parametrize("ip", ["10.1.0.5", "0.0.0.0", "255.255.255.255"])
def test_a_chain_tells_whose_it_is(ip: str):
    assert firewall.ip_of(f"vm-{firewall.link_for(ip)}") == ip


@pytest.mark.parametrize(
    "chain", ["prerouting", "vm-at-template", "vm-at-0a01", "0a010005", "vm-at-zzzzzzzz"]
)
def test_a_chain_of_no_vm_is_nobodys(chain: str):
    assert firewall.ip_of(chain) is None
