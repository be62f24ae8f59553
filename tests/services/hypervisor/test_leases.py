"""Leases of machines that are not VMs, on the real wire."""

from __future__ import annotations

import asyncio

import pytest

from atoll.api import hypervisor as api
from atoll.api.hypervisor import Follow
from atoll.api.route import Done
from atoll.errors import Conflict, Denied
from atoll.model.lease import Boot, LeaseState, Reservation
from atoll.model.network import mac_for

RACK = Reservation("10.9.0.7", "52:54:00:00:00:07", "rack1", "lan", Boot(image="tiny"))


async def leases(user) -> dict[str, str]:
    lines = [line async for line in user.stream(api.LEASE_LIST, query=Follow(follow=False))]
    assert isinstance(lines.pop(), Done)
    return {lease.hostname: lease.state for lease in lines}


async def test_a_machine_has_a_lease_that_no_vm_gets_and_the_next_agent_knows(node, ann, oper):
    await oper.call(api.NODE_ADD_LEASE, body=RACK)
    await oper.call(api.NODE_ADD_LEASE, body=RACK)
    made = [await ann.create(name) for name in ("a", "b", "c")]
    assert RACK.ip not in {vm.ip for vm in made}
    assert RACK.ip not in node.free()
    assert (await leases(ann)).keys() == {"a", "b", "c", "rack1"}
    lease = node.on().lease(RACK.mac)
    assert (lease.ip, lease.hostname, lease.boot.image) == (RACK.ip, "rack1", "tiny")
    await node.restart()
    async with node.user("ann") as again:
        assert (await leases(again)).keys() == {"a", "b", "c", "rack1"}


async def test_a_lease_that_is_taken_away_frees_its_address_and_may_be_gone_already(node, oper):
    await oper.call(api.NODE_ADD_LEASE, body=RACK)
    for _ in range(2):
        await oper.call(api.NODE_DELETE_LEASE, {"ip": RACK.ip})
    assert RACK.ip in node.free()
    assert node.on().lease(RACK.mac) is None


async def test_the_address_of_a_vm_cannot_have_another_lease(ann, oper):
    vm = await ann.create("web")
    for clash in (
        Reservation(vm.ip, "52:54:00:00:00:77", "x", "lan"),
        Reservation("10.9.0.99", mac_for(vm.ip), "x", "lan"),
    ):
        with pytest.raises(Conflict, match="clashes with VM web"):
            await oper.call(api.NODE_ADD_LEASE, body=clash)


async def test_only_operators_give_and_take_leases(ann, oper):
    with pytest.raises(Denied):
        await ann.call(api.NODE_ADD_LEASE, body=RACK)
    await oper.call(api.NODE_ADD_LEASE, body=RACK)
    with pytest.raises(Denied):
        await ann.call(api.NODE_DELETE_LEASE, {"ip": RACK.ip})


async def test_leases_are_watched_as_they_change(node, ann, oper):
    seen: asyncio.Queue[tuple[str, str]] = asyncio.Queue()

    async def watch() -> None:
        async for line in ann.stream(api.LEASE_LIST, query=Follow(follow=True)):
            seen.put_nowait((line.hostname, line.state))

    async def news() -> tuple[str, str]:
        return await asyncio.wait_for(seen.get(), 5)

    await oper.call(api.NODE_ADD_LEASE, body=RACK)
    watcher = asyncio.create_task(watch())
    assert await news() == ("rack1", "unused")
    node.service.holdings.leases.note("lan", RACK.mac, LeaseState.BOUND)
    assert await news() == ("rack1", "bound")
    await oper.call(api.NODE_DELETE_LEASE, {"ip": RACK.ip})
    assert await news() == ("rack1", "gone")
    watcher.cancel()


async def test_a_vm_in_a_subnet_with_ipv6_shows_its_address(bare_node, pki):
    async with bare_node.user("oper") as oper, bare_node.user("ann") as ann:
        six = api.Subnet("six", "10.8.0.0/24", "10.8.0.1", cidr6="fd08::/64", gateway6="fd08::1")
        await oper.call(api.NODE_ADD_SUBNET, body=six)
        address = api.Address("10.8.0.5", mac_for("10.8.0.5"))
        await oper.call(api.NODE_ADD_ADDRESS, body=api.AddAddress("six", (address,)))
        assert (await ann.create("web")).ip6 == "fd08::5054:aff:fe08:5"
