"""What is pure of the firewall: names of ports, elements of sets. Its rules: tests/host/system/test_firewall.py."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from atoll.plan import firewall
from atoll.plan.firewall import Port, change, elements, link_for, plugged, port_of, port_with

PORT = Port("at-0a010005", "52:54:0a:01:00:05", "10.1.0.5", "06:00:00:00:00:fe")
PORT6 = structs.replace(PORT, link="at-0a010005.1", ip6="fd00::5054:aff:fe01:5")

vms = st.ip_addresses(v=4).map(str)
places = st.tuples(vms, st.integers(0, 8))
ports = st.builds(
    Port,
    link=places.map(lambda place: link_for(*place)),
    mac=st.binary(min_size=5, max_size=5).map(lambda rest: f"52:{rest.hex(':')}"),
    ip=vms,
    service_mac=st.just("06:00:00:00:00:fe"),
    ip6=st.sampled_from(["", "fd00::5054:aff:fe01:5", "64:ff9b::1"]),
)


@given(st.lists(places, unique=True, max_size=20))
def test_links_have_names_of_their_own_that_the_kernel_takes_and_that_tell_whose_they_are(
    some: list[tuple[str, int]],
):
    links = [link_for(*place) for place in some]
    assert len(set(links)) == len(some)
    assert all(len(link) <= 15 and link.startswith(firewall.PORT_PREFIX) for link in links)
    assert [port_of(link) for link in links] == some


def test_the_first_port_of_a_vm_has_the_plain_name():
    assert link_for("10.1.0.5") == "at-0a010005"
    assert link_for("10.1.0.5", 2) == "at-0a010005.2"


@pytest.mark.parametrize(
    "link",
    [
        "eth0",
        "at-template",
        "at-0a01",
        "0a010005",
        "at-zzzzzzzz",
        "at-0a010005.",
        "at-0a010005.x",
        "as-0a010005",
        "at-0a010005.0",
        "at-0a010005.01",
        "at-0A010005",
    ],
)
def test_a_link_that_is_no_port_of_a_vm_is_nobodys(link: str):
    assert port_of(link) is None


def listed(*ports: Port) -> list[dict[str, Any]]:
    """As nft lists the table."""
    sets: dict[str, list[Any]] = {}
    for port in ports:
        for name, words in elements(port):
            link, *rest = words.replace('"', "").replace(" : ", " . ").split(" . ")
            element = [link, *rest] if name == "port_services" else {"concat": [link, *rest]}
            sets.setdefault(name, []).append(element)
    entries: list[dict[str, Any]] = [{"metainfo": {}}, {"table": {"family": "bridge", "name": "atoll"}}]
    for name, some in sets.items():
        kind = "map" if name == "port_services" else "set"
        entries.append({kind: {"table": "atoll", "name": name, "elem": some}})
    entries.append({"set": {"table": "atoll", "name": "asking", "elem": [{"elem": {"val": "at-0a010005"}}]}})
    return json.loads(json.dumps(entries))  # type: ignore[no-any-return]


@given(st.lists(ports, max_size=5, unique_by=lambda port: port.link))
def test_what_is_plugged_is_read_back_from_the_kernel(some: list[Port]):
    assert plugged(listed(*some)) == {port.link: elements(port) for port in some}
    assert [port_with(elements(port)) for port in some] == some


def test_a_number_is_the_same_however_nft_writes_it():
    port = structs.replace(PORT6, ip6="64:ff9b::1")
    text = json.dumps(listed(port)).replace("0x0064ff9b", "0x64ff9b")
    assert plugged(json.loads(text)) == {port.link: elements(port)}


def test_other_tables_and_an_empty_one_have_no_ports():
    assert plugged([{"set": {"table": "other", "name": "port_macs", "elem": [{"concat": ["x", "y"]}]}}]) == {}
    assert plugged([{"set": {"table": "atoll", "name": "port_macs"}}]) == {}


def test_without_its_elements_a_port_is_none():
    assert port_with(()) is None
    assert port_with([one for one in elements(PORT) if one[0] != "port_services"]) is None


def test_ipv6_is_for_ports_that_have_an_address():
    assert {name for name, _ in elements(PORT)} == {"port_macs", "port_ips", "port_services"}
    assert {name for name, _ in elements(PORT6)} > {"port_ip6s", "port_targets"}


def test_a_port_that_is_as_it_should_be_is_not_touched():
    assert change(elements(PORT), elements(PORT)) == ""


def test_a_change_touches_what_differs_and_takes_away_before_it_adds():
    moved = structs.replace(PORT, ip="10.1.0.6", service_mac="06:00:00:00:00:ff")
    lines = change(elements(PORT), elements(moved)).splitlines()
    verbs = [line.split()[0] for line in lines]
    # Added first, since what is to go may have gone.
    assert verbs == ["add", "add", "delete", "delete", "add", "add"]
    assert not any("port_macs" in line for line in lines)
    assert any(line.startswith("delete") and "10.1.0.5" in line for line in lines)


@given(ports, ports)
def test_a_change_leaves_exactly_what_is_wanted(one: Port, other: Port):
    held = {(name, words) for name, words in elements(one)}
    for line in change(elements(one), elements(other)).splitlines():
        verb, _, _, _, name, rest = line.split(maxsplit=5)
        some = {(name, words) for words in rest.removeprefix("{ ").removesuffix(" }").split(", ")}
        held = held | some if verb == "add" else held - some
    assert held == set(elements(other))
