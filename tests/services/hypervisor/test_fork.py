"""The ways in which a VM comes to run: cold, as a fork of a template, out of the hot pool."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from atoll.api import hypervisor as api
from atoll.api.given import NODE_REMOVE_ADDRESS, RemoveAddress
from atoll.drivers.machine.sim import SimFaults
from atoll.errors import HostFailure, NoCapacity
from atoll.hypervisor.launch.templates import TemplateLimits
from atoll.model.network import Address, mac_for
from atoll.plan.firewall import link_for
from atoll.plan.hotpool import SPARE_ADDRESSES
from atoll.plan.templates import Patience
from atoll.system import files

MORE = tuple(Address(f"10.9.0.{last}", mac_for(f"10.9.0.{last}")) for last in range(9, 21))


@pytest.fixture
async def wide(node: Any) -> Any:
    """A node with so many addresses that a pool may have some."""
    async with node.user("oper") as oper:
        await oper.call(api.NODE_ADD_ADDRESS, body=api.AddAddress("lan", MORE))
    return node


@pytest.fixture
async def forking(wide: Any, until: Any) -> Any:
    """A node with a template: its first VM is there, and came cold."""
    async with wide.user("ann") as ann:
        assert (await ann.create("first", image="twin")).started_by == "cold"
    await until(lambda: len(wide.templates) == 1)
    return wide


@pytest.fixture
async def pooling(forking: Any) -> Any:
    """The same node, with an agent that pools."""
    forking.hot_pool = 2
    await forking.restart()
    return forking


@pytest.fixture
async def user(wide: Any) -> AsyncIterator[Any]:
    async with wide.user("ann") as user:
        yield user


def parked(node: Any) -> int:
    count: int = node.service.pool.waiting
    return count


def sim(node: Any, ip: str) -> Any:
    return json.loads((node.directory / "state" / "vms" / ip / "sim/record.json").read_text())


async def test_a_member_of_the_pool_that_has_lost_its_link_becomes_nobody(
    pooling: Any, user: Any, until: Any
) -> None:
    await user.create("second", image="twin")
    await until(lambda: parked(pooling) > 0)
    waiting = parked(pooling)
    guests = {ip: sim(pooling, ip) for _, ip in pooling.service.pool.held()}
    lost = next(ip for ip, guest in guests.items() if guest["waiting"] and guest["rehearsals"])
    pooling.signals.link(link_for(lost), False)
    assert parked(pooling) == waiting - 1
    await until(lambda: parked(pooling) >= waiting)


async def test_the_first_vm_comes_cold_and_the_next_ones_are_forks(forking: Any, user: Any) -> None:
    vm = await user.create("second", image="twin")

    assert vm.started_by == "fork"
    assert sim(forking, vm.ip)["waiting"] is False
    assert (await user.show("second")).started_by == "fork"


async def test_an_image_that_cannot_wait_is_never_forked(wide: Any, user: Any) -> None:
    for name in ("one", "two"):
        assert (await user.create(name, image="tiny")).started_by == "cold"
    assert len(wide.templates) == 0


async def test_another_size_begins_with_a_template_of_its_own(forking: Any, user: Any, until: Any) -> None:
    assert (await user.create("large", image="twin", memory_mib=128)).started_by == "cold"
    await until(lambda: len(forking.templates) == 2)
    assert (await user.create("larger", image="twin", memory_mib=128)).started_by == "fork"


async def test_a_forked_vm_that_was_stopped_is_forked_again(forking: Any, user: Any) -> None:
    await user.create("second", image="twin")
    await user.halt("second")

    assert (await user.begin("second")).started_by == "fork"
    assert (await user.reboot("second")).started_by == "fork"


async def test_the_next_agent_forks_the_template_of_the_last_one(forking: Any, user: Any, until: Any) -> None:
    await forking.restart()
    await until(lambda: forking.templates.ready == 1)

    assert (await user.create("second", image="twin")).started_by == "fork"


def of_template(node: Any) -> Any:
    (template,) = node.templates._held.values()
    return template


def damage(node: Any) -> None:
    (path,) = (node.directory / "state" / "templates").glob("*/sim-template.json")
    path.write_bytes(b"{")


@pytest.mark.parametrize("step", ["fork", "identify"])
async def test_a_fork_that_fails_for_want_of_something_is_a_cold_start_and_the_template_stays(
    forking: Any, user: Any, step: str
) -> None:
    forking.faults.fail = {step}

    vm = await user.create("second", image="twin")

    assert vm.started_by == "cold"
    assert sim(forking, vm.ip)["waiting"] is False
    forking.faults.fail = set()
    assert (await user.create("third", image="twin")).started_by == "fork"


async def test_a_template_of_which_no_fork_can_be_made_goes_and_is_made_again_later(
    forking: Any, user: Any, until: Any
) -> None:
    forking.templates._limits = TemplateLimits(8, 0, 0, Patience(first_s=0.5))
    damage(forking)

    vm = await user.create("second", image="twin")

    assert vm.started_by == "cold"
    assert sim(forking, vm.ip)["waiting"] is False
    assert len(forking.templates) == 0
    # Not at once: whatever was wrong with it may be wrong again.
    assert (await user.create("third", image="twin", memory_mib=64)).started_by == "cold"
    assert list((forking.directory / "state" / "templates").iterdir()) == []
    await asyncio.sleep(0.5)
    assert (await user.create("fourth", image="twin")).started_by == "cold"
    await until(lambda: forking.templates.ready == 1)
    assert (await user.create("fifth", image="twin")).started_by == "fork"


async def test_while_a_template_is_removed_the_node_goes_on_and_makes_no_other_in_its_place(
    forking: Any, user: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    forking.templates._limits = TemplateLimits(8, 0, 0, Patience(first_s=0))
    damage(forking)
    begun, go_on, released = threading.Event(), threading.Event(), []

    def slowly(path: Path, *more: Any) -> None:
        if path.parent.name == "templates" and not begun.is_set():
            begun.set()
            released.append(go_on.wait(5))
        remove_tree(path, *more)

    remove_tree = files.remove_tree
    monkeypatch.setattr(files, "remove_tree", slowly)
    creating = asyncio.create_task(user.create("second", image="twin"))
    await until(begun.is_set)

    assert (await user.create("third", image="twin")).started_by == "cold"
    assert not forking.templates._wanted
    assert len(forking.templates) == 0

    go_on.set()
    assert (await creating).started_by == "cold"
    assert released == [True]
    await until(lambda: len(forking.templates) == 1)
    assert (await user.create("fourth", image="twin")).started_by == "fork"


async def test_looking_for_a_template_is_not_using_it(forking: Any, user: Any) -> None:
    before = of_template(forking).used

    assert forking.templates.find(of_template(forking).template.key) is not None
    assert of_template(forking).used == before
    await user.create("second", image="twin")
    assert of_template(forking).used > before


async def test_a_template_that_cannot_be_made_is_nobodys_loss(wide: Any, user: Any) -> None:
    wide.faults.fail = {"make_template"}

    for name in ("one", "two"):
        assert (await user.create(name, image="twin")).started_by == "cold"

    assert list((wide.directory / "state" / "templates").iterdir()) == []


async def test_a_template_that_is_not_whole_is_removed_at_start_up(forking: Any, user: Any) -> None:
    (directory,) = (forking.directory / "state" / "templates").iterdir()
    (directory / "template.json").unlink()

    await forking.restart()

    assert not directory.exists()
    assert (await user.create("second", image="twin")).started_by == "cold"


async def test_a_template_of_an_image_that_was_replaced_is_removed_at_start_up(forking: Any) -> None:
    (directory,) = (forking.directory / "state" / "templates").iterdir()
    record = json.loads((directory / "template.json").read_text())
    record["spec"]["image_digest"] = "another"
    (directory / "template.json").write_text(json.dumps(record))

    await forking.restart()

    assert not directory.exists()


# --- the hot pool


async def pooled(node: Any, user: Any, until: Any, count: int = 1) -> None:
    """Create a VM, and wait until so many members wait for the next ones."""
    await until(lambda: node.templates.ready == 1)
    for number in range(count):
        await user.create(f"asks-{number}", image="twin")
    await until(lambda: parked(node) == count)


async def test_a_pool_follows_demand_and_its_members_are_handed_over(
    pooling: Any, user: Any, until: Any
) -> None:
    assert len(pooling.service.pool) == 0
    await pooled(pooling, user, until)
    (member,) = pooling.service.pool._members.values()

    vm = await user.create("quick", image="twin", user_data=b"#!/bin/sh\n")

    assert vm.started_by == "pool"
    assert (vm.ip, vm.mac, vm.instance_id) == (member.vm.ip, member.vm.mac, member.vm.instance_id)
    assert (vm.name, vm.user_data_sha256) != ("", "")
    machine = sim(pooling, vm.ip)
    assert (machine["waiting"], machine["rehearsals"]) == (False, 1)
    # Two were created lately, so two are wanted now, which is the most.
    await until(lambda: parked(pooling) == 2)


async def test_members_are_seen_by_nobody_and_counted(pooling: Any, user: Any, until: Any) -> None:
    before = await user.node()
    await pooled(pooling, user, until)

    after = await user.node()
    assert {vm.name for vm in await user.list()} == {"first", "asks-0"}
    assert after.vms == {"running": 2}
    assert before.free.memory_mib - after.free.memory_mib == 2 * 64
    assert before.free.milli_cpus - after.free.milli_cpus == 250
    assert after.pools[0].used - before.pools[0].used == 2


async def test_a_member_gives_its_address_to_a_vm_that_finds_no_other(
    pooling: Any, user: Any, until: Any
) -> None:
    await pooled(pooling, user, until)
    ((_, held),) = pooling.service.pool.held()
    left = len((await user.node()).pools[0].free)
    assert left > SPARE_ADDRESSES
    for number in range(left):
        await user.create(f"other-{number}", image="tiny", memory_mib=32, milli_cpus=1)

    vm = await user.create("last", image="tiny", memory_mib=32, milli_cpus=1)

    assert vm.ip == held
    assert vm.started_by == "cold"
    assert len(pooling.service.pool) == 0


async def test_members_give_their_memory_to_a_vm_that_needs_it(pooling: Any, user: Any, until: Any) -> None:
    await pooled(pooling, user, until, count=2)
    free = (await user.node()).free.memory_mib

    vm = await user.create("large", image="tiny", memory_mib=free + 1, milli_cpus=1)

    assert vm.memory_mib == free + 1
    assert len(pooling.service.pool) == 1
    with pytest.raises(NoCapacity):
        await user.create("too-large", image="tiny", memory_mib=free + 1, milli_cpus=1)


async def test_a_member_that_cannot_be_ended_keeps_its_address_memory_and_ids(
    pooling: Any, user: Any, until: Any
) -> None:
    await pooled(pooling, user, until, count=2)
    before = set(pooling.service.pool.held())
    ids = {pooling.ids.find(member.vm.instance_id) for member in pooling.service.pool._members.values()}
    free = (await user.node()).free.memory_mib
    pooling.faults.fail = {"kill"}

    with pytest.raises(HostFailure):
        await user.create("large", image="tiny", memory_mib=free + 1, milli_cpus=1)

    assert pooling.service.pool.held() == before
    assert not before & pooling.free()
    assert ids <= set(pooling.ids._held.values())
    pooling.faults.fail = set()
    # The VM that could not be undone goes too.
    for vm in await user.list():
        if vm.name == "large":
            await user.destroy("large")
    vm = await user.create("large-again", image="tiny", memory_mib=free + 1, milli_cpus=1)
    assert vm.started_by == "cold"
    assert len(pooling.service.pool) == 1


async def test_a_second_vm_waits_for_the_member_that_ends_for_the_first(
    pooling: Any, user: Any, until: Any
) -> None:
    await pooled(pooling, user, until, count=2)
    free = (await user.node()).free.memory_mib
    ending, go_on = asyncio.Event(), asyncio.Event()
    halt, seen = pooling.machines.halt, []

    async def slow(vm: Any) -> None:
        ending.set()
        await go_on.wait()
        await halt(vm)

    pooling.machines.halt = slow
    first = asyncio.create_task(user.create("first-large", image="tiny", memory_mib=free + 1, milli_cpus=1))
    await ending.wait()
    # There is no room for this one before that member has ended.
    second = asyncio.create_task(user.create("small", image="tiny", memory_mib=32, milli_cpus=1))
    await asyncio.sleep(0.1)
    seen = [name for name in ("first-large", "small") if (pooling.service.vms.find(name)).state == "running"]
    held = len(pooling.service.pool)
    go_on.set()
    await asyncio.gather(first, second)
    assert (seen, held) == ([], 2)


async def test_members_of_an_image_that_was_replaced_make_room(pooling: Any, user: Any, until: Any) -> None:
    await pooled(pooling, user, until)
    (member,) = pooling.service.pool._members.values()

    pooling.replace("twin")
    pooling.service.pool.wake()

    await until(lambda: len(pooling.service.pool) == 0)
    assert (await user.create("new", image="twin")).started_by == "cold"
    assert pooling.ids.find(member.vm.instance_id) is None


async def test_a_member_that_dies_is_replaced(pooling: Any, user: Any, until: Any) -> None:
    await pooled(pooling, user, until)
    (member,) = pooling.service.pool._members.values()

    await pooling.driver.guest_crashes(pooling.machine(member.vm))

    await until(lambda: parked(pooling) == 1 and member not in pooling.service.pool._members.values())
    assert len(list((pooling.directory / "state" / "vms").iterdir())) == 3


async def test_a_member_that_cannot_be_handed_over_is_forked_instead(
    pooling: Any, user: Any, until: Any
) -> None:
    await pooled(pooling, user, until)
    struck: list[str] = []

    def once(step: str, ip: str) -> None:
        if step == "identify" and not struck:
            struck.append(ip)
            SimFaults(fail=["identify"]).strike(step, ip)

    pooling.faults.hook = once
    vm = await user.create("quick", image="twin")

    assert (vm.started_by, struck) == ("fork", [vm.ip])


async def test_members_that_cannot_be_made_keep_nobody_from_creating(
    pooling: Any, user: Any, until: Any
) -> None:
    pooling.faults.fail = {"rehearse"}
    await until(lambda: pooling.templates.ready == 1)

    for number in range(3):
        assert (await user.create(f"vm-{number}", image="twin")).started_by == "fork"

    await until(lambda: len(pooling.service.pool) == 0)
    assert len(list((pooling.directory / "state" / "vms").iterdir())) == 4


async def test_an_agent_that_goes_takes_its_members_with_it(pooling: Any, user: Any, until: Any) -> None:
    await pooled(pooling, user, until)
    ((_, held),) = pooling.service.pool.held()

    await pooling.stop()

    assert not (pooling.directory / "state" / "vms" / held).exists()
    await pooling.start()


# --- when room is short


async def test_short_memory_gives_templates_up_until_there_is_more(
    forking: Any, user: Any, until: Any
) -> None:
    forking.templates._limits = TemplateLimits(most=8, memory_reserve_mib=1 << 40, disk_reserve_mib=0)
    forking.templates._wake.set()
    await until(lambda: forking.templates.ready == 0)
    assert (await user.create("second", image="twin")).started_by == "cold"

    forking.templates._limits = TemplateLimits(most=8, memory_reserve_mib=0, disk_reserve_mib=0)
    forking.templates._wake.set()
    await until(lambda: forking.templates.ready == 1)
    assert (await user.create("third", image="twin")).started_by == "fork"


async def test_a_full_disk_takes_templates_for_good(forking: Any, user: Any, until: Any) -> None:
    forking.templates._limits = TemplateLimits(most=8, memory_reserve_mib=0, disk_reserve_mib=1 << 40)
    forking.templates._wake.set()

    await until(lambda: not list((forking.directory / "state" / "templates").iterdir()))

    assert len(forking.templates) == 0
    assert (await user.create("second", image="twin")).started_by == "cold"
    assert len(forking.templates) == 0


async def test_an_address_that_a_member_waits_at_can_be_taken_from_the_node(
    pooling: Any, user: Any, until: Any
) -> None:
    await pooled(pooling, user, until)
    ((subnet, held),) = pooling.service.pool.held()

    async with pooling.user("oper") as oper:
        after = await oper.call(NODE_REMOVE_ADDRESS, body=RemoveAddress(subnet, (held,)))

    assert held not in {one.ip for one in after.pools[0].free}
    assert (subnet, held) not in pooling.service.pool.held()
    assert link_for(held) not in pooling.network.plugged
    assert not (pooling.directory / "state" / "vms" / held).exists()
