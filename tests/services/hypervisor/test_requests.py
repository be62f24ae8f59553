"""Every call may be repeated."""

from __future__ import annotations

import asyncio

import pytest

from atoll.api import hypervisor as api
from atoll.api.hypervisor import AddAddress
from atoll.errors import HostFailure
from atoll.model.network import Address, Subnet, mac_for


async def test_a_create_that_is_repeated_gives_the_first_vm(ann, node):
    first = await ann.create("web", request_id="r-1")
    again = await ann.create("web", request_id="r-1")
    assert again.instance_id == first.instance_id
    assert len(node.service.vms.list()) == 1


async def test_repeats_at_the_same_time_make_one_vm(ann, node):
    made = await asyncio.gather(*(ann.create("web", request_id="r-1") for _ in range(5)))
    assert len({vm.instance_id for vm in made}) == 1
    assert len(node.free()) == 3


async def test_a_repeat_after_a_restart_gives_the_first_vm(ann, node):
    first = await ann.create("web", request_id="r-1")
    await node.restart()
    assert (await ann.create("web", request_id="r-1")).instance_id == first.instance_id


async def test_a_repeat_of_what_failed_tries_again(ann, node):
    node.faults.fail.add("start")
    with pytest.raises(HostFailure):
        await ann.create("web", request_id="r-1")
    node.faults.fail.clear()
    assert (await ann.create("web", request_id="r-1")).name == "web"


async def test_a_request_id_is_free_again_when_its_vm_is_gone(ann):
    first = await ann.create("web", request_id="r-1")
    await ann.destroy("web")
    assert (await ann.create("web", request_id="r-1")).instance_id != first.instance_id


async def test_subnets_and_addresses_can_be_added_again(oper, node):
    before = await oper.node()
    await node.furnish()
    assert await oper.node() == before


async def test_subnets_and_addresses_that_are_added_at_the_same_time_are_all_there(oper, node):
    async def add(number: int) -> None:
        subnet = Subnet(f"s{number}", f"10.{number}.0.0/24", f"10.{number}.0.1")
        await oper.call(api.NODE_ADD_SUBNET, body=subnet)
        ip = f"10.{number}.0.5"
        await oper.call(api.NODE_ADD_ADDRESS, body=AddAddress(subnet.id, (Address(ip, mac_for(ip)),)))

    await asyncio.gather(*(add(number) for number in range(20, 30)))
    assert {f"10.{number}.0.5" for number in range(20, 30)} <= node.free()
    kept = node.records.given()
    assert len(kept.subnets) == 11
