"""The life of a VM, from create to destroy, as its owner sees it."""

from __future__ import annotations

import asyncio
import hashlib

import pytest

from atoll.api import hypervisor as api
from atoll.api.hypervisor import CreateVm, Progress, Wait
from atoll.api.route import Done
from atoll.drivers.machine.base import Exit
from atoll.errors import Conflict, NotFound, TimedOut, Unreachable
from atoll.model.vm import VmSpec, VmState
from atoll.model.volume import VolumeFormat
from atoll.plan.firewall import link_for


async def test_a_vm_is_made_with_all_that_was_asked_for(ann):
    vm = await ann.create(
        "web", milli_cpus=500, tags={"role": "web"}, owner_groups=("dev",), user_data=b"#!/bin/sh"
    )
    assert (vm.ip, vm.mac, vm.name, vm.state) == ("10.9.0.5", "52:54:0a:09:00:05", "web", VmState.RUNNING)
    assert (vm.driver, vm.image, vm.memory_mib, vm.milli_cpus) == ("sim", "tiny", 64, 500)
    assert (vm.owner_users, vm.owner_groups, vm.tags) == (("ann",), ("dev",), {"role": "web"})
    assert vm.user_data_sha256 == hashlib.sha256(b"#!/bin/sh").hexdigest()
    assert vm.volumes[0].format is VolumeFormat.MEMORY
    assert list(vm.ready) == ["address", "volume", "started", "dhcp", "metadata"]
    assert list(vm.ready.values()) == sorted(vm.ready.values())


async def test_progress_is_told_as_it_is_made_and_ends_with_the_vm(ann):
    request = CreateVm(VmSpec("web", "tiny", driver="sim", memory_mib=64))
    lines = [line async for line in ann.stream(api.VM_CREATE, body=request)]
    assert [line.stage for line in lines[:-1]] == ["address", "volume", "started", "dhcp", "metadata"]
    assert all(isinstance(line, Progress) and line.ip == "10.9.0.5" for line in lines[:-1])
    assert isinstance(lines[-1], Done)


async def test_a_vm_is_found_by_name_and_by_ip(ann):
    vm = await ann.create("web")
    assert await ann.show("web") == await ann.show("10.9.0.5") == vm
    assert await ann.list() == (vm,)


async def test_what_was_acknowledged_is_on_disk(ann, node):
    vm = await ann.create("web", user_data=b"hello")
    kept = node.records.load()[vm.ip]
    assert (kept.vm.name, kept.committed, kept.want) == ("web", True, "running")
    assert b"".join([chunk async for chunk in ann.download(api.VM_USER_DATA, {"vm": "web"})]) == b"hello"


async def test_a_vm_is_stopped_and_started_again(ann, node):
    vm = await ann.create("web")
    down = await ann.halt("web")
    assert (down.state, down.reason) == (VmState.STOPPED, "")
    assert node.network.plugged == set()
    up = await ann.begin("web", "metadata")
    assert (up.state, up.ip, up.instance_id) == (VmState.RUNNING, vm.ip, vm.instance_id)
    assert set(up.ready) == {"started", "dhcp", "metadata"}
    assert node.network.plugged == {link_for(vm.ip)}


async def test_starting_what_runs_and_stopping_what_is_down_are_successes(ann):
    await ann.create("web")
    assert (await ann.begin("web", "metadata")).state is VmState.RUNNING
    await ann.halt("web")
    assert (await ann.halt("web")).state is VmState.STOPPED


async def test_a_guest_that_ignores_its_power_button_is_ended_by_force(ann, node):
    vm = await ann.create("web")
    node.faults.deaf.add(vm.ip)
    assert (await ann.halt("web", grace_s=0.05)).reason == "ended by force after 0.05 s"
    await ann.begin("web")
    assert (await ann.halt("web", grace_s=0)).reason == "ended by force"


async def test_a_reboot_is_a_new_start_of_the_same_vm(ann):
    vm = await ann.create("web")
    again = await ann.reboot("web", "metadata")
    assert (again.state, again.ip, again.instance_id) == (VmState.RUNNING, vm.ip, vm.instance_id)
    await ann.halt("web")
    with pytest.raises(Conflict, match="cannot reboot VM web: it is stopped"):
        await ann.reboot("web")


async def test_a_destroyed_vm_leaves_nothing(ann, node):
    before = node.traces(), node.free(), (await ann.node()).free
    await ann.create("web", user_data=b"x")
    await ann.destroy("web")
    assert (node.traces(), node.free(), (await ann.node()).free) == before
    assert await ann.list() == ()
    with pytest.raises(NotFound, match="VM 'web': there is none on node1"):
        await ann.show("web")


async def test_destroying_what_is_gone_is_a_success(ann):
    await ann.create("web")
    await ann.destroy("web")
    await ann.destroy("web")
    await ann.destroy("10.9.0.5")


async def test_a_stopped_vm_can_be_destroyed(ann, node):
    await ann.create("web")
    await ann.halt("web")
    await ann.destroy("web")
    assert len(node.free()) == 4


@pytest.mark.parametrize("action", ["begin", "halt", "reboot", "show"])
async def test_what_is_done_to_no_vm_is_not_found(ann, action: str):
    with pytest.raises(NotFound, match="VM 'ghost'"):
        await getattr(ann, action)("ghost")


async def test_an_address_that_was_freed_is_used_last(ann):
    first = await ann.create("one")
    await ann.destroy("one")
    assert (await ann.create("two")).ip != first.ip


async def test_a_guest_that_powers_off_is_stopped_and_stays_so(ann, node, until):
    vm = await ann.create("web")
    await node.driver.guest_powers_off(node.machine(vm))
    await until(lambda: node.service.vms.show("web").state is VmState.STOPPED)
    assert (await ann.show("web")).reason == "the guest powered off"
    await until(lambda: not node.network.plugged)  # its end is noted first
    await node.restart(reboot=True)
    assert node.service.vms.show("web").state is VmState.STOPPED


async def test_a_guest_that_crashes_is_told_and_can_be_started(ann, node, until):
    vm = await ann.create("web")
    await node.driver.guest_crashes(node.machine(vm))
    await until(lambda: node.service.vms.show("web").state is VmState.CRASHED)
    assert (await ann.halt("web")).state is VmState.CRASHED
    assert (await ann.begin("web", "dhcp")).state is VmState.RUNNING


async def test_a_crash_while_somebody_waits_ends_the_wait(ann, node, until):
    waiting = asyncio.create_task(ann.create("web", wait_for="port:80"))
    await until(lambda: node.service.vms.list() and node.service.vms.list()[0].state is VmState.RUNNING)
    await node.driver.guest_crashes(node.machine(node.service.vms.show("web")))
    with pytest.raises(Conflict, match="VM web is crashed"):
        await asyncio.wait_for(waiting, 5)


async def test_a_port_can_be_waited_for(ann, node):
    waiting = asyncio.create_task(ann.create("web", wait_for="port:80"))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    node.network.open_ports.add(80)
    assert "port:80" in (await asyncio.wait_for(waiting, 5)).ready


async def test_a_stage_that_does_not_come_is_told_and_the_vm_runs_on(ann):
    with pytest.raises(TimedOut, match=r"did not reach port:81 in 0\.1 s; it came as far as metadata"):
        await ann.create("web", wait_for="port:81", timeout_s=0.1)
    assert (await ann.show("web")).state is VmState.RUNNING


async def test_the_log_of_a_guest_can_be_read(ann):
    await ann.create("web")
    text = b"".join([chunk async for chunk in ann.download(api.VM_LOG, {"vm": "web"})])
    assert text == b"web: simulated guest\r\n"


@pytest.mark.parametrize(("asked", "begins"), [(None, 0), (0, 0), (5, 5), (22, 22), (1 << 40, 22)])
async def test_the_log_of_a_guest_can_be_read_from_a_place_on(ann, asked: int | None, begins: int):
    await ann.create("web")
    async with ann.download_part(api.VM_LOG, {"vm": "web"}, query=api.LogFrom(asked)) as part:
        text = b"".join([chunk async for chunk in part.chunks])
    assert (part.offset, text) == (begins, b"web: simulated guest\r\n"[begins:])


async def test_actions_on_one_vm_take_turns(ann, node):
    await ann.create("web")
    await asyncio.gather(*(ann.reboot("web") for _ in range(5)), ann.destroy("web"), return_exceptions=True)
    assert await ann.list() == ()
    assert node.traces() == set()


async def test_a_second_destroy_never_hits_the_next_vm_of_that_address(ann, node):
    await asyncio.gather(*(ann.create(name) for name in ("a", "b", "c")))
    victim = await ann.create("d")
    await asyncio.gather(ann.destroy(victim.ip), ann.destroy(victim.ip), ann.destroy("d"))
    heir = await ann.create("e")
    assert heir.ip == victim.ip
    assert (await ann.show("e")).state is VmState.RUNNING


async def test_an_exit_that_is_old_news_does_not_end_the_run_after_it(ann, node):
    vm = await ann.create("web")
    node.signals.exit(vm.ip, Exit.CRASHED)
    await asyncio.sleep(0.05)
    assert (await ann.show("web")).state is VmState.RUNNING


async def test_a_client_that_goes_away_before_the_vm_runs_leaves_nothing(ann, node, until):
    started = asyncio.Event()
    node.faults.hook = lambda step, ip: started.set() if step == "start" else None
    creating = asyncio.create_task(ann.create("web"))
    await started.wait()
    creating.cancel()
    await asyncio.gather(creating, return_exceptions=True)
    await until(lambda: all(vm.state is VmState.RUNNING for vm in node.service.vms.list()))
    # Either it had been acknowledged by then, or nothing of it is left.
    assert bool(node.traces()) == bool(node.service.vms.list())


async def test_a_client_that_goes_away_while_it_waits_leaves_a_running_vm(ann, node):
    with pytest.raises((TimeoutError, Unreachable)):
        await asyncio.wait_for(ann.create("web", wait_for="port:80", timeout_s=30), 0.2)
    assert (await ann.show("web")).state is VmState.RUNNING


async def test_the_wait_of_a_start_can_be_for_nothing(ann):
    await ann.create("web")
    await ann.halt("web")
    lines = [line async for line in ann.stream(api.VM_START, {"vm": "web"}, body=Wait())]
    assert [line.stage for line in lines[:-1]][:1] == ["started"]
