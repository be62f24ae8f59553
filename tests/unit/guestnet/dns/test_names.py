"""Which machines a machine may know, and by which names and addresses."""

from __future__ import annotations

import dns.name
from msgspec import structs

from atoll.guestnet.dns.names import Directory, Known, View
from atoll.guestnet.dns.zones import DEFAULT_ZONE
from atoll.model.lease import Reservation
from atoll.model.network import Subnet, link_local, mac_for
from atoll.model.vm import VM, VmNic
from samples import a_vm

LAN = Subnet(
    id="lan", cidr="10.1.0.0/24", gateway="10.1.0.1", domain="lan.test", cidr6="fd01::/64", gateway6="fd01::1"
)
STORE = Subnet(id="store", cidr="10.2.0.0/24", gateway="10.2.0.1")
OTHER = Subnet(id="other", cidr="10.3.0.0/24", gateway="10.3.0.1", domain="other.test")


def nic(ip: str, subnet: Subnet) -> VmNic:
    mac = mac_for(ip)
    return VmNic(ip, mac, subnet.id, subnet.ip6_of(mac))


def machine(name: str, *nics: VmNic) -> VM:
    first, *others = nics
    return a_vm(
        first.ip,
        name=name,
        instance_id=f"i-{name}",
        mac=first.mac,
        subnet=first.subnet,
        ip6=first.ip6,
        nics=tuple(others),
    )


WEB = machine("web", nic("10.1.0.5", LAN), nic("10.2.0.5", STORE))
DB = machine("db", nic("10.2.0.6", STORE), nic("10.1.0.6", LAN))
ALONE = machine("alone", nic("10.3.0.7", OTHER))
KNOWN = Known((LAN, STORE, OTHER), (WEB, DB, ALONE))


def seen_from(ip: str, subnet: Subnet, known: Known = KNOWN) -> View:
    view = Directory(lambda: known).view([subnet.id], ip)
    assert view is not None
    return view


def text(view: View, address: str) -> str | None:
    name = view.name_at(address)
    return name.to_text() if name is not None else None


def test_the_addresses_in_the_network_that_is_asked_from_come_first() -> None:
    lan = (DB.nics[0].ip, DB.nics[0].ip6)
    assert seen_from("10.1.0.5", LAN).addresses("db", None) == (*lan, "10.2.0.6")
    assert seen_from("10.2.0.5", STORE).addresses("db", None) == ("10.2.0.6", *lan)


def test_the_domain_of_a_subnet_chooses_the_interface_there() -> None:
    view = seen_from("10.2.0.5", STORE)
    lan = dns.name.from_text("Lan.Test.")
    assert view.addresses("db", lan) == (DB.nics[0].ip, DB.nics[0].ip6)
    assert view.addresses("db", DEFAULT_ZONE) == view.addresses("db", None)


def test_nobody_is_told_of_networks_that_it_is_not_in() -> None:
    only_lan = machine("guest", nic("10.1.0.9", LAN))
    view = seen_from("10.1.0.9", LAN, Known((LAN, STORE, OTHER), (WEB, DB, ALONE, only_lan)))
    assert view.addresses("db", None) == (DB.nics[0].ip, DB.nics[0].ip6)
    assert view.addresses("alone", None) == ()
    assert view.name_at("10.2.0.6") is None
    assert view.name_at("10.3.0.7") is None
    zones = {zone.to_text() for zone in view.zones()}
    assert zones == {
        "atoll.internal.",
        "lan.test.",
        "0.1.10.in-addr.arpa.",
        "0.0.0.0.0.0.0.0.0.0.0.0.1.0.d.f.ip6.arpa.",
    }


def test_an_address_has_the_name_of_its_subnet_s_domain_or_the_default_one() -> None:
    view = seen_from("10.1.0.5", LAN)
    assert text(view, "10.1.0.6") == text(view, DB.nics[0].ip6) == "db.lan.test."
    assert text(view, "10.2.0.6") == "db.atoll.internal."
    assert text(view, link_local(DB.nics[0].mac)) is None


def test_an_asker_is_known_by_all_of_its_addresses_on_the_subnets_served() -> None:
    directory = Directory(lambda: KNOWN)
    for ip in ("10.1.0.5", WEB.ip6, link_local(WEB.mac)):
        view = directory.view(["other", "lan"], ip)
        assert view is not None
        assert view.caller == "i-web"
    assert directory.view(["lan"], "10.2.0.5") is None
    assert directory.view(["lan"], "10.1.0.99") is None


def test_equal_addresses_on_different_networks_are_different_machines() -> None:
    twin = structs.replace(OTHER, cidr=LAN.cidr, gateway=LAN.gateway, domain="")
    known = Known((LAN, twin), (WEB, machine("double", nic("10.1.0.5", twin))))
    assert seen_from("10.1.0.5", LAN, known).caller == "i-web"
    assert seen_from("10.1.0.5", twin, known).caller == "i-double"
    assert seen_from("10.1.0.5", twin, known).addresses("web", None) == ()


def test_where_a_subnet_has_dns_switched_off_nobody_is_known() -> None:
    off = structs.replace(LAN, resolver=False)
    assert Directory(lambda: Known((off,), (WEB,))).view(["lan"], "10.1.0.5") is None


def test_machines_that_are_no_vms_are_known_too_and_give_way_to_vms() -> None:
    printer = Reservation("10.1.0.20", mac_for("10.1.0.20"), "printer", "lan")
    web = Reservation("10.1.0.21", mac_for("10.1.0.21"), "web", "lan")
    view = seen_from("10.1.0.20", LAN, Known((LAN,), (WEB,), (printer, web)))
    assert view.addresses("printer", None)[0] == "10.1.0.20"
    assert view.addresses("web", None) == ("10.1.0.5", WEB.ip6)
    assert text(view, "10.1.0.21") == "web.lan.test."


def test_what_comes_and_goes_is_seen_at_once() -> None:
    known = Known((LAN,), (WEB,))
    directory = Directory(lambda: known)
    first = directory.view(["lan"], "10.1.0.5")
    assert first is not None
    assert first.addresses("new", None) == ()
    known = Known((LAN,), (WEB, machine("new", nic("10.1.0.8", LAN))))
    second = directory.view(["lan"], "10.1.0.5")
    assert second is not None
    assert second.addresses("new", None)[0] == "10.1.0.8"
    known = Known((LAN,), ())
    assert directory.view(["lan"], "10.1.0.5") is None
