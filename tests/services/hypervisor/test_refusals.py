"""What cannot be had is refused before anything is touched, with the field, the value and the remedy."""

from __future__ import annotations

import asyncio
import hashlib

import pytest

from atoll.api import hypervisor as api
from atoll.api.hypervisor import AddAddress
from atoll.errors import (
    AtollError,
    Conflict,
    Denied,
    Invalid,
    Malformed,
    NoCapacity,
    NotFound,
    PoolEmpty,
    TooLarge,
)
from atoll.model.network import Address, Subnet, mac_for


@pytest.mark.parametrize(
    ("error", "brief", "spec"),
    [
        (NotFound, "image nope: there is none of that name", {"image": "nope"}),
        (NotFound, "driver 'lxc': not on this node", {"driver": "lxc"}),
        (Conflict, "image heavy: is not for driver sim", {"image": "heavy"}),
        (Invalid, "memory_mib 16: is less than image tiny needs", {"memory_mib": 16}),
        (NoCapacity, "not enough left: memory 2 GiB of 1 GiB free", {"memory_mib": 2048}),
        (NoCapacity, "not enough left: cpus 2.001 of 2 free", {"milli_cpus": 2001}),
        (NotFound, "subnet 'wan': not on this node", {"subnet": "wan"}),
        (Denied, "ann may not create a VM for bob alone", {"owner_users": ("bob",)}),
    ],
)
async def test_a_vm_that_cannot_be_is_refused(
    ann, node, error: type[AtollError], brief: str, spec: dict[str, object]
):
    with pytest.raises(error) as refusal:
        await ann.create("web", **spec)
    assert type(refusal.value) is error
    assert brief in refusal.value.brief
    assert refusal.value.hint
    assert node.traces() == set()
    assert len(node.free()) == 4


async def test_a_name_is_there_once(ann, bob, node):
    await ann.create("web")
    with pytest.raises(Conflict, match="VM web: there is one of this name"):
        await bob.create("web")
    assert len(node.free()) == 3


async def test_a_name_is_there_once_even_when_two_ask_at_the_same_time(ann, bob):
    got = await asyncio.gather(*(who.create("web") for who in (ann, bob, ann, bob)), return_exceptions=True)
    assert sum(isinstance(one, Conflict) for one in got) == 3


async def test_an_empty_pool_is_told_as_such_and_filled_by_a_destroy(ann, node):
    for name in "abcd":
        await ann.create(name)
    assert node.free() == set()
    with pytest.raises(PoolEmpty, match="no free address in subnet lan") as refusal:
        await ann.create("e")
    assert refusal.value.exit_status == 6
    await ann.destroy("b")
    assert (await ann.create("e")).ip == "10.9.0.6"


async def test_many_creates_at_once_get_an_address_each_or_none(ann, node):
    got = await asyncio.gather(*(ann.create(f"vm{n}") for n in range(9)), return_exceptions=True)
    made = [one for one in got if not isinstance(one, BaseException)]
    assert len({vm.ip for vm in made}) == len(made) == 4
    assert {type(one) for one in got if isinstance(one, BaseException)} == {PoolEmpty}


async def test_capacity_that_others_use_is_not_given_twice(ann):
    await ann.create("big", memory_mib=1000)
    with pytest.raises(NoCapacity, match="memory 64 MiB of 24 MiB free"):
        await ann.create("small")
    await ann.halt("big")
    with pytest.raises(NoCapacity):
        await ann.create("small")
    await ann.destroy("big")
    await ann.create("small")


async def test_a_node_without_subnets_says_how_to_add_one(bare_node):
    async with bare_node.user("ann") as ann:
        with pytest.raises(PoolEmpty, match="no subnet that you may use") as refusal:
            await ann.create()
    assert "atoll subnet add" in refusal.value.hint


@pytest.mark.parametrize("reference", ["../etc", "a/b", "A", "-x", "a\n", "x" * 64, "ü"])
@pytest.mark.parametrize("route", [api.VM_SHOW, api.VM_DESTROY, api.VM_STOP], ids=lambda route: route.name)
async def test_what_can_be_no_vm_is_refused_not_looked_for(ann, route, reference: str):
    with pytest.raises(Invalid, match="must be the IP or the name of a VM"):
        await ann.call(route, {"vm": reference})


async def test_user_data_that_is_too_large_is_refused(ann, node):
    with pytest.raises(TooLarge, match="must be at most 2097152 bytes"):
        await ann.stream_raw(api.VM_CREATE, b'{"user_data":"' + b"A" * (100 << 20) + b'"}')
    spec = b'{"spec":{"name":"web","image":"tiny","driver":"sim"},'
    with pytest.raises(
        Malformed, match="user_data of 1600002 characters: expected `bytes` of length <= 1048576"
    ):
        await ann.stream_raw(api.VM_CREATE, spec + b'"user_data":"' + b"AAAA" * 400_000 + b'"}')
    assert node.traces() == set()


async def test_user_data_up_to_the_limit_is_taken_whole(ann):
    data = bytes(range(256)) * 4096
    vm = await ann.create("web", user_data=data)
    assert vm.user_data_sha256 == hashlib.sha256(data).hexdigest()
    assert b"".join([chunk async for chunk in ann.download(api.VM_USER_DATA, {"vm": "web"})]) == data


@pytest.mark.parametrize(
    "body",
    [
        b'{"spec":{"name":"web"',
        b"name=web",
        b'{"spec":{"name":"web","image":"tiny","driver":"sim","memory_mib":"64"}}',
        b'{"spec":{"name":"web","image":"tiny","driver":"sim","colour":"red"}}',
        b'{"spec":{"name":"../web","image":"tiny","driver":"sim"}}',
        b'{"spec":{"name":"web","image":"../../etc/passwd","driver":"sim"}}',
    ],
    ids=["truncated", "not JSON", "wrong type", "unknown field", "path as name", "path as image"],
)
async def test_a_request_that_cannot_be_read_touches_nothing(ann, node, body: bytes):
    with pytest.raises((Malformed, Invalid)):
        await ann.stream_raw(api.VM_CREATE, body)
    assert node.traces() == set()
    assert await ann.list() == ()


async def test_all_the_addresses_that_one_request_may_hold_are_taken(oper):
    await oper.call(api.NODE_ADD_SUBNET, body=Subnet("huge", "10.128.0.0/9", "10.128.0.1"))
    ips = [f"10.{200 + high // 256}.{high % 256}.{low}" for high in range(256) for low in range(256)]
    node = await oper.call(
        api.NODE_ADD_ADDRESS, body=AddAddress("huge", tuple(Address(ip, mac_for(ip)) for ip in ips))
    )
    assert len(node.pools[-1].free) == 65536


async def test_subnets_and_addresses_that_clash_are_refused(oper):
    with pytest.raises(Conflict, match="exists with other settings"):
        await oper.call(api.NODE_ADD_SUBNET, body=Subnet("lan", "10.9.0.0/24", "10.9.0.1", mtu=9000))
    with pytest.raises(Conflict, match="overlaps subnet lan"):
        await oper.call(api.NODE_ADD_SUBNET, body=Subnet("wide", "10.0.0.0/8", "10.0.0.1"))
    clash = AddAddress("lan", (Address("10.9.0.5", "52:54:00:00:00:99"),))
    with pytest.raises(Conflict, match="clashes with"):
        await oper.call(api.NODE_ADD_ADDRESS, body=clash)
    far = AddAddress("lan", (Address("10.8.0.5", mac_for("10.8.0.5")),))
    with pytest.raises(Invalid, match="is not inside subnet lan"):
        await oper.call(api.NODE_ADD_ADDRESS, body=far)
    lost = AddAddress("wan", (Address("10.9.0.50", mac_for("10.9.0.50")),))
    with pytest.raises(NotFound, match="subnet 'wan'"):
        await oper.call(api.NODE_ADD_ADDRESS, body=lost)
