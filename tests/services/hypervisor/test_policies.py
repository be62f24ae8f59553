"""The rules of VMs: restart, destroy on power-down, protection, expiry, acknowledgement; and a node that is drained."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from msgspec import structs

from atoll.api import hypervisor as api
from atoll.api.changes import VM_ACKNOWLEDGE, VM_CHANGE, ChangeVm
from atoll.api.hypervisor import CreateVm, Wait
from atoll.api.route import Done
from atoll.errors import Conflict, Denied, Invalid, NoCapacity, NotFound
from atoll.model.vm import RestartPolicy, VmSpec, VmState
from atoll.plan.firewall import link_for
from atoll.plan.policies import Backoff
from atoll.system import clock

SOON = timedelta(seconds=0.5)
"""Longer than a create takes on a busy machine."""


def vm(node, name: str = "web"):
    return node.service.vms.show(name)


def gone(node, name: str = "web") -> bool:
    return node.service.vms.find(name) is None


# --- restart


async def test_what_crashes_stays_down_unless_it_has_a_policy(ann, node, until):
    made = await ann.create("web")
    await node.driver.guest_crashes(node.machine(made))
    await until(lambda: vm(node).state is VmState.CRASHED)
    await asyncio.sleep(0.05)
    assert (vm(node).state, vm(node).restarts) == (VmState.CRASHED, 0)


@pytest.mark.parametrize("policy", [RestartPolicy.ON_CRASH, RestartPolicy.ALWAYS])
async def test_what_crashes_is_started_again_and_says_why(ann, node, until, policy: RestartPolicy):
    made = await ann.create("web", restart=policy)
    await node.driver.guest_crashes(node.machine(made))
    await until(lambda: vm(node).restarts == 1 and vm(node).state is VmState.RUNNING)
    assert vm(node).reason == "started again: it crashed"
    assert vm(node).instance_id == made.instance_id
    assert node.network.plugged == {link_for(made.ip)}


@pytest.mark.parametrize(
    ("policy", "state"), [(RestartPolicy.ON_CRASH, VmState.STOPPED), (RestartPolicy.ALWAYS, VmState.RUNNING)]
)
async def test_a_guest_that_powers_off_comes_back_only_where_it_always_shall(ann, node, until, policy, state):
    made = await ann.create("web", restart=policy)
    await node.driver.guest_powers_off(node.machine(made))
    await until(lambda: vm(node).reason)
    await until(lambda: vm(node).state is state)


async def test_one_that_crashes_again_and_again_is_given_up_with_the_reason(ann, node, until):
    made = await ann.create("web", restart=RestartPolicy.ON_CRASH)
    for restarts in range(1, 4):
        await node.driver.guest_crashes(node.machine(made))
        await until(
            lambda restarts=restarts: (vm(node).restarts, vm(node).state) == (restarts, VmState.RUNNING)
        )
    await node.driver.guest_crashes(node.machine(made))
    await until(lambda: "given up" in vm(node).reason)
    assert vm(node).reason == "the machine ended unexpectedly; given up after 3 restarts in 10 min"
    assert (await ann.begin("web")).state is VmState.RUNNING


async def test_a_restart_that_fails_is_tried_again_and_then_given_up(ann, node, until):
    made = await ann.create("web", restart=RestartPolicy.ON_CRASH)
    node.faults.fail.add("start")
    await node.driver.guest_crashes(node.machine(made))
    await until(lambda: "given up" in vm(node).reason)
    assert vm(node).state is VmState.FAILED_TO_START
    assert vm(node).restarts == 3


async def test_a_restart_that_was_due_while_there_was_no_agent_happens_when_there_is_one(ann, node, until):
    node.backoff = Backoff(first_s=0.2)
    await node.restart()
    made = await ann.create("web", restart=RestartPolicy.ON_CRASH)
    await node.driver.guest_crashes(node.machine(made))
    await until(lambda: vm(node).state is VmState.CRASHED)
    assert vm(node).reason == "the machine ended unexpectedly; restart 1 of 5 in 0.2 s"
    await node.restart()
    await until(lambda: vm(node).state is VmState.RUNNING)


async def test_a_crash_that_nobody_saw_is_followed_by_a_restart(ann, node, until):
    made = await ann.create("web", restart=RestartPolicy.ON_CRASH)
    await node.stop()
    await node.driver.guest_crashes(node.machine(made))
    await node.start()
    await until(lambda: vm(node).state is VmState.RUNNING)
    assert vm(node).restarts == 1


async def test_a_stop_calls_off_the_restart_that_was_coming(ann, node, until):
    node.backoff = Backoff(first_s=0.1)
    await node.restart()
    made = await ann.create("web", restart=RestartPolicy.ON_CRASH)
    await node.driver.guest_crashes(node.machine(made))
    await until(lambda: vm(node).state is VmState.CRASHED)
    await ann.halt("web")
    await asyncio.sleep(0.15)
    assert (vm(node).state, vm(node).restarts) == (VmState.CRASHED, 0)


async def test_what_its_owner_stopped_is_not_started_again(ann, node):
    await ann.create("web", restart=RestartPolicy.ALWAYS)
    await ann.halt("web")
    await asyncio.sleep(0.05)
    assert vm(node).state is VmState.STOPPED


# --- destroy on power-down, protection


async def test_one_that_is_destroyed_on_power_down_leaves_nothing(ann, node, until):
    made = await ann.create("web", destroy_on_power_down=True)
    await node.driver.guest_powers_off(node.machine(made))
    await until(lambda: gone(node))
    assert node.traces() == set()


async def test_one_that_is_destroyed_on_power_down_survives_a_stop_by_its_owner(ann, node):
    await ann.create("web", destroy_on_power_down=True)
    await ann.halt("web")
    assert vm(node).state is VmState.STOPPED


async def test_what_is_protected_is_not_destroyed_until_that_is_lifted(ann, node):
    await ann.create("web", protected=True)
    with pytest.raises(Conflict, match="cannot destroy VM web: it is protected") as refusal:
        await ann.destroy("web")
    assert refusal.value.exit_status == 4
    assert refusal.value.hint == "lift that first: atoll vm change web --no-protect"
    assert vm(node).state is VmState.RUNNING
    await ann.call(VM_CHANGE, {"vm": "web"}, body=ChangeVm(protected=False))
    await ann.destroy("web")
    assert gone(node)


async def test_a_policy_that_makes_no_sense_is_refused(ann):
    with pytest.raises(Invalid, match="restart 'always'"):
        await ann.create("web", restart=RestartPolicy.ALWAYS, destroy_on_power_down=True)


# --- expiry


async def test_what_expires_is_gone_when_it_is_due_and_leaves_nothing(ann, node, until):
    made = await ann.create("web", expires_at=clock.now() + SOON)
    assert made.expires_at is not None
    await until(lambda: gone(node))
    assert node.traces() == set()


async def test_what_came_due_while_the_agent_was_away_goes_when_it_is_back(ann, node, until):
    await ann.create("web", expires_at=clock.now() + SOON)
    await node.stop()
    await asyncio.sleep(0.55)
    await node.start()
    await until(lambda: gone(node))


async def test_an_expiry_can_be_put_off_and_taken_back(ann, node):
    await ann.create("web", expires_at=clock.now() + SOON)
    later = clock.now() + timedelta(hours=2)
    assert (await ann.call(VM_CHANGE, {"vm": "web"}, body=ChangeVm(expires_at=later))).expires_at == later
    assert (await ann.call(VM_CHANGE, {"vm": "web"}, body=ChangeVm(expires_at=None))).expires_at is None
    await asyncio.sleep(0.55)
    assert vm(node).state is VmState.RUNNING


async def test_what_is_protected_does_not_expire_until_that_is_lifted(ann, node, until):
    await ann.create("web", protected=True, expires_at=clock.now() + SOON)
    await asyncio.sleep(0.55)
    assert not gone(node)
    await ann.call(VM_CHANGE, {"vm": "web"}, body=ChangeVm(protected=False))
    await until(lambda: gone(node))


async def test_a_moment_that_has_passed_is_refused(ann, node):
    with pytest.raises(Invalid, match="has passed"):
        await ann.create("web", expires_at=clock.now() - SOON)
    assert node.traces() == set()


# --- acknowledgement


async def made_with_acknowledgement(who, name: str = "web", **changes: object):
    request = CreateVm(VmSpec(name, "tiny", driver="sim", memory_mib=64), acknowledge=True)
    lines = [line async for line in who.stream(api.VM_CREATE, body=structs.replace(request, **changes))]
    assert isinstance(lines[-1], Done)
    return lines[-1].result


async def test_a_create_that_is_not_acknowledged_is_undone(ann, node, until):
    made = await made_with_acknowledgement(ann)
    assert made.state is VmState.RUNNING
    await until(lambda: gone(node))
    assert node.traces() == set()
    assert len(node.free()) == 4


async def test_a_create_that_is_acknowledged_stays(ann, node):
    await made_with_acknowledgement(ann)
    first = await ann.call(VM_ACKNOWLEDGE, {"vm": "web"})
    assert await ann.call(VM_ACKNOWLEDGE, {"vm": "web"}) == first
    await asyncio.sleep(1.2 * node.acknowledge_within_s)
    assert not gone(node)


async def test_what_is_not_acknowledged_is_undone_also_by_the_next_agent(ann, node, until):
    await made_with_acknowledgement(ann)
    await node.restart()
    await until(lambda: gone(node))
    assert node.traces() == set()


async def test_a_creator_that_goes_away_in_mid_create_leaves_nothing(ann, node, until):
    request = CreateVm(
        VmSpec("web", "tiny", driver="sim", memory_mib=64), wait=Wait("port:9"), acknowledge=True
    )
    lines = ann.stream(api.VM_CREATE, body=request)
    async for line in lines:
        if line.stage == "started":
            break
    await lines.aclose()
    await until(lambda: gone(node))
    assert node.traces() == set()


async def test_a_creator_that_asks_again_has_time_again(ann, node):
    first = await made_with_acknowledgement(ann, request_id="r-1")
    due = node.records.load()[first.ip].acknowledge_by
    again = await made_with_acknowledgement(ann, request_id="r-1")
    assert again.instance_id == first.instance_id
    assert node.records.load()[first.ip].acknowledge_by > due


async def test_only_owners_acknowledge(ann, bob):
    await made_with_acknowledgement(ann)
    with pytest.raises(Denied):
        await bob.call(VM_ACKNOWLEDGE, {"vm": "web"})
    with pytest.raises(NotFound):
        await ann.call(VM_ACKNOWLEDGE, {"vm": "ghost"})


# --- drain


async def test_a_drained_node_makes_and_starts_nothing_and_offers_no_address(ann, oper, node):
    await ann.create("on")
    await ann.create("off")
    await ann.halt("off")
    drained = await oper.call(api.NODE_DRAIN)
    assert drained.drained
    assert [pool.free for pool in drained.pools] == [()]
    assert [pool.used for pool in drained.pools] == [2]
    for attempt in (ann.create("new"), ann.begin("off"), ann.reboot("on")):
        with pytest.raises(NoCapacity, match="node node1 is drained") as refusal:
            await attempt
        assert "atoll node undrain" in refusal.value.hint
    assert vm(node, "on").state is VmState.RUNNING
    await ann.destroy("off")


async def test_a_node_stays_drained_until_it_is_not(ann, oper, node):
    await oper.call(api.NODE_DRAIN)
    await node.restart()
    with pytest.raises(NoCapacity):
        await ann.create("web")
    assert len((await oper.call(api.NODE_UNDRAIN)).pools[0].free) == 4
    await ann.create("web")


async def test_what_crashes_on_a_drained_node_waits(ann, oper, node, until):
    made = await ann.create("web", restart=RestartPolicy.ON_CRASH)
    await oper.call(api.NODE_DRAIN)
    await node.driver.guest_crashes(node.machine(made))
    await until(lambda: vm(node).state is VmState.CRASHED)
    await asyncio.sleep(0.05)
    assert vm(node).state is VmState.CRASHED
    await oper.call(api.NODE_UNDRAIN)
    await until(lambda: vm(node).state is VmState.RUNNING)


async def test_a_drained_node_that_is_rebooted_starts_its_vms_when_it_is_undrained(ann, oper, node, until):
    await ann.create("web")
    await oper.call(api.NODE_DRAIN)
    await node.restart(reboot=True)
    assert (vm(node).state, vm(node).reason) == (
        VmState.STOPPED,
        "the host was rebooted, and the node is drained",
    )
    await oper.call(api.NODE_UNDRAIN)
    await until(lambda: vm(node).state is VmState.RUNNING)


async def test_draining_is_for_operators(ann):
    for route in (api.NODE_DRAIN, api.NODE_UNDRAIN):
        with pytest.raises(Denied):
            await ann.call(route)
