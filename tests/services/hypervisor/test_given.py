"""What a node was given, changed and taken away: refused for what is in use, and kept by the next agent."""

from __future__ import annotations

import pytest

from atoll.api import given
from atoll.api import hypervisor as api
from atoll.api.given import ChangeSubnet, RemoveAddress, SetOwners
from atoll.api.hypervisor import AddAddress, InSubnet
from atoll.api.observing import AuditQuery
from atoll.errors import Conflict, Denied, Invalid, NotFound
from atoll.model.lease import Reservation
from atoll.model.network import Address, Subnet, mac_for

TENANT = Subnet("tenant", "10.9.0.0/24", "10.9.0.1", private=True)
RACK = Reservation("10.9.0.77", "52:54:00:00:00:77", "rack1", "lan")


async def remove(oper, *ips: str, subnet: str = "lan"):
    return await oper.call(given.NODE_REMOVE_ADDRESS, body=RemoveAddress(subnet, ips))


async def change(oper, subnet: str = "lan", **changes):
    return await oper.call(given.NODE_CHANGE_SUBNET, {"subnet": subnet}, body=ChangeSubnet(**changes))


async def drop(oper, subnet: str = "lan") -> None:
    await oper.call(given.NODE_REMOVE_SUBNET, {"subnet": subnet})


CALLS = {
    "node.remove-address": lambda user: remove(user, "10.9.0.5"),
    "node.change-subnet": lambda user: change(user, domain="x"),
    "node.remove-subnet": drop,
    "node.set-owners": lambda user: user.call(given.NODE_SET_OWNERS, body=SetOwners(users=("ann",))),
}


@pytest.mark.parametrize("method", CALLS)
async def test_it_is_for_operators(ann, oper, node, method: str):
    before = await ann.node()
    with pytest.raises(Denied, match=f"ann may not call {method}"):
        await CALLS[method](ann)
    assert await ann.node() == before
    await CALLS[method](oper)
    assert any(
        entry.method == method and entry.user == "oper" for entry in await node.audit.read(AuditQuery())
    )


# --- addresses


async def test_an_address_that_a_vm_has_is_not_taken_away(ann, oper, node):
    vm = await ann.create("web")
    with pytest.raises(Conflict, match=rf"{vm.ip} \(VM web\)"):
        await remove(oper, vm.ip, "10.9.0.8")
    assert "10.9.0.8" in node.free()
    after = await remove(oper, "10.9.0.8", "10.9.0.200")
    assert "10.9.0.8" not in {one.ip for one in after.pools[0].free}
    assert after.pools[0].used == 1
    await node.restart()
    assert node.free() == {"10.9.0.6", "10.9.0.7"}
    await ann.destroy("web")
    await remove(oper, vm.ip)
    assert node.free() == {"10.9.0.6", "10.9.0.7"}


async def test_an_address_of_an_unknown_subnet_is_refused(oper):
    with pytest.raises(NotFound, match="'wan': not on this node"):
        await remove(oper, "10.9.0.5", subnet="wan")


# --- subnets


async def test_a_subnet_is_changed_and_the_next_lease_says_so(ann, oper, node):
    vm = await ann.create("web")
    after = await change(oper, dns=("10.9.0.3",), domain="example.test", metadata=False)
    subnet = after.pools[0].subnet
    assert (subnet.dns, subnet.domain, subnet.metadata) == (("10.9.0.3",), "example.test", False)
    assert node.on().lease(vm.mac).subnet == subnet
    assert node.on().guest(vm.ip) is None
    assert node.network.served == (subnet,)
    await node.restart()
    assert (await ann.node()).pools[0].subnet == subnet
    assert (await change(oper)).pools[0].subnet == subnet
    await change(oper, metadata=True, dns=())
    assert node.on().guest(vm.ip).vm.name == "web"


async def test_who_may_use_a_subnet_is_changed(ann, bob, oper):
    await change(oper, allowed_users=("bob",))
    with pytest.raises(Denied, match="ann may not use subnet lan"):
        await ann.create("web", subnet="lan")
    await bob.create("web", subnet="lan")
    await change(oper, allowed_users=(), allowed_groups=())
    await ann.create("db", subnet="lan")


async def test_a_gateway_stays_as_long_as_it_is_somebodys(ann, oper):
    vm = await ann.create("web")
    with pytest.raises(Conflict, match=r"10\.9\.0\.1 is the router of VM web"):
        await change(oper, gateway="10.9.0.2")
    await ann.destroy(vm.ip)
    assert (await change(oper, gateway="10.9.0.2")).pools[0].subnet.gateway == "10.9.0.2"
    with pytest.raises(Invalid, match="is not inside"):
        await change(oper, gateway="10.1.0.2")
    with pytest.raises(NotFound):
        await change(oper, "wan", domain="x")


async def test_a_subnet_is_not_taken_away_while_it_is_used(ann, oper, node):
    vm = await ann.create("web")
    await oper.call(api.NODE_ADD_LEASE, body=RACK)
    with pytest.raises(Conflict, match="in use by VM web, the lease of rack1"):
        await drop(oper)
    await ann.destroy(vm.ip)
    with pytest.raises(Conflict, match="in use by the lease of rack1"):
        await drop(oper)
    await oper.call(api.NODE_DELETE_LEASE, {"ip": RACK.ip})
    await drop(oper)
    await drop(oper)
    assert (await ann.node()).pools == ()
    assert node.network.served == ()
    await node.restart()
    assert (await ann.node()).pools == ()


# --- owners


async def test_an_owner_operates_the_node_beside_those_of_its_configuration(ann, bob, oper, node):
    await ann.create("web")
    after = await oper.call(given.NODE_SET_OWNERS, body=SetOwners(users=("bob",), groups=("ops",)))
    assert (after.owner_users, after.owner_groups) == (("oper", "bob"), ("ops",))
    await bob.call(api.NODE_DRAIN)
    await node.restart()
    await bob.halt("web")
    async with node.user("cat", groups=("ops",)) as cat:
        await cat.call(api.NODE_UNDRAIN)
    await bob.call(given.NODE_SET_OWNERS, body=SetOwners())
    with pytest.raises(Denied):
        await bob.call(api.NODE_DRAIN)
    assert (await oper.call(api.NODE_DRAIN)).owner_users == ("oper",)


# --- the same address twice


async def test_an_address_may_be_one_vms_key_and_anothers_second_interface(ann, oper, node):
    await oper.call(api.NODE_ADD_SUBNET, body=TENANT)
    twins = tuple(Address(f"10.9.0.{last}", mac_for(f"10.9.0.{last}")) for last in (5, 6))
    await oper.call(api.NODE_ADD_ADDRESS, body=AddAddress("tenant", twins))
    web = await ann.create("web")
    db = await ann.create("db", subnet="lan", extra_subnets=("tenant",))
    assert (web.ip, db.ip, db.nics[0].ip) == ("10.9.0.5", "10.9.0.6", "10.9.0.5")
    assert len(node.network.plugged) == 3
    assert node.on("br-lan").lease(web.mac).hostname == "web"
    assert node.on("br-tenant").lease(web.mac).hostname == "db"
    await ann.destroy("web")
    assert node.on("br-lan").lease(web.mac) is None
    assert node.on("br-tenant").guest(web.ip).vm.name == "db"
    assert web.ip in node.free()
    await node.restart()
    assert node.on("br-tenant").guest(web.ip).vm.name == "db"
    # No VM has both: its guest could not tell them apart.
    both = await ann.create("both", subnet="lan", extra_subnets=("tenant",))
    assert (both.ip, both.nics[0].ip) != ("10.9.0.6", "10.9.0.6")
    assert both.ip != both.nics[0].ip
    with pytest.raises(Conflict, match="tenant: is private"):
        await ann.create("odd", subnet="tenant")


async def test_of_two_leases_of_one_address_the_subnet_tells_which(oper):
    await oper.call(api.NODE_ADD_SUBNET, body=TENANT)
    for subnet in ("lan", "tenant"):
        lease = Reservation(RACK.ip, RACK.mac, f"rack-{subnet}", subnet)
        await oper.call(api.NODE_ADD_LEASE, body=lease)
    with pytest.raises(Conflict, match="in each of lan, tenant"):
        await oper.call(api.NODE_DELETE_LEASE, {"ip": RACK.ip})
    await oper.call(api.NODE_DELETE_LEASE, {"ip": RACK.ip}, query=InSubnet("lan"))
    await oper.call(api.NODE_DELETE_LEASE, {"ip": RACK.ip})
    assert (await oper.node()).pools[0].used == 0
