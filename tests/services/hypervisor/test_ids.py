"""The users that machines run as: each VM has its own, for as long as there is anything of it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from msgspec import structs

from atoll.api import hypervisor as api
from atoll.api.changes import VM_CHANGE, ChangeVm
from atoll.errors import HostFailure
from atoll.model.network import Address, Subnet, mac_for
from atoll.plan.ids import SLOTS, Ids
from atoll.system.ids import Register
from atoll.system.owners import owner_of

WIDE = tuple(Address(f"10.9.0.{last}", mac_for(f"10.9.0.{last}")) for last in range(9, 250))


def kept(node: Any) -> dict[str, Ids | None]:
    """As the records say, by name."""
    return {record.vm.name: record.ids for record in node.records.load().values()}


async def test_two_addresses_that_end_alike_are_two_users(ann: Any, oper: Any, node: Any) -> None:
    for subnet, ip in (("ten", "10.168.1.5"), ("home", "192.168.1.5")):
        network = f"{ip.rpartition('.')[0]}.0/24"
        await oper.call(api.NODE_ADD_SUBNET, body=Subnet(subnet, network, network.replace(".0/24", ".1")))
        await oper.call(api.NODE_ADD_ADDRESS, body=api.AddAddress(subnet, (Address(ip, mac_for(ip)),)))
    one, other = await ann.create("one", subnet="ten"), await ann.create("other", subnet="home")
    assert (one.ip, other.ip) == ("10.168.1.5", "192.168.1.5")
    assert node.machine(one).uid != node.machine(other).uid


async def test_ids_are_in_the_record_and_the_same_at_every_start(ann: Any, node: Any) -> None:
    vm = await ann.create("web")
    given = node.machine(vm).uid
    assert kept(node)["web"] == Ids(given)
    await ann.halt("web")
    await node.restart(reboot=True)
    vm = await ann.begin("web")
    assert node.machine(vm).uid == given


async def test_ids_are_free_again_when_the_vm_is_gone_and_not_before(ann: Any, node: Any) -> None:
    one = await ann.create("one")
    given = node.machine(one).uid
    await ann.halt("one")
    assert node.machine(await ann.create("other")).uid != given
    await ann.destroy("one")
    assert node.machine(await ann.create("third")).uid == given


async def test_a_create_that_fails_gives_its_ids_back(ann: Any, node: Any) -> None:
    node.faults.fail = {"start"}
    with pytest.raises(HostFailure):
        await ann.create("web")
    assert node.ids._held == {}


async def test_ids_go_along_to_another_address(ann: Any, oper: Any, node: Any) -> None:
    await oper.call(api.NODE_ADD_SUBNET, body=Subnet("dmz", "10.8.0.0/24", "10.8.0.1"))
    address = Address("10.8.0.5", mac_for("10.8.0.5"))
    await oper.call(api.NODE_ADD_ADDRESS, body=api.AddAddress("dmz", (address,)))
    given = node.machine(await ann.create("web")).uid
    await ann.halt("web")
    vm = await ann.call(VM_CHANGE, {"vm": "web"}, body=ChangeVm(subnet="dmz"))
    assert node.machine(vm).uid == given
    await node.restart()
    assert node.machine(vm).uid == given


async def test_the_ids_of_a_record_that_cannot_be_read_are_not_given_to_another(ann: Any, node: Any) -> None:
    vm = await ann.create("web")
    given = node.machine(vm).uid
    await node.stop()
    path = node.records.directory(vm.ip) / "vm.json"
    whole = path.read_bytes()
    path.write_bytes(b"{")
    await node.start()
    others = [node.machine(await ann.create(name)).uid for name in "ab"]
    assert given not in others
    await node.stop()
    path.write_bytes(whole)
    await node.start()
    assert node.machine(node.service.vms.show("web")).uid == given


async def test_a_damaged_vm_that_is_destroyed_gives_its_ids_back(ann: Any, node: Any) -> None:
    vm = await ann.create("web")
    given = node.machine(vm).uid
    await node.stop()
    (node.records.directory(vm.ip) / "vm.json").write_bytes(b"{")
    await node.start()
    async with node.user("oper") as oper:
        await oper.destroy(vm.ip)
    assert node.machine(await ann.create("next")).uid == given


async def test_a_record_without_ids_gets_some_at_the_next_start_of_the_agent(ann: Any, node: Any) -> None:
    vm = await ann.create("old")
    await ann.create("new")
    await node.stop()
    path = node.records.directory(vm.ip) / "vm.json"
    record = json.loads(path.read_bytes())
    del record["ids"]
    path.write_text(json.dumps(record))
    await node.start()
    ids = kept(node)
    assert None not in ids.values()
    assert ids["old"] != ids["new"]


async def test_a_vm_whose_ids_another_agent_has_by_now_gets_others(ann: Any, node: Any) -> None:
    vm = await ann.create("web")
    before = node.machine(vm).uid
    await node.stop()
    # As after a restore of an old backup, on a host where others came meanwhile.
    for block in (node.directory / "ids").iterdir():
        block.unlink()
    (node.directory / "other").mkdir()
    other = Register(node.directory / "ids", owner_of(node.directory / "other"))
    taken = [other.claim(space) for space in node.ids._spaces]
    await node.start()
    after = kept(node)["web"]
    assert after is not None
    assert after.first == node.machine(vm).uid != before
    assert not set(taken) & node.ids._blocks


async def test_a_block_that_is_nearly_full_is_followed_by_another_before_it_is(node: Any, until: Any) -> None:
    (space,) = node.ids._spaces
    given = [node.ids.take(f"holder-{number}", space) for number in range(SLOTS - 4)]
    await until(lambda: len(node.ids._blocks) == 2)
    given += [node.ids.take(f"more-{number}", space) for number in range(8)]
    assert len(set(given)) == len(given)


async def test_whoever_comes_when_no_ids_are_free_waits_for_a_block(node: Any) -> None:
    (space,) = node.ids._spaces

    async def one(number: int) -> Ids:
        await node.ids.until_free(space)
        return node.ids.take(f"holder-{number}", space)

    # All at once: nothing that claims blocks ahead gets a turn in between.
    given = await asyncio.gather(*(one(number) for number in range(3 * SLOTS)))
    assert len(set(given)) == 3 * SLOTS


async def test_members_of_the_pool_and_templates_have_ids_of_their_own(node: Any, until: Any) -> None:
    node.hot_pool = 1
    seen: dict[str, int] = {}
    async with node.user("oper") as oper:
        await oper.call(api.NODE_ADD_ADDRESS, body=api.AddAddress("lan", WIDE))
    await node.restart()
    make = node.driver.make_template

    async def noting(machine: Any, directory: Any) -> None:
        others = {ids.first for holder, ids in node.ids._held.items() if holder != "template"}
        assert others
        assert machine.uid not in others
        seen["template"] = machine.uid
        await make(machine, directory)

    node.driver.make_template = noting
    async with node.user() as ann:
        first = await ann.create("first", image="twin")
        await until(lambda: node.templates.ready == 1)
        await ann.create("second", image="twin")
        await until(lambda: node.service.pool.waiting == 1)
        (member,) = node.service.pool._members.values()
        seen["member"] = node.machine(member.vm).uid
        pooled = await ann.create("pooled", image="twin")
        assert pooled.started_by == "pool"
        assert node.machine(pooled).uid == seen["member"]
        assert kept(node)["pooled"] == Ids(seen["member"])
    assert node.machine(first).uid != seen["member"]
    assert "template" in seen
    assert node.ids.find("template") is None


async def test_a_machine_without_ids_is_not_run(ann: Any, node: Any) -> None:
    vm = await ann.create("web")
    stranger = structs.replace(vm, instance_id="another")
    with pytest.raises(HostFailure, match="no user to run as"):
        await node.machines.launch(stranger)
