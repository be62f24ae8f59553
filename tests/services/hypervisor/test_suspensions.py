"""VMs that are suspended, to memory and to disk: what is asked of them meanwhile, and agents that come and go."""

from __future__ import annotations

import pytest

from atoll.api.changes import VM_CHANGE, ChangeVm
from atoll.api.suspending import VM_RESUME, VM_SUSPEND, SuspendVm
from atoll.errors import Conflict, Denied, HostFailure, NoCapacity
from atoll.hypervisor.vms.suspensions import LOST
from atoll.model.vm import RestartPolicy, SuspendTo, VmState
from atoll.model.volume import VolumeSpec, VolumeType
from atoll.plan.firewall import link_for


async def suspend(who, to: SuspendTo = SuspendTo.MEMORY, vm: str = "web"):
    return await who.call(VM_SUSPEND, {"vm": vm}, body=SuspendVm(to))


async def resume(who, vm: str = "web"):
    return await who.call(VM_RESUME, {"vm": vm})


def seen(node, vm):
    return node.driver.inspect([node.machine(vm)])


BOTH = pytest.mark.parametrize("to", SuspendTo)


@BOTH
async def test_a_vm_is_suspended_and_goes_on_with_all_that_it_had(ann, node, to: SuspendTo):
    vm = await ann.create("web")
    for _ in range(2):
        held = await suspend(ann, to)
        assert (held.state, held.suspended.to, held.ip) == (VmState.SUSPENDED, to, vm.ip)
    found = await seen(node, vm)
    if to is SuspendTo.MEMORY:
        assert (found[vm.ip].frozen, node.network.plugged) == (True, {link_for(vm.ip)})
    else:
        assert (found, node.network.plugged) == ({}, set())
    for _ in range(2):
        up = await resume(ann)
        assert (up.state, up.suspended, up.instance_id) == (VmState.RUNNING, None, vm.instance_id)
    assert up.ready == vm.ready
    assert not (await seen(node, vm))[vm.ip].frozen
    assert node.network.plugged == {link_for(vm.ip)}
    assert not list(node.records.directory(vm.ip).glob("*.saved"))


async def test_memory_and_cpus_are_held_in_memory_and_free_on_disk_until_it_is_resumed(ann, node):
    vm = await ann.create("web")
    running = (await ann.node()).free
    await suspend(ann)
    assert (await ann.node()).free == running
    await resume(ann)
    await suspend(ann, SuspendTo.DISK)
    free = (await ann.node()).free
    assert free.memory_mib == running.memory_mib + vm.memory_mib
    assert free.milli_cpus == running.milli_cpus + vm.milli_cpus
    assert free.disk_mib < running.disk_mib
    await ann.create("big", memory_mib=free.memory_mib)
    with pytest.raises(NoCapacity, match="resuming VM web"):
        await resume(ann)
    assert (await ann.show("web")).state is VmState.SUSPENDED
    await ann.destroy("big")
    assert (await resume(ann)).state is VmState.RUNNING
    assert (await ann.node()).free == running


@BOTH
async def test_what_cannot_be_asked_of_it_says_so_and_what_to_do(ann, node, to: SuspendTo):
    await ann.create("web")
    await suspend(ann, to)
    other = SuspendTo.MEMORY if to is SuspendTo.DISK else SuspendTo.DISK
    with pytest.raises(Conflict, match=f"to {other}: it is suspended to {to}"):
        await suspend(ann, other)
    for act in (ann.begin("web"), ann.reboot("web")):
        with pytest.raises(Conflict, match="it is suspended") as refusal:
            await act
        assert "atoll vm resume web" in refusal.value.hint
    with pytest.raises(Denied):
        async with node.user("bob") as bob:
            await resume(bob)


async def test_a_stop_wakes_what_is_in_memory_and_needs_force_for_what_is_on_disk(ann, node):
    vm = await ann.create("web")
    await suspend(ann)
    down = await ann.halt("web", grace_s=5)
    assert (down.state, down.reason, down.suspended) == (VmState.STOPPED, "", None)
    await ann.begin("web")
    await suspend(ann, SuspendTo.DISK)
    with pytest.raises(Conflict, match="cannot hear") as refusal:
        await ann.halt("web", grace_s=5)
    assert "atoll vm stop --force web" in refusal.value.hint
    down = await ann.halt("web", grace_s=0)
    assert (down.state, down.suspended) == (VmState.STOPPED, None)
    assert not list(node.records.directory(vm.ip).glob("*.saved"))
    assert (await ann.begin("web")).state is VmState.RUNNING


@BOTH
async def test_it_can_be_destroyed_and_nothing_is_left(ann, node, to: SuspendTo):
    vm = await ann.create("web")
    await suspend(ann, to)
    await ann.destroy("web")
    assert await seen(node, vm) == {}
    assert not node.records.directory(vm.ip).exists()


@BOTH
async def test_changes_wait_for_its_next_start_and_it_goes_on_as_it_was(ann, node, to: SuspendTo):
    await ann.create("web", volumes=(VolumeSpec(1, "data"),))
    await suspend(ann, to)
    changed = await ann.call(VM_CHANGE, {"vm": "web"}, body=ChangeVm(memory_mib=96, tags={"a": "b"}))
    assert (changed.state, changed.pending, changed.running.memory_mib) == (
        VmState.SUSPENDED,
        ("memory_mib",),
        64,
    )
    up = await resume(ann)
    assert (up.pending, up.memory_mib, up.running.memory_mib, up.tags["a"]) == (("memory_mib",), 96, 64, "b")


@pytest.mark.parametrize("step", ["freeze", "save"])
async def test_a_suspend_that_fails_leaves_it_running(ann, node, step: str):
    vm = await ann.create("web")
    node.driver.faults.fail.add(step)
    with pytest.raises(HostFailure):
        await suspend(ann, SuspendTo.DISK)
    now = await ann.show("web")
    assert (now.state, now.suspended, now.reason.startswith("suspending it failed")) == (
        VmState.RUNNING,
        None,
        True,
    )
    assert not (await seen(node, vm))[vm.ip].frozen
    node.driver.faults.fail.clear()
    assert (await suspend(ann, SuspendTo.DISK)).state is VmState.SUSPENDED


@pytest.mark.parametrize("step", ["restore", "thaw"])
async def test_a_resume_that_fails_loses_nothing(ann, node, step: str):
    await ann.create("web")
    to = SuspendTo.DISK if step == "restore" else SuspendTo.MEMORY
    await suspend(ann, to)
    node.driver.faults.fail.add(step)
    with pytest.raises(HostFailure):
        await resume(ann)
    now = await ann.show("web")
    assert (now.state, now.suspended.to) == (VmState.SUSPENDED, to)
    node.driver.faults.fail.clear()
    assert (await resume(ann)).state is VmState.RUNNING


async def test_what_would_be_lost_on_disk_is_not_suspended_to_it(ann):
    await ann.create("web", volumes=(VolumeSpec(1, "scratch", type=VolumeType.MEMORY),))
    with pytest.raises(Conflict, match="volume scratch is in memory and would be lost"):
        await suspend(ann, SuspendTo.DISK)
    assert (await suspend(ann)).state is VmState.SUSPENDED


@BOTH
async def test_the_next_agent_keeps_it_suspended(ann, node, to: SuspendTo):
    vm = await ann.create("web", restart=RestartPolicy.ALWAYS)
    held = await suspend(ann, to)
    await node.restart()
    now = await ann.show("web")
    assert (now.state, now.suspended) == (VmState.SUSPENDED, held.suspended)
    found = await seen(node, vm)
    assert found[vm.ip].frozen if to is SuspendTo.MEMORY else not found
    assert (await resume(ann)).state is VmState.RUNNING


async def test_what_ends_while_it_is_suspended_is_not_started_again(ann, node, until):
    vm = await ann.create("web", restart=RestartPolicy.ALWAYS)
    await suspend(ann)
    await node.driver.guest_crashes(node.machine(vm))
    await until(lambda: node.service.vms.show("web").state is VmState.CRASHED)
    now = await ann.show("web")
    assert (now.reason, now.restarts) == ("the machine ended unexpectedly while it was suspended", 0)


@BOTH
async def test_a_reboot_of_the_host_loses_memory_and_keeps_what_is_on_disk(ann, node, to: SuspendTo):
    await ann.create("web", restart=RestartPolicy.ALWAYS)
    await suspend(ann, to)
    await node.restart(reboot=True)
    now = await ann.show("web")
    if to is SuspendTo.MEMORY:
        assert (now.state, now.reason) == (VmState.STOPPED, LOST)
        assert (await ann.begin("web")).state is VmState.RUNNING
    else:
        assert now.state is VmState.SUSPENDED
        assert (await resume(ann)).state is VmState.RUNNING
