"""Changing VMs that are there: at once where it can be, at the next start otherwise; all of it or nothing."""

from __future__ import annotations

import asyncio

import pytest
from msgspec import structs

from atoll.api import hypervisor as api
from atoll.api.changes import VM_BECOME_PRIMARY_OWNER, VM_CHANGE, ChangeVm
from atoll.api.hypervisor import AddAddress
from atoll.errors import Conflict, Denied, HostFailure, Invalid, NoCapacity
from atoll.hypervisor.vms.records import Record
from atoll.model.event import EventKind
from atoll.model.network import Address, Subnet, mac_for
from atoll.model.vm import MachineType, VmState
from atoll.plan.firewall import link_for

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ3R7hQ0Zl0m2n0c0Yk1n1uF1v1x1y1z1A1B1C1D1E1F ann"
DMZ = Subnet("dmz", "10.8.0.0/24", "10.8.0.1")


async def change(who, **wishes: object):
    return await who.call(VM_CHANGE, {"vm": "web"}, body=ChangeVm(**wishes))


async def user_data(who) -> bytes:
    return b"".join([chunk async for chunk in who.download(api.VM_USER_DATA, {"vm": "web"})])


@pytest.fixture
async def dmz(oper) -> str:
    """A second subnet, with one address."""
    await oper.call(api.NODE_ADD_SUBNET, body=DMZ)
    ip = "10.8.0.5"
    await oper.call(api.NODE_ADD_ADDRESS, body=AddAddress("dmz", (Address(ip, mac_for(ip)),)))
    return ip


async def test_a_change_is_kept_and_told(ann, node):
    await ann.create("web", tags={"a": "1"})
    new = await change(ann, tags={"a": None, "b": "2"}, name="web2", protected=True)
    assert (new.tags, new.name, new.protected) == ({"b": "2"}, "web2", True)
    assert await ann.show("web2") == new
    assert node.records.load()[new.ip].vm == new


async def test_a_new_host_name_is_leased_from_now_on(ann, node):
    vm = await ann.create("web")
    assert node.on().lease(vm.mac).hostname == "web"
    await change(ann, name="web2")
    assert node.on().lease(vm.mac).hostname == "web2"


async def test_memory_of_a_running_vm_waits_for_its_next_start(ann):
    await ann.create("web")
    new = await change(ann, memory_mib=128, machine_type=MachineType.Q35)
    assert (new.memory_mib, new.pending) == (128, ("memory_mib", "machine_type"))
    assert (await ann.node()).free.memory_mib == 1024 - 128
    up = await ann.reboot("web")
    assert (up.memory_mib, up.machine_type, up.pending, up.running) == (128, MachineType.Q35, (), None)


async def test_what_waits_outlives_the_agent(ann, node):
    await ann.create("web", memory_mib=256)
    await change(ann, memory_mib=64)
    await node.restart()
    found = await ann.show("web")
    assert (found.memory_mib, found.pending) == (64, ("memory_mib",))
    assert (await ann.node()).free.memory_mib == 1024 - 256
    assert (await ann.halt("web")).pending == ()
    assert (await ann.node()).free.memory_mib == 1024 - 64


async def test_more_than_there_is_is_refused_and_nothing_is_changed(ann, node):
    vm = await ann.create("web")
    with pytest.raises(NoCapacity, match="changing VM web on node1: not enough left"):
        await change(ann, memory_mib=2048, tags={"a": "1"})
    with pytest.raises(Invalid, match="is less than image tiny needs"):
        await change(ann, memory_mib=16)
    assert await ann.show("web") == vm


async def test_two_who_grow_at_the_same_time_do_not_get_the_same_memory(ann):
    await ann.create("a")
    await ann.create("b")
    body = ChangeVm(memory_mib=600)
    got = await asyncio.gather(
        *(ann.call(VM_CHANGE, {"vm": name}, body=body) for name in "ab"), return_exceptions=True
    )
    assert sorted(isinstance(one, NoCapacity) for one in got) == [False, True]


async def test_what_the_image_does_not_honour_is_refused_or_said(ann, node):
    for given in ({"ssh_keys": (KEY,)}, {"user_data": b"#cloud-config\n"}):
        with pytest.raises(Conflict, match="guests of image plain have no"):
            await ann.create("web", image="plain", **given)
    assert node.traces() == set()
    assert (await ann.create("web", image="plain", user_data=b"#!/bin/sh\n")).remarks == ()
    for given in ({"ssh_keys": (KEY,)}, {"user_data": b"#cloud-config\n"}):
        with pytest.raises(Conflict, match="guests of image plain have no"):
            await change(ann, **given)
    (said,) = (await change(ann, user_data=b"key = value\n")).remarks
    assert said.startswith("its user data is no script (#!)")
    # Another change leaves it as it is said, and the script of before is none to say anything of.
    assert (await change(ann, tags={"a": "1"})).remarks == (said,)
    assert (await change(ann, previous_user_data=True)).remarks == ()


async def test_user_data_is_replaced_and_can_be_changed_back(ann, node):
    await ann.create("web", user_data=b"one")
    await change(ann, user_data=b"two")
    assert await user_data(ann) == b"two"
    await node.restart()
    await change(ann, previous_user_data=True)
    assert await user_data(ann) == b"one"
    await change(ann, previous_user_data=True)
    assert await user_data(ann) == b"two"
    await change(ann, user_data=b"")
    assert await user_data(ann) == b""


async def test_user_data_of_a_vm_that_had_none_can_be_taken_back(ann):
    await ann.create("web")
    await change(ann, user_data=b"one")
    await change(ann, previous_user_data=True)
    assert await user_data(ann) == b""


async def test_owners_change_and_the_old_ones_may_no_more(ann, bob):
    await ann.create("web")
    await change(ann, owner_users=("bob", "ann"))
    await change(bob, owner_users=("bob",))
    with pytest.raises(Denied):
        await change(ann, owner_users=("ann",))


async def test_one_becomes_the_primary_owner(ann, bob, oper):
    await ann.create("web", owner_users=("ann", "bob"))
    vm = await bob.call(VM_BECOME_PRIMARY_OWNER, {"vm": "web"})
    assert vm.owner_users == ("bob", "ann")
    assert (await oper.call(VM_BECOME_PRIMARY_OWNER, {"vm": "web"})).owner_users == ("oper", "bob", "ann")


async def test_the_vm_of_somebody_else_is_not_changed(ann, bob):
    vm = await ann.create("web")
    with pytest.raises(Denied):
        await change(bob, tags={"mine": "1"})
    with pytest.raises(Denied):
        await bob.call(VM_BECOME_PRIMARY_OWNER, {"vm": "web"})
    assert await ann.show("web") == vm


# --- another subnet


async def test_another_subnet_is_another_address_for_the_same_vm(ann, node, dmz: str):
    old = await ann.create("web", user_data=b"kept", tags={"a": "1"})
    await ann.halt("web")
    new = await change(ann, subnet="dmz", tags={"a": "2"})
    assert (new.ip, new.mac, new.subnet, new.tags) == (dmz, mac_for(dmz), "dmz", {"a": "2"})
    assert new.instance_id == old.instance_id
    assert old.ip in node.free()
    assert dmz not in node.free()
    assert await user_data(ann) == b"kept"
    up = await ann.begin("web", "metadata")
    assert (up.ip, up.state) == (dmz, VmState.RUNNING)
    assert node.network.plugged == {link_for(dmz)}
    assert await ann.list() == (up,)
    await node.restart()
    assert (await ann.show(dmz)).state is VmState.RUNNING
    await ann.destroy("web")
    assert node.traces() == set()


async def test_a_running_vm_keeps_its_address(ann, node, dmz: str):
    vm = await ann.create("web")
    with pytest.raises(Conflict, match="cannot alter VM web: it is running") as refusal:
        await change(ann, subnet="dmz")
    assert "atoll vm stop web" in refusal.value.hint
    assert await ann.show("web") == vm
    assert dmz in node.free()


async def test_a_move_that_fails_leaves_the_vm_where_it_was(ann, node, dmz: str, monkeypatch):
    old = await ann.create("web")
    await ann.halt("web")
    down = await ann.show("web")

    def fail(record: object) -> None:
        raise HostFailure("told to fail")

    monkeypatch.setattr(node.records, "move", fail)
    with pytest.raises(HostFailure):
        await change(ann, subnet="dmz")
    assert await ann.show("web") == down
    assert dmz in node.free()
    await node.restart()
    assert (await ann.show("web")).ip == old.ip


@pytest.mark.parametrize("arrived", [False, True])
async def test_an_agent_that_dies_in_a_move_leaves_one_vm_at_one_address(ann, node, dmz: str, arrived: bool):
    old = await ann.create("web", user_data=b"kept")
    await ann.halt("web")
    down = await ann.show("web")
    await node.stop()
    to = structs.replace(down, ip=dmz, mac=mac_for(dmz), subnet="dmz")
    record = structs.replace(node.records.load()[old.ip], moving=to)
    await node.records.write(record)
    if arrived:
        await node.records.move(record)
    await node.start()
    (found,) = await ann.list()
    assert found == (to if arrived else down)
    assert len(node.free()) == 4
    assert await user_data(ann) == b"kept"
    assert (await ann.begin("web")).state is VmState.RUNNING


async def test_both_addresses_are_taken_while_a_vm_moves(ann, node, dmz: str):
    await ann.create("web")
    await ann.halt("web")
    seen = []
    move = node.records.move

    async def look(record: Record) -> None:
        seen.append(node.free())
        await move(record)

    node.records.move = look
    await change(ann, subnet="dmz")
    assert not seen[0] & {"10.9.0.5", dmz}


async def test_who_follows_events_sees_the_old_address_go_and_the_new_one_come(ann, node, dmz: str):
    await ann.create("web")
    await ann.halt("web")
    node_events = node.service.events
    before = node_events._sequence
    await change(ann, subnet="dmz")
    told = [event async for event in node_events.read(node_events.epoch, before, follow=False)]
    moved = [event for event in told if event.kind not in (EventKind.CHANGED, EventKind.NODE)]
    kinds = [(event.kind, event.vm.ip) for event in moved]
    assert kinds == [(EventKind.DESTROYED, "10.9.0.5"), (EventKind.CREATED, dmz)]
