"""VMs with several interfaces: each address is held by one of them, whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from atoll.api import hypervisor as api
from atoll.api.changes import VM_CHANGE, ChangeVm
from atoll.api.hypervisor import Follow
from atoll.api.replay import as_request
from atoll.api.route import Done
from atoll.errors import AtollError, Conflict, HostFailure, PoolEmpty
from atoll.model.lease import Reservation
from atoll.model.network import Address, Subnet, mac_for
from atoll.model.vm import VM, VmState
from atoll.plan.firewall import link_for
from killing import killed_at_write

STORAGE = Subnet("storage", "10.8.0.0/24", "10.8.0.1")
PLACES = tuple(Address(f"10.8.0.{last}", mac_for(f"10.8.0.{last}")) for last in (5, 6))
ALL = 6


@pytest.fixture
async def node(node: Any) -> Any:
    """Four addresses in the first subnet, two in a second one."""
    async with node.user("oper") as oper:
        await oper.call(api.NODE_ADD_SUBNET, body=STORAGE)
        await oper.call(api.NODE_ADD_ADDRESS, body=api.AddAddress("storage", PLACES))
    return node


@pytest.fixture
async def ann(node: Any) -> AsyncIterator[Any]:
    async with node.user("ann") as user:
        yield user


async def create(user: Any, name: str = "web", **spec: Any) -> VM:
    made: VM = await user.create(name, **{"subnet": "lan", "extra_subnets": ("storage",), **spec})
    return made


def addresses(*vms: VM) -> list[str]:
    return sorted(nic.ip for vm in vms for nic in vm.all_nics)


def links(vm: VM) -> set[str]:
    return {link_for(vm.ip, index) for index in range(len(vm.all_nics))}


async def test_a_vm_has_its_place_in_each_of_its_subnets_as_long_as_it_runs(ann, node):
    vm = await create(ann)
    assert node.network.plugged == links(vm)
    assert node.machine(vm).extra_nics[0].mac == vm.nics[0].mac
    assert node.free().isdisjoint(addresses(vm))
    lines = [line async for line in ann.stream(api.LEASE_LIST, query=Follow(follow=False))]
    assert isinstance(lines.pop(), Done)
    assert [(lease.ip, lease.hostname, lease.subnet) for lease in lines] == [
        (vm.ip, "web", "lan"),
        (vm.nics[0].ip, "web", "storage"),
    ]
    await ann.halt("web")
    assert node.network.plugged == set()
    assert node.free().isdisjoint(addresses(vm))
    await node.restart()
    assert addresses(await ann.begin("web")) == addresses(vm)
    assert node.network.plugged == links(vm)
    await ann.destroy("web")
    assert len(node.free()) == ALL
    assert node.traces() == set()


async def test_the_request_of_a_vm_makes_one_with_the_same_subnets(ann):
    vm = await create(ann)
    request = as_request(vm, b"")
    assert (request.spec.subnet, request.spec.extra_subnets) == ("lan", ("storage",))


async def test_a_vm_gets_all_its_addresses_or_nothing_happens(ann, node):
    first, second = await create(ann, "a"), await create(ann, "b")
    with pytest.raises(PoolEmpty, match="no free address in subnet storage"):
        await create(ann, "c")
    assert len({*addresses(first, second)}) == 4
    assert len(node.free()) == 2


async def test_many_at_once_never_share_an_address(ann, node):
    for _ in range(3):
        made = await asyncio.gather(
            *(create(ann, f"vm{n}") for n in range(4)),
            *(ann.create(f"lan{n}", subnet="lan") for n in range(4)),
            return_exceptions=True,
        )
        vms = [vm for vm in made if isinstance(vm, VM)]
        assert {type(other) for other in made if not isinstance(other, VM)} <= {PoolEmpty}
        assert len(addresses(*vms)) == len({*addresses(*vms)}) == ALL - len(node.free())
        await asyncio.gather(*(ann.destroy(vm.name) for vm in vms))
        assert len(node.free()) == ALL


async def test_no_machine_gets_a_lease_of_an_address_or_mac_of_any_interface(ann, oper):
    vm = await create(ann)
    (nic,) = vm.nics
    for clash in (
        Reservation(nic.ip, "52:54:00:00:00:77", "rack", "storage"),
        Reservation("10.8.0.99", nic.mac, "rack", "storage"),
    ):
        with pytest.raises(Conflict, match="clashes with VM web"):
            await oper.call(api.NODE_ADD_LEASE, body=clash)


async def test_a_machine_that_has_a_lease_keeps_it(ann, oper, node):
    await oper.call(api.NODE_ADD_LEASE, body=Reservation(PLACES[0].ip, PLACES[0].mac, "rack", "storage"))
    assert (await create(ann)).nics[0].ip == PLACES[1].ip
    with pytest.raises(PoolEmpty):
        await create(ann, "other")


async def test_a_create_that_fails_frees_every_address(ann, node):
    node.faults.fail.add("started")
    with pytest.raises(HostFailure):
        await create(ann)
    assert node.traces() == set()
    assert len(node.free()) == ALL


async def test_another_first_subnet_leaves_the_other_interface_where_it_is(ann, oper, node):
    vm = await create(ann)
    await oper.call(api.NODE_ADD_SUBNET, body=Subnet("dmz", "10.7.0.0/24", "10.7.0.1"))
    place = api.AddAddress("dmz", (Address("10.7.0.5", mac_for("10.7.0.5")),))
    await oper.call(api.NODE_ADD_ADDRESS, body=place)
    await ann.halt("web")
    with pytest.raises(Conflict, match="has an interface in subnet storage already"):
        await ann.call(VM_CHANGE, {"vm": "web"}, body=ChangeVm(subnet="storage"))
    moved = await ann.call(VM_CHANGE, {"vm": "web"}, body=ChangeVm(subnet="dmz"))
    assert (moved.ip, moved.nics) == ("10.7.0.5", vm.nics)
    assert vm.ip in node.free()
    assert node.free().isdisjoint(addresses(moved))
    await node.restart()
    assert (await ann.show("web")).nics == vm.nics
    assert node.on("br-storage").guest(vm.nics[0].ip).vm.ip == moved.ip


async def test_a_record_that_cannot_be_read_holds_every_address_of_its_vm(ann, node):
    vm = await create(ann)
    await node.stop()
    path = node.directory / "state" / "vms" / vm.ip / "vm.json"
    path.write_bytes(b"{")
    await node.start()
    damaged = await ann.show(vm.ip)
    assert (damaged.state, damaged.nics) == (VmState.DAMAGED, vm.nics)
    # What runs of it keeps its places in the network, and nobody else gets them.
    assert node.network.plugged == links(vm)
    assert (await create(ann, "other")).nics[0].ip != vm.nics[0].ip
    async with node.user("oper") as oper:
        await oper.destroy(vm.ip)
        await oper.destroy("other")
    assert len(node.free()) == ALL
    assert node.traces() == set()


async def test_it_starts_cold_and_the_pool_gives_way_to_all_of_its_addresses(ann, node, until):
    more = tuple(Address(f"10.8.0.{last}", mac_for(f"10.8.0.{last}")) for last in range(7, 15))
    async with node.user("oper") as oper:
        await oper.call(api.NODE_ADD_ADDRESS, body=api.AddAddress("storage", more))
    await ann.create("first", image="twin", subnet="storage")
    await until(lambda: len(node.templates) == 1)
    node.hot_pool = 1
    await node.restart()
    await until(lambda: node.templates.ready == 1)
    await ann.create("asks", image="twin", subnet="storage")
    await until(lambda: node.service.pool.waiting == 1)
    ((_, held),) = node.service.pool.held()
    small = {"image": "tiny", "memory_mib": 32, "milli_cpus": 1}
    pools = {pool.subnet.id: pool.free for pool in (await ann.node()).pools}
    for number in range(len(pools["storage"])):
        await ann.create(f"other-{number}", subnet="storage", **small)

    vm = await create(ann, image="twin", milli_cpus=1)

    assert (vm.started_by, vm.nics[0].ip) == ("cold", held)
    assert len(node.service.pool) == 0


async def test_an_agent_that_is_killed_at_any_write_leaves_no_address_with_two_holders(ann, node):
    for nth in range(1, 9):
        with killed_at_write(nth):
            await asyncio.gather(create(ann, f"web{nth}", user_data=b"x"), return_exceptions=True)
            await node.stop()
        await node.start()
        vms = node.service.vms.list()
        assert all(vm.state is VmState.RUNNING for vm in vms)
        assert len(node.free()) == ALL - len(addresses(*vms))
        try:
            other = await create(ann, "other")
        except AtollError as error:
            raise AssertionError(f"after write {nth}") from error
        assert set(addresses(other)).isdisjoint(addresses(*vms))
        for vm in (other, *vms):
            await ann.destroy(vm.name)
        assert node.traces() == set()
        assert len(node.free()) == ALL
