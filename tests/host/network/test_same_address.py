"""Two interfaces with one address and one MAC on two bridges of a node: each is its own VM's, in everything."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from atoll.api import given
from atoll.api import hypervisor as api
from atoll.model.network import Subnet
from atoll.model.vm import VM
from atoll.plan.firewall import link_for
from atoll.system import namespaces
from atoll.system.links import Links
from node_labs import Guest, Node, a_site, run

LAN = Subnet("lan", "10.60.0.0/24", "10.60.0.1")
TENANT = Subnet("tenant", "10.60.0.0/24", "10.60.0.1", private=True)
SHARED = "10.60.0.5"
PING = ("busybox", "ping", "-c", "1", "-W", "1", "-I")


class Twins:
    """Two VMs; the address of the first one's only interface is that of the second one's other interface."""

    def __init__(self, node: Node) -> None:
        self.node = node
        node.give(LAN, SHARED, "10.60.0.6")
        node.give(TENANT, SHARED)
        self.web, self.db = node.create("web", "lan"), node.create("db", "lan", "tenant")
        assert self.web.ip == self.db.nics[0].ip == SHARED
        assert self.web.mac == self.db.nics[0].mac
        self.one = node.guest(self.web, "br-lan")
        self.other = node.guest(self.db, "br-tenant", index=1)

    def shown(self) -> dict[str, VM]:
        return {vm.name: vm for vm in self.node.call(api.VM_LIST)}


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Twins]:
    with a_site(tmp_path_factory.mktemp("twins")) as site:
        node = Node(site, "n1", "10.60.0.2")
        node.start()
        yield Twins(node)


def instance(guest: Guest) -> str:
    status, body = guest.metadata("/latest/meta-data/instance-id")
    assert status == 200
    return body


def test_each_gets_its_own_lease_and_reads_about_itself(twins: Twins) -> None:
    leases = [guest.lease() for guest in (twins.one, twins.other)]
    assert [(lease["ip"], lease["hostname"]) for lease in leases] == [(SHARED, "web"), (SHARED, "db")]
    # The second interface of a VM is no way out of it.
    assert ["router" in lease for lease in leases] == [True, False]
    assert (instance(twins.one), instance(twins.other)) == (twins.web.instance_id, twins.db.instance_id)
    until = time.monotonic() + 10
    while not all("metadata" in vm.ready for vm in twins.shown().values()):
        assert time.monotonic() < until
        time.sleep(0.05)
    # What a VM does on its second interface is not how far it is.
    assert ["dhcp" in twins.shown()[name].ready for name in ("web", "db")] == [True, False]


def test_each_port_is_held_to_its_own(twins: Twins) -> None:
    assert twins.one.pings("10.60.0.1")
    with Links(twins.one.namespace) as links:
        links.add_address("eth0", "10.60.0.77/24")
    forged = run(twins.one.namespace, *PING, "10.60.0.77", "10.60.0.1", check=False)
    assert " 0 packets received" in forged


def test_an_agent_that_comes_after_one_that_was_killed_knows_both(twins: Twins) -> None:
    twins.node.kill()
    twins.node.start()
    assert twins.one.lease()["hostname"] == "web"
    assert twins.other.lease()["hostname"] == "db"
    assert (instance(twins.one), instance(twins.other)) == (twins.web.instance_id, twins.db.instance_id)


def test_when_one_goes_the_other_stays_and_then_its_subnet_can_go(twins: Twins) -> None:
    node = twins.node
    node.call(api.VM_DESTROY, {"vm": "web"})
    assert instance(twins.other) == twins.db.instance_id
    ruleset = run(node.namespace, "nft", "list", "ruleset")
    assert link_for(twins.web.ip) not in ruleset.replace(f"{link_for(twins.web.ip)}.", "")
    assert link_for(twins.db.ip, 1) in ruleset
    node.call(api.VM_DESTROY, {"vm": "db"})
    node.call(given.NODE_REMOVE_SUBNET, {"subnet": "tenant"})
    with Links(node.namespace) as links:
        assert "br-tenant" not in links.names()
        assert "br-lan" in links.names()
    assert not namespaces.exists(f"{node.namespace}-br-tenant")
    assert [pool.subnet.id for pool in node.call(api.NODE_SHOW).pools] == ["lan"]
