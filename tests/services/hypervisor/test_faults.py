"""What fails half-way leaves nothing behind, or says what it left and can be done again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from atoll.drivers.machine.sim import STEPS
from atoll.errors import AtollError, HostFailure
from atoll.hypervisor.network.sim import SimNetwork
from atoll.model.vm import VmState
from atoll.plan.firewall import link_for
from killing import killed_at_write, refused_writes


@pytest.mark.parametrize("step", ["start", "started"])
async def test_a_create_whose_machine_does_not_start_leaves_nothing(ann, node, step: str):
    node.faults.fail.add(step)
    with pytest.raises(HostFailure, match=f"{step} was told to fail"):
        await ann.create("web", user_data=b"x")
    assert await ann.list() == ()
    assert node.traces() == set()
    assert len(node.free()) == 4
    node.faults.fail.clear()
    assert (await ann.create("web")).state is VmState.RUNNING


@pytest.mark.parametrize("broken", ["plug", "unplug"])
async def test_a_create_whose_network_fails_leaves_no_machine(ann, node, monkeypatch, broken: str):
    async def fail(*_: object) -> None:
        raise HostFailure(f"{broken} was told to fail")

    with monkeypatch.context() as patch:
        patch.setattr(node.network, broken, fail)
        if broken == "unplug":
            node.faults.fail.add("start")
        with pytest.raises(HostFailure):
            await ann.create("web")
    node.faults.fail.clear()
    assert not list((node.directory / "state" / "vms").rglob("sim/record.json"))
    await ann.destroy("web")
    assert node.traces() == set()
    assert len(node.free()) == 4


@pytest.mark.parametrize("nth", range(1, 6))
async def test_a_create_on_a_full_disk_leaves_nothing(ann, node, nth: int):
    """Whichever of its writes is the one that fails."""
    count = 0

    def is_the_one(path: Path) -> bool:
        nonlocal count
        count += 1
        return count == nth

    with refused_writes(is_the_one):
        try:
            await ann.create("web", user_data=b"x")
        except HostFailure:
            assert node.traces() == set()
            assert len(node.free()) == 4
    assert count >= nth
    await ann.destroy("web")
    assert (await ann.create("web")).state is VmState.RUNNING


async def test_a_machine_that_cannot_be_ended_keeps_its_address_until_it_is(ann, node):
    node.faults.fail |= {"started", "kill"}
    with pytest.raises(HostFailure, match="started was told to fail"):
        await ann.create("web")
    (left,) = await ann.list()
    assert (left.state, left.reason) == (
        VmState.DESTROYING,
        f"simulated machine {left.ip}: kill was told to fail",
    )
    assert left.ip not in node.free()
    node.faults.fail.clear()
    await ann.destroy("web")
    assert node.traces() == set()
    assert left.ip in node.free()


async def test_a_machine_that_could_not_be_ended_is_ended_by_the_next_agent(ann, node):
    node.faults.fail |= {"started", "kill"}
    with pytest.raises(HostFailure):
        await ann.create("web")
    node.faults.fail.clear()
    await node.restart()
    assert node.traces() == set()
    assert len(node.free()) == 4


@pytest.mark.parametrize("step", ["start", "started"])
async def test_a_start_that_fails_says_why_and_can_be_tried_again(ann, node, step: str):
    await ann.create("web")
    await ann.halt("web")
    node.faults.fail.add(step)
    with pytest.raises(HostFailure):
        await ann.begin("web")
    failed = await ann.show("web")
    assert failed.state is VmState.FAILED_TO_START
    assert f"{step} was told to fail" in failed.reason
    assert node.network.plugged == set()
    node.faults.fail.clear()
    assert (await ann.begin("web", "dhcp")).state is VmState.RUNNING


async def test_a_stop_that_fails_can_be_finished(ann, node):
    await ann.create("web")
    node.faults.fail.add("kill")
    with pytest.raises(HostFailure):
        await ann.halt("web")
    assert (await ann.show("web")).state is VmState.STOPPING
    node.faults.fail.clear()
    assert (await ann.halt("web")).state is VmState.STOPPED


async def test_a_destroy_that_fails_can_be_finished(ann, node):
    await ann.create("web")
    node.faults.fail.add("kill")
    with pytest.raises(HostFailure):
        await ann.destroy("web")
    assert (await ann.show("web")).state is VmState.DESTROYING
    assert len(node.free()) == 3
    node.faults.fail.clear()
    await ann.destroy("web")
    assert len(node.free()) == 4
    assert node.traces() == set()


async def test_a_guest_that_cannot_be_asked_is_ended(ann, node):
    await ann.create("web")
    node.faults.fail.add("power_down")
    assert (await ann.halt("web")).reason == "ended by force after 5 s"


async def test_a_guest_that_goes_at_the_moment_it_is_asked_has_obeyed(ann, node):
    vm = await ann.create("web")
    (node.records.directory(vm.ip) / "sim/record.json").unlink()
    down = await ann.halt("web")
    assert (down.state, down.reason) == (VmState.STOPPED, "")


@pytest.mark.parametrize("step", STEPS)
async def test_whatever_fails_a_destroy_afterwards_leaves_nothing(ann, node, step: str):
    node.faults.fail.add(step)
    for action in (
        lambda: ann.create("web", timeout_s=1),
        lambda: ann.halt("web"),
        lambda: ann.begin("web"),
        lambda: ann.reboot("web"),
        lambda: ann.destroy("web"),
    ):
        try:
            await action()
        except AtollError as error:
            assert error.code in ("host_failure", "not_found", "conflict")
    node.faults.fail.clear()
    await ann.destroy("web")
    assert node.traces() == set()
    assert len(node.free()) == 4


async def test_an_agent_that_is_killed_at_any_step_of_a_create_leaves_nothing_half_done(ann, node):
    for nth in range(1, 8):
        with killed_at_write(nth):
            await asyncio.gather(ann.create(f"web{nth}", user_data=b"x"), return_exceptions=True)
            await node.stop()
        await node.start()
        for vm in node.service.vms.list():
            assert vm.state is VmState.RUNNING
            await ann.destroy(vm.name)
        assert node.traces() == set()
        assert len(node.free()) == 4


async def test_what_cannot_be_tidied_up_does_not_keep_a_node_from_starting(ann, node, monkeypatch):
    async def fail(*_: object) -> None:
        raise HostFailure("the packet filter was told to fail")

    made = [await ann.create(name) for name in ("one", "two")]
    await node.stop()
    monkeypatch.setattr(SimNetwork, "sweep", fail)
    await node.start()
    assert await ann.list() == tuple(made)


async def test_vms_that_cannot_be_plugged_together_are_plugged_one_by_one(ann, node, monkeypatch):
    plug = SimNetwork.plug

    async def fail_together(network: SimNetwork, *ports: object) -> None:
        if len(ports) > 1:
            raise HostFailure("the packet filter was told to fail")
        await plug(network, *ports)

    made = [await ann.create(name) for name in ("one", "two")]
    await node.stop()
    monkeypatch.setattr(SimNetwork, "plug", fail_together)
    await node.start()
    assert node.network.plugged == {link_for(vm.ip) for vm in made}


@pytest.mark.parametrize("away", [False, True], ids=["while it serves", "while it was away"])
async def test_an_exit_that_cannot_be_noted_on_a_full_disk_is_noted_later(
    ann, node, until, monkeypatch, away: bool
):
    monkeypatch.setattr("atoll.hypervisor.vms.exits.NOTE_AGAIN_S", 0.01)
    vm = await ann.create("web")
    failures = 0

    def is_full(path: Path) -> bool:
        nonlocal failures
        full = path.name == "vm.json" and failures < 3
        failures += full
        return full

    if away:
        await node.stop()
    await node.driver.guest_crashes(node.machine(vm))
    with refused_writes(is_full):
        if away:
            await node.start()
        await until(lambda: node.service.vms.show("web").state is VmState.CRASHED)
    assert failures == 3
