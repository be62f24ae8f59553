"""The host around a node that lives in a namespace: it has routes to the node's subnets, and networks of its own.

The host is a namespace too.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from atoll.api import given, publishing
from atoll.api import hypervisor as api
from atoll.errors import Conflict, NotFound, Unreachable
from atoll.model.network import Address, Subnet, mac_for
from atoll.model.publishing import Publication
from atoll.system import namespaces
from atoll.system.links import Links
from atoll.system.uplinks import Uplinks
from node_labs import Node, Site, a_site

HOST_IP, NODE_IP = "10.91.255.0", "10.91.255.1"
HOST_IP6, NODE_IP6 = "fd91::1", "fd91::2"
BLUE = Subnet("blue", "10.91.1.0/24", "10.91.1.1", cidr6="fd91:1::/64", gateway6="fd91:1::1")


class Host:
    """A namespace with a node behind a link of it, and a network of its own."""

    def __init__(self, site: Site) -> None:
        self.namespace = site.namespace("host")
        uplink = {"link": "atl-x", "ip6": NODE_IP6}
        self.node = Node(site, "n1", NODE_IP, self.namespace, uplink=uplink)
        with Links(self.namespace) as here, Links(self.node.namespace) as there:
            here.ensure_veth("atl-x", "uplink", self.node.namespace, ipv6=True)
            here.add_address("atl-x", f"{HOST_IP}/31")
            there.add_address("uplink", f"{NODE_IP}/31")
            here.add_address("atl-x", f"{HOST_IP6}/64")
            there.add_address("uplink", f"{NODE_IP6}/64")
            there.ensure_route("0.0.0.0/0", via=HOST_IP)
            here.ensure_bridge("lan", "02:00:00:00:91:01", 1500, ["10.91.4.1/23"])
        self.node.start()

    def routed(self) -> set[str]:
        """What the host reaches by way of the node."""
        with Links(self.namespace) as links:
            routes = [*links.routes(), *links.routes(socket.AF_INET6)]
        return {route.cidr for route in routes if route.via in (NODE_IP, NODE_IP6)}


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    with a_site(tmp_path_factory.mktemp("outside")) as site:
        yield Host(site)


@pytest.fixture
def blue(host: Host) -> Iterator[Subnet]:
    """Not there yet, and gone afterwards."""
    yield BLUE
    host.node.call(given.NODE_REMOVE_SUBNET, {"subnet": "blue"})
    assert host.routed() == set()


def test_the_host_reaches_guests_of_a_subnet_from_its_coming_to_its_going(host: Host, blue: Subnet) -> None:
    host.node.give(blue, "10.91.1.5")
    assert host.routed() == {"10.91.1.0/24", "fd91:1::/64"}
    vm = host.node.create("web", "blue")
    guest = host.node.guest(vm, "br-blue")
    guest.configure(vm.ip)
    with Links(guest.namespace) as links:
        links.ensure_route("0.0.0.0/0", via="10.91.1.1")
    with guest.listen(80), namespaces.socket_in(host.namespace, socket.AF_INET, socket.SOCK_STREAM) as client:
        client.settimeout(5)
        client.connect((vm.ip, 80))
    with pytest.raises(Conflict, match="subnet blue: is in use by VM web"):
        host.node.call(given.NODE_REMOVE_SUBNET, {"subnet": "blue"})
    host.node.call(api.VM_DESTROY, {"vm": "web"})


def test_private_subnets_and_those_of_other_bridges_are_not_the_nodes_to_route(host: Host) -> None:
    private = Subnet("tenant", "10.91.4.0/24", "10.91.4.1", private=True)
    host.node.call(api.NODE_ADD_SUBNET, body=private)
    assert host.routed() == set()
    host.node.call(given.NODE_REMOVE_SUBNET, {"subnet": "tenant"})


@pytest.mark.parametrize(
    ("cidr", "taken"),
    [("10.91.5.0/24", "10.91.4.0/23 on lan"), ("10.91.254.0/23", "10.91.255.0/31 on atl-x")],
)
def test_a_subnet_where_the_host_has_a_network_is_refused(host: Host, cidr: str, taken: str) -> None:
    gateway = cidr.replace(".0/", ".1/").partition("/")[0]
    with pytest.raises(Conflict, match=f"this host has a route to {taken} already"):
        host.node.call(api.NODE_ADD_SUBNET, body=Subnet("bad", cidr, gateway))
    assert host.node.call(api.NODE_SHOW).pools == ()


def test_a_bridge_that_is_not_there_is_told_with_where_it_was_looked_for(host: Host) -> None:
    lan = Subnet("lan", "10.91.4.0/23", "10.91.4.1", bridge="lan")
    with pytest.raises(NotFound, match=f"in network namespace {host.node.namespace}, where this node lives"):
        host.node.call(api.NODE_ADD_SUBNET, body=lan)


def test_whenever_an_agent_is_killed_the_next_one_has_the_routes_that_the_record_says(
    host: Host, blue: Subnet
) -> None:
    host.node.kill()
    host.node.start("subnet.routed:2")  # the first is passed when it starts
    with pytest.raises(Unreachable):
        host.node.call(api.NODE_ADD_SUBNET, body=blue)
    assert host.routed()
    host.node.kill()
    host.node.start()
    assert host.routed() == set()
    host.node.call(api.NODE_ADD_SUBNET, body=blue)
    host.node.kill()
    with Links(host.namespace) as links:
        links.delete_route(blue.cidr)
        links.ensure_route("10.91.9.0/24", via=NODE_IP)
    host.node.start()
    assert host.routed() == {"10.91.1.0/24", "fd91:1::/64"}


def test_a_host_without_the_link_keeps_no_node_from_serving(host: Host, blue: Subnet) -> None:
    with Uplinks(host.namespace) as links:
        links.down("atl-x")
        host.node.call(api.NODE_ADD_SUBNET, body=blue)
        host.node.kill()
        host.node.start()
        assert [pool.subnet.id for pool in host.node.call(api.NODE_SHOW).pools] == ["blue"]
        assert "the host's routes to subnets over atl-x" in host.node.log.read_text()
        links.up("atl-x")
        links.add_address("atl-x", f"{HOST_IP6}/64")
    host.node.kill()
    host.node.start()
    assert "10.91.1.0/24" in host.routed()


def test_what_is_published_is_on_the_hosts_addresses(host: Host, blue: Subnet) -> None:
    host.node.call(api.NODE_ADD_SUBNET, body=blue)
    address = Address("10.91.1.6", mac_for("10.91.1.6"))
    host.node.call(api.NODE_ADD_ADDRESS, body=api.AddAddress("blue", (address,)))
    vm = host.node.create("open", "blue")
    guest = host.node.guest(vm, "br-blue")
    guest.configure(vm.ip)
    wanted = publishing.Publish((Publication(8080, 80, "10.91.4.1"),))
    host.node.call(publishing.VM_PUBLISH, {"vm": "open"}, body=wanted)
    with (
        guest.listen(80) as server,
        namespaces.socket_in(host.namespace, socket.AF_INET, socket.SOCK_STREAM) as client,
    ):
        client.settimeout(5)
        client.connect(("10.91.4.1", 8080))
        client.sendall(b"x")
        wire, _ = server.accept()
        with wire:
            assert wire.recv(1) == b"x"
    host.node.call(api.VM_DESTROY, {"vm": "open"})
