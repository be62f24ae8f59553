"""The agent goes and comes back: VMs run on and are found again; what was half done is finished or undone."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from msgspec import structs

from atoll.api.changes import VM_CHANGE, ChangeVm
from atoll.errors import HostFailure
from atoll.hypervisor.vms import recovery
from atoll.hypervisor.vms.records import Record
from atoll.model.vm import VM, VmState
from atoll.model.volume import VolumeSpec
from atoll.plan.firewall import link_for
from atoll.plan.recovery import Want


async def edit(
    node, vm: VM, *, want: Want | None = None, committed: bool | None = None, **changes: object
) -> None:
    """Put on disk what an agent that was killed at some moment would have left there."""
    kept = node.records.load()[vm.ip]
    await node.records.write(
        Record(
            vm=structs.replace(kept.vm, **changes),
            want=kept.want if want is None else want,
            committed=kept.committed if committed is None else committed,
            boot_id=kept.boot_id,
        )
    )


async def test_running_vms_are_found_again_as_they_were(ann, node):
    made = [await ann.create(name) for name in "abc"]
    await node.restart()
    assert await ann.list() == tuple(made)
    assert node.network.plugged == {link_for(vm.ip) for vm in made}
    assert len(node.free()) == 1


async def test_a_vm_that_was_found_again_can_be_used(ann, node):
    await ann.create("web")
    await node.restart()
    assert (await ann.begin("web", "metadata")).state is VmState.RUNNING
    assert (await ann.reboot("web", "dhcp")).state is VmState.RUNNING
    assert (await ann.halt("web")).state is VmState.STOPPED
    await ann.destroy("web")
    assert node.traces() == set()


async def test_an_exit_after_the_restart_is_noticed(ann, node, until):
    vm = await ann.create("web")
    await node.restart()
    await node.driver.guest_crashes(node.machine(vm))
    await until(lambda: node.service.vms.show("web").state is VmState.CRASHED)


@pytest.mark.parametrize(
    ("end", "state", "reason"),
    [
        ("guest_powers_off", VmState.STOPPED, "the guest powered off"),
        ("guest_crashes", VmState.CRASHED, "the machine ended unexpectedly"),
    ],
)
async def test_a_guest_that_ended_while_there_was_no_agent_is_noted(ann, node, end, state, reason):
    vm = await ann.create("web")
    await node.stop()
    await getattr(node.driver, end)(node.machine(vm))
    await node.start()
    found = node.service.vms.show("web")
    assert (found.state, found.reason) == (state, reason)
    assert node.network.plugged == set()


async def test_a_machine_that_vanished_is_a_crash_and_stays_one(ann, node):
    vm = await ann.create("web")
    await node.stop()
    (node.records.directory(vm.ip) / "sim/record.json").unlink()
    await node.start()
    assert node.service.vms.show("web").state is VmState.CRASHED
    await node.restart()
    assert node.service.vms.show("web").state is VmState.CRASHED


async def test_after_a_reboot_of_the_host_what_ran_runs_again_and_what_did_not_does_not(ann, node, until):
    await ann.create("on")
    await ann.create("off")
    await ann.halt("off")
    await node.restart(reboot=True)
    await until(lambda: node.service.vms.show("on").state is VmState.RUNNING)
    assert node.service.vms.show("off").state is VmState.STOPPED
    await node.restart()
    assert node.service.vms.show("on").state is VmState.RUNNING


@pytest.mark.parametrize("running", [True, False], ids=["machine runs", "machine not there"])
async def test_a_create_that_nobody_was_told_of_is_undone(ann, node, running: bool):
    vm = await ann.create("web", user_data=b"x")
    await node.stop()
    await edit(node, vm, committed=False, state=VmState.STARTING)
    if not running:
        (node.records.directory(vm.ip) / "sim/record.json").unlink()
    await node.start()
    assert node.service.vms.list() == ()
    assert node.traces() == set()
    assert len(node.free()) == 4


@pytest.mark.parametrize("running", [True, False], ids=["machine runs", "machine not there"])
async def test_a_destroy_that_was_half_done_is_finished(ann, node, running: bool):
    vm = await ann.create("web")
    await node.stop()
    await edit(node, vm, want=Want.GONE, state=VmState.DESTROYING)
    if not running:
        (node.records.directory(vm.ip) / "sim/record.json").unlink()
    await node.start()
    assert node.service.vms.list() == ()
    assert node.traces() == set()
    assert len(node.free()) == 4


async def test_a_stop_that_was_half_done_is_finished(ann, node):
    vm = await ann.create("web")
    await node.stop()
    await edit(node, vm, want=Want.STOPPED, state=VmState.STOPPING)
    await node.start()
    assert node.service.vms.show("web").state is VmState.STOPPED
    assert node.network.plugged == set()
    assert not (node.records.directory(vm.ip) / "sim/record.json").exists()


async def test_a_start_that_was_half_done_is_taken_as_it_is_found(ann, node):
    vm = await ann.create("web")
    await node.stop()
    await edit(node, vm, state=VmState.STARTING, ready={})
    await node.start()
    assert node.service.vms.show("web").state is VmState.RUNNING


async def test_a_directory_without_a_record_is_removed(node):
    await node.stop()
    (node.directory / "state" / "vms" / "10.9.0.7").mkdir()
    await node.start()
    assert node.traces() == set()


async def test_the_address_of_a_record_that_cannot_be_read_is_not_given_to_another(ann, node):
    vm = await ann.create("web")
    await node.stop()
    (node.records.directory(vm.ip) / "vm.json").write_bytes(b"{")
    await node.start()
    assert vm.ip not in node.free()
    assert [(await ann.create(name)).ip for name in "abc"] == ["10.9.0.6", "10.9.0.7", "10.9.0.8"]


async def test_one_vm_that_cannot_be_looked_at_does_not_keep_the_others_from_being_found(ann, node):
    await ann.create("good")
    bad = await ann.create("bad")

    def strike(step: str, ip: str) -> None:
        if step == "inspect" and ip == bad.ip:
            raise HostFailure("told to fail")

    await node.stop()
    node.faults.hook = strike
    await node.start()
    assert [vm.name for vm in node.service.vms.list()] == ["good", "bad"]
    assert node.network.plugged == {link_for("10.9.0.5")}
    assert bad.ip not in node.free()


async def test_a_vm_whose_image_is_gone_runs_on_and_can_be_destroyed(ann, node):
    await ann.create("web")
    await node.stop()
    (node.directory / "images" / "tiny" / "image.json").unlink()
    await node.start()
    assert node.service.vms.show("web").state is VmState.RUNNING
    await ann.destroy("web")
    assert node.traces() == set()


async def test_subnets_and_addresses_outlive_the_agent(ann, node):
    before = await ann.node()
    await node.restart()
    after = await ann.node()
    assert after.pools == before.pools
    assert len(after.pools) == 1


async def test_an_agent_that_is_gone_touches_nothing(ann, node):
    await ann.create("web")
    await node.stop()
    kept = node.records.load()
    await asyncio.sleep(0.02)
    assert node.background.running == []
    assert node.records.load() == kept
    await node.start()


async def test_a_node_serves_while_its_vms_wait_to_be_started_after_a_reboot_of_the_host(
    ann, node, until, monkeypatch
):
    monkeypatch.setattr(recovery, "RELAUNCHES_PER_CORE", 1)  # of two cores
    names = ("a", "b", "c", "d")
    for name in names:
        await ann.create(name)
    async with node.starts_held() as release:
        await node.restart(reboot=True)
        await until(lambda: [vm.state for vm in node.service.vms.list()].count(VmState.STARTING) == 2)
        waiting = [vm for vm in await ann.list() if vm.state is VmState.STOPPED]
        assert len(waiting) == 2
        assert {vm.reason for vm in waiting} == {"the host was rebooted; it is started again in its turn"}
        stopped, destroyed = waiting[-1].name, waiting[-2].name
        await ann.halt(stopped)
        await ann.destroy(destroyed)
        release()
    going = set(names) - {stopped, destroyed}
    await until(lambda: all(node.service.vms.show(name).state is VmState.RUNNING for name in going))
    await until(lambda: not any("reboot" in work for work in node.background.running))
    assert (await ann.show(stopped)).state is VmState.STOPPED
    assert {vm.name for vm in await ann.list()} == going | {stopped}


async def test_an_agent_that_dies_before_a_vm_has_its_turn_leaves_it_to_the_next(ann, node, until):
    await ann.create("web")
    async with node.starts_held():
        await node.restart(reboot=True)
        await node.stop()
    await node.start()
    await until(lambda: node.service.vms.show("web").state is VmState.RUNNING)


def as_a_newer_agent_writes(record: dict[str, Any], needs: int) -> None:
    """Put fields into a record that agents of this version do not know."""
    record |= {"format": 99, "needs_format": needs, "lease_id": "abc"}
    record["vm"] |= {"zone": "b"}
    record["vm"]["volumes"][0] |= {"encrypted": True}


@pytest.mark.parametrize("rounds", [1, 2])
async def test_an_agent_takes_over_the_vms_of_a_newer_one_and_gives_them_back_whole(ann, node, rounds: int):
    vm = await ann.create("web", volumes=(VolumeSpec(1, "data"),))
    path = node.records.directory(vm.ip) / "vm.json"
    for turn in range(rounds):
        await node.stop()
        newer = msgspec.json.decode(path.read_bytes())
        as_a_newer_agent_writes(newer, needs=1)
        path.write_bytes(msgspec.json.encode(newer))
        await node.start()
        assert (await ann.show("web")).state is VmState.RUNNING
        assert vm.ip in await node.driver.inspect([node.machine(vm)])
        await ann.call(VM_CHANGE, {"vm": "web"}, body=ChangeVm(tags={"seen": str(turn)}))
        kept = msgspec.json.decode(path.read_bytes())
        assert kept["vm"]["tags"] == {"seen": str(turn)}
        assert (kept["lease_id"], kept["vm"]["zone"]) == ("abc", "b")
        assert kept["vm"]["volumes"][0]["encrypted"] is True
        assert kept["format"] < 99


async def test_a_vm_whose_record_needs_a_newer_agent_is_left_alone_until_there_is_one(ann, node):
    vm = await ann.create("web")
    path = node.records.directory(vm.ip) / "vm.json"
    await node.stop()
    before = path.read_bytes()
    newer = msgspec.json.decode(before)
    as_a_newer_agent_writes(newer, needs=99)
    path.write_bytes(msgspec.json.encode(newer))
    await node.start()
    (left,) = await ann.list()
    assert left.state is VmState.DAMAGED
    assert "needs an agent that knows format 99" in left.reason
    assert vm.ip in await node.driver.inspect([node.machine(vm)])
    assert msgspec.json.decode(path.read_bytes()) == newer
    await node.stop()
    path.write_bytes(before)
    await node.start()
    assert (await ann.show("web")).state is VmState.RUNNING
