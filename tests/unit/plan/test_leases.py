from __future__ import annotations

import pytest
from msgspec import structs

from atoll.errors import Conflict, Invalid, NotFound
from atoll.model.lease import Boot, Reservation
from atoll.model.network import Address, Subnet, mac_for
from atoll.plan.addresses import Given, free_addresses

LAN = Subnet("lan", "10.1.0.0/24", "10.1.0.1", service_ip="10.1.0.2")
RACK = Reservation("10.1.0.9", "52:54:00:00:00:09", "rack1", "lan")


def node(*ips: str) -> Given:
    return Given().add_subnet(LAN).add_addresses("lan", [Address(ip, mac_for(ip)) for ip in ips])


def test_a_lease_is_there_once_and_changes_its_name_and_boot():
    once = node().add_lease(RACK)
    assert once.add_lease(RACK) == once
    changed = structs.replace(RACK, hostname="rack2", boot=Boot(image="x"))
    assert once.add_lease(changed).leases == (changed,)


def test_a_lease_that_is_taken_away_may_be_gone_already():
    assert node().add_lease(RACK).delete_lease(RACK.ip) == node() == node().delete_lease(RACK.ip)


@pytest.mark.parametrize("clash", [{"ip": "10.1.0.8"}, {"mac": "52:54:00:00:00:08"}])
def test_an_ip_or_a_mac_can_have_one_lease(clash: dict[str, str]):
    with pytest.raises(Conflict, match="rack1"):
        node().add_lease(RACK).add_lease(structs.replace(RACK, **clash))


def test_an_address_with_a_lease_is_never_free():
    given = node("10.1.0.9", "10.1.0.10").add_lease(RACK)
    assert [address.ip for address in free_addresses(given, (), {})["lan"]] == ["10.1.0.10"]


def test_the_mac_of_another_address_of_the_pool_cannot_have_a_lease():
    with pytest.raises(Conflict, match=r"goes with 10\.1\.0\.10 of the pool"):
        node("10.1.0.10").add_lease(structs.replace(RACK, mac=mac_for("10.1.0.10")))


@pytest.mark.parametrize("address", [Address(RACK.ip, "52:54:00:00:00:77"), Address("10.1.0.77", RACK.mac)])
def test_an_address_with_a_lease_cannot_come_into_the_pool(address: Address):
    with pytest.raises(Conflict, match="the lease of rack1"):
        node().add_lease(RACK).add_addresses("lan", [address])


@pytest.mark.parametrize("ip", ["10.2.0.9", "10.1.0.1", "10.1.0.2", "10.1.0.255"])
def test_a_lease_is_for_an_address_that_a_machine_can_have_there(ip: str):
    with pytest.raises(Invalid, match=ip):
        node().add_lease(structs.replace(RACK, ip=ip))


def test_a_lease_in_an_unknown_subnet_is_refused():
    with pytest.raises(NotFound, match="wan"):
        node().add_lease(structs.replace(RACK, subnet="wan"))


def test_two_subnets_cannot_have_one_ipv6_network():
    one = Subnet("one", "10.1.0.0/24", "10.1.0.1", cidr6="fd00:1::/64", gateway6="fd00:1::1")
    other = Subnet("other", "10.2.0.0/24", "10.2.0.1", cidr6="fd00:1::/64", gateway6="fd00:1::2")
    with pytest.raises(Conflict, match="fd00:1::/64"):
        Given().add_subnet(one).add_subnet(other)
