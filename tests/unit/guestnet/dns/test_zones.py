"""The zones of subnets, and the names of addresses."""

from __future__ import annotations

import ipaddress

import dns.name
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.guestnet.dns.zones import address_of, enclosing, reverse_name, zones_of
from atoll.model.network import Subnet

IPV4 = st.ip_addresses(v=4).map(str)
IPV6 = st.ip_addresses(v=6).map(str)


def subnet(cidr: str, **options: str) -> Subnet:
    return Subnet(id="blue", cidr=cidr, gateway=str(ipaddress.IPv4Network(cidr)[1]), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("cidr", "zones"),
    [
        ("10.0.0.0/8", {"10.in-addr.arpa."}),
        ("10.7.0.0/16", {"7.10.in-addr.arpa."}),
        ("10.7.4.0/23", {"4.7.10.in-addr.arpa.", "5.7.10.in-addr.arpa."}),
        ("10.7.4.8/30", {f"{last}.4.7.10.in-addr.arpa." for last in (8, 9, 10, 11)}),
    ],
)
def test_a_network_is_one_zone_or_several(cidr: str, zones: set[str]) -> None:
    assert {zone.to_text() for zone in zones_of(subnet(cidr))} == zones


def test_a_domain_and_an_ipv6_network_are_zones_too() -> None:
    found = zones_of(subnet("10.7.4.0/24", domain="blue.test", cidr6="fd66:2::/64", gateway6="fd66:2::1"))
    assert {zone.to_text() for zone in found} == {
        "blue.test.",
        "4.7.10.in-addr.arpa.",
        "0.0.0.0.0.0.0.0.2.0.0.0.6.6.d.f.ip6.arpa.",
    }


@given(prefix=st.integers(8, 30), address=st.ip_addresses(v=4, network="10.0.0.0/8"), other=IPV4)
def test_an_address_is_in_a_zone_of_its_network_and_no_other_is(
    prefix: int, address: ipaddress.IPv4Address, other: str
) -> None:
    network = ipaddress.IPv4Network(f"{address}/{prefix}", strict=False)
    zones = zones_of(subnet(str(network)))
    assert len(zones) <= 128
    assert enclosing(reverse_name(str(address)), zones) is not None
    inside = ipaddress.IPv4Address(other) in network
    assert (enclosing(reverse_name(other), zones) is not None) == inside


@given(st.one_of(IPV4, IPV6))
def test_an_address_is_found_in_its_name(address: str) -> None:
    name = reverse_name(address)
    assert address_of(name) == address
    assert address_of(name.parent()) == ""


@pytest.mark.parametrize(
    "name",
    [
        "x.0.77.10.in-addr.arpa.",
        "256.0.77.10.in-addr.arpa.",
        "01.0.77.10.in-addr.arpa.",
        "1.1.0.77.10.in-addr.arpa.",
        r"\178.0.77.10.in-addr.arpa.",
        "00.f.ip6.arpa.",
        "g.f.ip6.arpa.",
        "0." * 33 + "ip6.arpa.",
    ],
)
def test_a_name_that_is_for_no_address_is_known_as_such(name: str) -> None:
    assert address_of(dns.name.from_text(name)) is None


def test_the_closest_zone_counts() -> None:
    zones = [dns.name.from_text(name) for name in ("test.", "blue.test.")]
    assert enclosing(dns.name.from_text("a.b.BLUE.test."), zones) == zones[1]
    assert enclosing(dns.name.from_text("red.test."), zones) == zones[0]
    assert enclosing(dns.name.from_text("test.example."), zones) is None
