"""Real links in namespaces of our own, checked with iproute2."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest

from atoll.errors import Conflict, HostFailure, Invalid, NotFound
from atoll.system import links, namespaces
from atoll.system.links import Links, Route

ONE, TWO = f"xsys{os.getpid()}a", f"xsys{os.getpid()}b"
BRIDGE_MAC = "02:00:00:00:00:01"


def ip(*args: str, namespace: str = ONE) -> Any:
    shown = subprocess.run(["ip", "-n", namespace, "-d", "-j", *args], check=True, capture_output=True)
    return json.loads(shown.stdout or "[]")


def link(name: str, namespace: str = ONE) -> Any:
    return ip("link", "show", name, namespace=namespace)[0]


@pytest.fixture
def one() -> Iterator[Links]:
    for name in (ONE, TWO):
        namespaces.ensure(name)
    try:
        with Links(ONE) as opened:
            yield opened
    finally:
        for name in (ONE, TWO):
            namespaces.delete(name)


@pytest.fixture
def bridged(one: Links) -> Links:
    one.ensure_bridge("br0", BRIDGE_MAC, 1400, ["10.1.0.1/24"])
    return one


def test_a_bridge_forwards_at_once_and_keeps_quiet(bridged: Links) -> None:
    shown = link("br0")
    assert (shown["address"], shown["mtu"]) == (BRIDGE_MAC, 1400)
    assert "UP" in shown["flags"]
    data = shown["linkinfo"]["info_data"]
    assert (data["forward_delay"], data["stp_state"], data["mcast_snooping"]) == (0, 0, 0)
    assert bridged.addresses("br0") == {"10.1.0.1/24"}
    addresses = ip("address", "show", "br0")[0]["addr_info"]
    assert [one["family"] for one in addresses] == ["inet"]


def test_a_bridge_is_repaired(bridged: Links) -> None:
    index = link("br0")["ifindex"]
    subprocess.run(
        ["ip", "-n", ONE, "link", "set", "br0", "down", "address", "02:00:00:00:00:99"], check=True
    )
    subprocess.run(["ip", "-n", ONE, "address", "flush", "dev", "br0"], check=True)
    bridged.ensure_bridge("br0", BRIDGE_MAC, 1450, ["10.1.0.1/16"])
    shown = link("br0")
    assert (shown["ifindex"], shown["address"], shown["mtu"]) == (index, BRIDGE_MAC, 1450)
    assert "UP" in shown["flags"]
    assert bridged.addresses("br0") == {"10.1.0.1/16"}


def test_the_mac_of_a_bridge_stays_when_a_link_with_a_lower_one_joins(bridged: Links) -> None:
    bridged.ensure_veth("v0", "v1", TWO, mac="00:00:00:00:00:02", master="br0")
    assert link("br0")["address"] == BRIDGE_MAC


def test_an_address_with_another_prefix_replaces_the_first(bridged: Links) -> None:
    bridged.add_address("br0", "10.1.0.1/24")
    bridged.add_address("br0", "10.1.0.1/16")
    bridged.add_address("br0", "10.2.0.1/24")
    assert bridged.addresses("br0") == {"10.1.0.1/16", "10.2.0.1/24"}


def test_a_pair_of_links_reaches_into_another_namespace(bridged: Links) -> None:
    for _ in range(2):
        bridged.ensure_veth("v0", "v1", TWO, "02:00:00:00:01:00", "02:00:00:00:01:01", 1400, "br0")
    near, far = link("v0"), link("v1", TWO)
    assert (near["address"], near["mtu"], near["master"]) == ("02:00:00:00:01:00", 1400, "br0")
    assert (far["address"], far["mtu"]) == ("02:00:00:00:01:01", 1400)
    assert "LOWER_UP" in near["flags"]
    assert "LOWER_UP" in far["flags"]
    assert ip("address", "show", "v1", namespace=TWO)[0]["addr_info"] == []


def test_packets_pass_from_one_namespace_to_the_other(bridged: Links) -> None:
    bridged.ensure_veth("v0", "v1", TWO, mtu=1400, master="br0")
    with Links(TWO) as two:
        two.add_address("v1", "10.1.0.2/24")
    near = namespaces.socket_in(ONE, socket.AF_INET, socket.SOCK_DGRAM)
    far = namespaces.socket_in(TWO, socket.AF_INET, socket.SOCK_DGRAM)
    with near, far:
        near.settimeout(5)
        near.bind(("10.1.0.1", 0))
        far.sendto(b"hello", near.getsockname())
        assert near.recv(10) == b"hello"


def test_a_pair_is_repaired_and_made_anew_when_its_peer_is_another(bridged: Links) -> None:
    bridged.ensure_veth("v0", "v1", TWO, "02:00:00:00:01:00", master="br0")
    subprocess.run(["ip", "-n", ONE, "link", "set", "v0", "nomaster", "mtu", "1300", "down"], check=True)
    bridged.ensure_veth("v0", "v1", TWO, "02:00:00:00:01:00", master="br0")
    shown = link("v0")
    assert (shown["master"], shown["mtu"], shown["operstate"]) == ("br0", 1500, "UP")
    bridged.ensure_veth("v0", "w1", None, "02:00:00:00:01:00", master="br0")
    assert bridged.names() == {"lo", "br0", "v0", "w1"}
    assert link("v0")["link"] == "w1"
    with Links(TWO) as two:
        assert two.names() == {"lo"}


def test_a_link_of_another_kind_is_not_taken_over(bridged: Links) -> None:
    bridged.ensure_veth("v0", "v1", TWO)
    with pytest.raises(Conflict, match="kind veth"):
        bridged.ensure_bridge("v0", BRIDGE_MAC, 1500)
    with pytest.raises(Conflict, match="kind bridge"):
        bridged.ensure_veth("br0", "v9", TWO)
    assert link("br0")["address"] == BRIDGE_MAC


def test_deleting_takes_both_ends_and_gone_is_fine(bridged: Links) -> None:
    bridged.ensure_veth("v0", "v1", TWO)
    bridged.delete("v0")
    bridged.delete("v0")
    assert not bridged.exists("v0")
    with Links(TWO) as two:
        assert not two.exists("v1")


def test_a_tap_is_in_its_bridge_and_goes_with_its_descriptor(bridged: Links) -> None:
    descriptor = links.open_tap("tap0", "br0", 1400, ONE)
    try:
        assert not os.get_inheritable(descriptor)
        shown = link("tap0")
        assert (shown["master"], shown["mtu"]) == ("br0", 1400)
        assert "LOWER_UP" in shown["flags"]
        data = shown["linkinfo"]["info_data"]
        assert (data["type"], data["pi"], data["vnet_hdr"], data["persist"]) == ("tap", False, True, False)
        with pytest.raises(HostFailure, match="making tap tap0 in bridge br0"):
            links.open_tap("tap0", "br0", 1400, ONE)
    finally:
        os.close(descriptor)
    assert not bridged.exists("tap0")


def test_a_tap_without_its_bridge_leaves_nothing(one: Links) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(NotFound, match="nobridge"):
        links.open_tap("tap0", "nobridge", 1500, ONE)
    assert not one.exists("tap0")
    assert len(os.listdir("/proc/self/fd")) == before


def test_ports_are_isolated_and_told_their_macs(bridged: Links) -> None:
    descriptor = links.open_tap("tap0", "br0", 1400, ONE)
    try:
        for _ in range(2):
            bridged.port_flags("tap0", learning=False, isolated=True)
            bridged.set_fdb("tap0", "02:00:00:00:02:02")
        data = link("tap0")["linkinfo"]["info_slave_data"]
        assert (data["learning"], data["isolated"]) == (False, True)
        shown = subprocess.run(
            ["bridge", "-n", ONE, "fdb", "show", "dev", "tap0"], check=True, capture_output=True, text=True
        )
        assert "02:00:00:00:02:02 sticky master br0 static" in shown.stdout
    finally:
        os.close(descriptor)


def test_routes_are_set_replaced_and_removed(bridged: Links) -> None:
    bridged.ensure_route("10.9.0.0/24", via="10.1.0.9")
    bridged.ensure_route("10.9.0.0/24", link="br0", source="10.1.0.1")
    bridged.ensure_route("0.0.0.0/0", via="10.1.0.7")
    found = {route.cidr: route for route in bridged.routes()}
    assert found["10.9.0.0/24"] == Route("10.9.0.0/24", None, "br0", "10.1.0.1")
    assert found["0.0.0.0/0"] == Route("0.0.0.0/0", "10.1.0.7", "br0", None)
    for cidr in ("10.9.0.0/24", "0.0.0.0/0", "10.9.0.0/24"):
        bridged.delete_route(cidr)
    assert [route.cidr for route in bridged.routes()] == ["10.1.0.0/24"]


def test_a_route_that_the_kernel_refuses_is_told_in_its_words(bridged: Links) -> None:
    with pytest.raises(HostFailure, match=r"^routing 10.9.0.0/24: Nexthop has invalid gateway$"):
        bridged.ensure_route("10.9.0.0/24", via="192.0.2.1")


def test_neighbours_are_permanent_until_they_are_forgotten(bridged: Links) -> None:
    for mac in ("02:00:00:00:00:09", "02:00:00:00:00:0a"):
        bridged.set_neighbour("br0", "10.1.0.9", mac)
    (shown,) = ip("neighbour")
    assert (shown["dst"], shown["lladdr"], shown["state"]) == ("10.1.0.9", mac, ["PERMANENT"])
    for _ in range(2):
        bridged.delete_neighbour("br0", "10.1.0.9")
    bridged.delete_neighbour("nolink", "10.1.0.9")
    assert ip("neighbour") == []


def test_a_parameter_is_set_in_its_namespace_only(one: Links) -> None:
    links.sysctl("net.ipv4.conf.all.log_martians", "1", ONE)
    values = [
        subprocess.run(
            ["ip", "netns", "exec", name, "cat", "/proc/sys/net/ipv4/conf/all/log_martians"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
        for name in (ONE, TWO)
    ]
    assert values == ["1", "0"]
    with pytest.raises(HostFailure, match=r"^setting net.no.such to 1: "):
        links.sysctl("net.no.such", "1", ONE)


async def test_links_work_while_a_loop_runs(bridged: Links) -> None:
    asyncio.get_running_loop()
    assert bridged.exists("br0")


def test_many_links_are_listed_in_full(one: Links) -> None:
    names = {f"x{n}" for n in range(60)}
    commands = "".join(f"link add x{n} type bridge\n" for n in range(60))
    subprocess.run(["ip", "-n", ONE, "-b", "-"], input=commands, text=True, check=True)
    assert one.names() == names | {"lo"}


@pytest.mark.parametrize("name", ["", "x" * 16, "a/b", "a b", "a\nb", ".."])
def test_a_name_that_no_link_can_have_is_refused(one: Links, name: str) -> None:
    with pytest.raises(Invalid):
        one.ensure_bridge(name, BRIDGE_MAC, 1500)


def test_an_unknown_link_is_not_found(one: Links) -> None:
    with pytest.raises(NotFound, match=f"nolink: there is none in namespace {ONE}"):
        one.up("nolink")


def test_ipv6_comes_where_it_is_asked_for_and_its_addresses_are_not_tried_out(one: Links) -> None:
    one.ensure_bridge("br0", BRIDGE_MAC, 1400, ["10.1.0.1/24", "fd00:1::1/64"], ipv6=True)
    one.ensure_veth("v0", "v1", TWO, master="br0")
    assert links.read_sysctl("net/ipv6/conf/br0/accept_dad", ONE) == "0"
    until = time.monotonic() + 30
    while True:
        shown = {found["local"]: found for found in ip("-6", "address", "show", "br0")[0]["addr_info"]}
        assert shown.keys() == {"fd00:1::1", "fe80::ff:fe00:1"}
        # Until the kernel has noticed that the bridge has a port.
        if not any(found.get("tentative") for found in shown.values()):
            break
        assert time.monotonic() < until, shown
        time.sleep(0.01)
    assert one.addresses("br0") == {"10.1.0.1/24"}
    assert one.addresses("br0", socket.AF_INET6) == {"fd00:1::1/64", "fe80::ff:fe00:1/64"}
    one.ensure_bridge("br0", BRIDGE_MAC, 1400, ["10.1.0.1/24", "fd00:1::1/64"], ipv6=True)
    assert len(one.addresses("br0", socket.AF_INET6)) == 2


def test_routes_and_neighbours_are_of_either_family(one: Links) -> None:
    one.ensure_bridge("br0", BRIDGE_MAC, 1400, ["fd00:1::1/64"], ipv6=True)
    one.ensure_route("fd00:2::/64", via="fd00:1::9")
    one.ensure_route("fd00:2::/64", via="fd00:1::8")
    assert [(found["dst"], found["gateway"]) for found in ip("-6", "route", "show", "fd00:2::/64")] == [
        ("fd00:2::/64", "fd00:1::8")
    ]
    one.delete_route("fd00:2::/64")
    one.delete_route("fd00:2::/64")
    assert ip("-6", "route", "show", "fd00:2::/64") == []
    one.set_neighbour("br0", "fd00:1::5", "52:54:00:00:00:05")
    (found,) = [each for each in ip("-6", "neigh", "show", "dev", "br0") if each["dst"] == "fd00:1::5"]
    assert (found["lladdr"], found["state"]) == ("52:54:00:00:00:05", ["PERMANENT"])
    one.delete_neighbour("br0", "fd00:1::5")
    one.delete_neighbour("br0", "fd00:1::5")


def test_forwarding_leaves_links_that_listen_to_routers_listening(one: Links) -> None:
    one.ensure_veth("v0", "v1", TWO)
    links.sysctl("net/ipv6/conf/v0/accept_ra", "1", ONE)
    links.forward_ipv6(ONE)
    links.forward_ipv6(ONE)
    assert links.read_sysctl("net/ipv6/conf/all/forwarding", ONE) == "1"
    assert links.read_sysctl("net/ipv6/conf/v0/accept_ra", ONE) == "2"
