"""A machine that is paused for want of room on the node's disk: it says so, and goes on when there is room."""

from __future__ import annotations

import pytest

from atoll.api import observing
from atoll.api.observing import AuditQuery
from atoll.hypervisor.vms.stalls import PAUSED_METHOD, REASON, RESUMED_METHOD
from atoll.model.vm import VmState


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOOK_EVERY_S", "LONGEST_LOOK_S", "SETTLE_S"):
        monkeypatch.setattr(f"atoll.hypervisor.vms.stalls.{name}", 0.005)


async def stall(node, vm, until) -> None:
    node.driver.guest_runs_out_of_room(node.machines.machine(vm))
    await until(lambda: node.service.vms.show(vm.name).reason == REASON)


async def methods(oper) -> list[str]:
    """What the agent noted of its own accord."""
    noted = []
    for method in (PAUSED_METHOD, RESUMED_METHOD):
        entries = [entry async for entry in oper.stream(observing.AUDIT, query=AuditQuery(method=method))]
        noted += [entry.method for entry in entries[:-1]]
    return noted


async def test_it_says_so_as_long_as_there_is_no_room_and_then_goes_on(ann, oper, node, until):
    vm = await ann.create("web")
    await stall(node, vm, until)
    assert (await ann.show("web")).state is VmState.RUNNING
    tried: list[str] = []
    node.faults.hook = lambda step, ip: tried.append(step)
    await until(lambda: tried.count("resume") > 2)
    assert (await ann.show("web")).reason == REASON
    assert await methods(oper) == [PAUSED_METHOD]
    node.faults.full.clear()
    await until(lambda: not node.service.vms.show("web").reason)
    assert await methods(oper) == [PAUSED_METHOD, RESUMED_METHOD]


async def test_a_machine_that_cannot_be_let_go_on_is_tried_again(ann, node, until):
    vm = await ann.create("web")
    await stall(node, vm, until)
    node.faults.fail.add("resume")
    node.faults.full.clear()
    tried: list[str] = []
    node.faults.hook = lambda step, ip: tried.append(step)
    await until(lambda: tried.count("resume") > 2)
    assert (await ann.show("web")).reason == REASON
    node.faults.fail.clear()
    await until(lambda: not node.service.vms.show("web").reason)


async def test_the_next_agent_asks_the_machine(ann, node, until):
    vm = await ann.create("web")
    await stall(node, vm, until)
    await node.restart()
    await until(lambda: node.service.vms.show("web").reason == REASON)
    node.faults.full.clear()
    await until(lambda: not node.service.vms.show("web").reason)
    await node.restart()
    assert (await ann.show("web")).reason == ""


async def test_one_that_is_paused_can_be_stopped_started_and_destroyed(ann, node, until):
    vm = await ann.create("web")
    await stall(node, vm, until)
    await ann.halt("web")
    stopped = await ann.show("web")
    assert (stopped.state, stopped.reason) == (VmState.STOPPED, "")
    await ann.begin("web")
    assert (await ann.show("web")).reason == ""
    await stall(node, vm, until)
    await ann.destroy("web")
    assert node.traces() == set()
