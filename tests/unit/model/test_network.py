from __future__ import annotations

import ipaddress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import Invalid
from atoll.model.checks import check_mac
from atoll.model.network import Address, Subnet, link_local, mac_for


def subnet(**changes: object) -> Subnet:
    return Subnet(**{"id": "lan", "cidr": "10.1.2.0/24", "gateway": "10.1.2.1", **changes})


@pytest.mark.parametrize(
    ("changes", "servers", "search"),
    [
        ({}, ("169.254.169.254",), "atoll.internal"),
        ({"domain": "lan.test"}, ("169.254.169.254",), "lan.test"),
        ({"dns": ("9.9.9.9",)}, ("9.9.9.9",), ""),
        ({"dns": ("9.9.9.9",), "domain": "lan.test"}, ("9.9.9.9",), "lan.test"),
        ({"resolver": False}, (), ""),
    ],
)
def test_guests_ask_the_node_for_names_unless_their_subnet_says_otherwise(
    changes: dict[str, Any], servers: tuple[str, ...], search: str
) -> None:
    assert (subnet(**changes).name_servers, subnet(**changes).search_domain) == (servers, search)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"id": "a/b"}, "subnet id"),
        ({"cidr": "10.1.2.3/24"}, "cidr"),
        ({"cidr": "127.0.0.0/8", "gateway": "127.0.0.1"}, "cidr"),
        ({"cidr": "0.0.0.0/8", "gateway": "0.0.0.1"}, "cidr"),
        ({"cidr": "224.0.0.0/24", "gateway": "224.0.0.1"}, "cidr"),
        ({"cidr": "240.0.0.0/24", "gateway": "240.0.0.1"}, "cidr"),
        ({"cidr": "169.254.0.0/16", "gateway": "169.254.0.1"}, "cidr"),
        ({"gateway": "10.1.3.1"}, "gateway"),
        ({"gateway": "10.1.2.0"}, "gateway"),
        ({"gateway": "10.1.2.255"}, "gateway"),
        ({"bridge": "a b"}, "bridge"),
        ({"bridge": "x" * 16}, "bridge"),
        ({"dns": ("10.1.2.300",)}, "dns"),
        ({"dns": ("10.1.2.2",) * 9}, "dns"),
        ({"domain": "example..org"}, "domain"),
        ({"domain": ".".join(["a" * 63] * 4)}, "domain"),
        ({"mtu": 575}, "mtu"),
        ({"mtu": 9217}, "mtu"),
        ({"allowed_users": ("a b",)}, "allowed"),
    ],
)
def test_a_subnet_that_makes_no_sense_is_refused_by_field(changes: dict[str, object], field: str):
    with pytest.raises(Invalid) as refusal:
        subnet(**changes)
    assert refusal.value.details["field"] == field


def test_a_subnet_reads_back_from_the_wire():
    one = subnet(dns=("10.1.2.2", "10.1.2.3"), domain="lab.example.org", bridge="br0", mtu=9000)
    assert msgspec.json.decode(msgspec.json.encode(one), type=Subnet) == one


@given(st.integers(0, 2**32 - 1).map(lambda number: str(ipaddress.IPv4Address(number))))
def test_the_mac_of_an_address_is_a_good_one_and_its_own(ip: str):
    mac = check_mac("mac", mac_for(ip))
    assert bytes.fromhex(mac.replace(":", ""))[2:] == ipaddress.IPv4Address(ip).packed


@given(st.integers(0, 2**32 - 1))
def test_a_subnet_holds_just_the_addresses_that_machines_can_have(number: int):
    ip = str(ipaddress.IPv4Address(number % 512 + int(ipaddress.IPv4Address("10.1.1.128"))))
    lan = subnet()
    usable = ipaddress.IPv4Address(ip) in set(lan.network.hosts()) and ip != lan.gateway
    if usable:
        lan.check_holds(Address(ip, mac_for(ip)))
    else:
        with pytest.raises(Invalid, match=ip):
            lan.check_holds(Address(ip, mac_for(ip)))


@pytest.mark.parametrize(("ip", "mac"), [("10.1.2", "52:54:00:00:00:01"), ("10.1.2.3", "53:54:00:00:00:01")])
def test_an_address_checks_itself(ip: str, mac: str):
    with pytest.raises(Invalid):
        Address(ip, mac)


def test_an_ipv6_address_follows_from_the_mac() -> None:
    subnet = Subnet("lan", "10.1.0.0/24", "10.1.0.1", cidr6="fd00:1::/64", gateway6="fd00:1::1")
    assert subnet.ip6_of("52:54:0a:01:00:05") == "fd00:1::5054:aff:fe01:5"
    assert link_local("02:a8:00:00:00:01") == "fe80::a8:ff:fe00:1"
    assert Subnet("lan", "10.1.0.0/24", "10.1.0.1").ip6_of("52:54:0a:01:00:05") == ""


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"cidr6": "fd00:1::/64"}, "gateway6"),
        ({"gateway6": "fd00:1::1"}, "gateway6"),
        ({"cidr6": "fd00:1::/48", "gateway6": "fd00:1::1"}, "cidr6"),
        ({"cidr6": "fd00:1::5/64", "gateway6": "fd00:1::1"}, "cidr6"),
        ({"cidr6": "fe80::/64", "gateway6": "fe80::1"}, "cidr6"),
        ({"cidr6": "ff02::/64", "gateway6": "ff02::1"}, "cidr6"),
        ({"cidr6": "fd00:ec2::/64", "gateway6": "fd00:ec2::1"}, "cidr6"),
        ({"cidr6": "fd00:1:0::/64", "gateway6": "fd00:1::1"}, "cidr6"),
        ({"cidr6": "fd00:1::/64", "gateway6": "fd00:2::1"}, "gateway6"),
        ({"cidr6": "fd00:1::/64", "gateway6": "fd00:1::01"}, "gateway6"),
        ({"cidr6": "fd00:1::/64", "gateway6": "fd00:1:::1"}, "gateway6"),
        ({"cidr6": "fd00:1::/64", "gateway6": "fd00:1::1", "mtu": 1279}, "mtu"),
        ({"service_ip": "10.2.0.2"}, "service_ip"),
        ({"service_ip": "10.1.0.1"}, "service_ip"),
        ({"service_ip": "10.1.0.255"}, "service_ip"),
    ],
)
def test_a_subnet_refuses_ipv6_and_services_that_cannot_work(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(Invalid, match=f"^{field} "):
        Subnet(**{"id": "lan", "cidr": "10.1.0.0/24", "gateway": "10.1.0.1", **changes})


def test_nobody_else_gets_the_address_of_the_services() -> None:
    subnet = Subnet("lan", "10.1.0.0/24", "10.1.0.1", service_ip="10.1.0.2")
    with pytest.raises(Invalid, match="services"):
        subnet.check_holds(Address("10.1.0.2", mac_for("10.1.0.2")))


@pytest.mark.parametrize("what", ["back", "10.9.0.0/16", "0.0.0.0/0", "192.0.2.1/32", "fd00::/8", "::/0"])
def test_a_subnet_reaches_subnets_by_name_and_networks(what: str):
    assert Subnet("front", "10.1.0.0/24", "10.1.0.1", reaches=(what,)).reaches == (what,)


@pytest.mark.parametrize(
    "what", ["", "Back", "10.9.0.1/16", "10.9.0.0/33", "fd00:0::/8", "10.9.0.0/", "/8", "front"]
)
def test_it_reaches_nothing_that_is_neither(what: str):
    with pytest.raises(Invalid, match="reaches"):
        Subnet("front", "10.1.0.0/24", "10.1.0.1", reaches=(what,))


@pytest.mark.parametrize("settings", [{"bridge": "br0"}, {"private": True}])
def test_where_the_node_is_no_router_nothing_can_be_opened(settings: dict[str, Any]):
    with pytest.raises(Invalid, match="the node routes nothing there"):
        Subnet("front", "10.1.0.0/24", "10.1.0.1", reaches=("0.0.0.0/0",), **settings)


def test_what_a_subnet_reaches_is_limited():
    with pytest.raises(Invalid, match="at most 64"):
        Subnet("front", "10.1.0.0/24", "10.1.0.1", reaches=tuple(f"10.{n}.0.0/16" for n in range(65)))
