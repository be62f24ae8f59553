from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest
from msgspec import structs

from atoll.api.hypervisor import Wait
from atoll.errors import Conflict, NotFound, TimedOut
from atoll.hypervisor.vms import follow
from atoll.hypervisor.vms.follow import Follower
from atoll.hypervisor.vms.readiness import Board
from atoll.model.vm import VM, VmState
from samples import a_vm

IP = "10.1.0.5"
RUNNING = a_vm()


class Node:
    """One VM, a clock that stands still unless it is pushed, and the ports that answer."""

    def __init__(self) -> None:
        self.now = 0.0
        self.vm: VM | None = RUNNING
        self.open_ports: set[int] = set()
        self.tried: list[int] = []
        self.board = Board(lambda: self.now)
        self.board.begin(IP, 0.0)
        self.follower = Follower(self.board, self.current, lambda: self.now, self.answers)

    def current(self, vm: VM) -> VM:
        if self.vm is None:
            raise NotFound("gone")
        return self.vm

    async def answers(self, vm: VM, port: int) -> bool:
        self.tried.append(port)
        return port in self.open_ports

    async def follow(
        self, wait_for: str | None, timeout_s: float = 60, told: tuple[str, ...] = ()
    ) -> list[str]:
        async with aclosing(self.follower.follow(RUNNING, Wait(wait_for, timeout_s), told)) as stages:
            return [progress.stage async for progress in stages]

    async def following(self, wait_for: str | None) -> asyncio.Task[list[str]]:
        task = asyncio.create_task(self.follow(wait_for))
        for _ in range(5):
            await asyncio.sleep(0)
        return task


@pytest.fixture
def node() -> Node:
    return Node()


async def test_without_a_stage_to_wait_for_what_was_reached_is_told(node: Node):
    node.board.reach(IP, "started")
    assert await node.follow(None) == ["started"]


async def test_stages_are_told_in_their_order_up_to_the_one_waited_for(node: Node):
    task = await node.following("metadata")
    for stage in ("started", "dhcp", "metadata", "port:80"):
        node.now += 0.1
        node.board.reach(IP, stage)
        await asyncio.sleep(0)
    told = await task
    assert told[:3] == ["started", "dhcp", "metadata"]


async def test_stages_that_the_caller_told_already_are_left_out(node: Node):
    node.board.reach(IP, "address")
    node.board.reach(IP, "started")
    assert await node.follow("started", told=("address",)) == ["started"]


async def test_a_stage_that_does_not_come_in_time_says_how_far_it_came(node: Node):
    node.board.reach(IP, "dhcp")
    task = await node.following("metadata")
    node.now += 61
    node.board.wake(IP)
    with pytest.raises(TimedOut, match="did not reach metadata in 60 s; it came as far as dhcp") as late:
        await task
    assert late.value.details["stages"] == {"dhcp": 0.0}


async def test_a_guest_that_goes_down_is_not_waited_for(node: Node):
    task = await node.following("dhcp")
    node.vm = structs.replace(RUNNING, state=VmState.CRASHED, reason="the machine ended unexpectedly")
    node.board.wake(IP)
    with pytest.raises(Conflict, match="web is crashed: the machine ended unexpectedly"):
        await task


async def test_a_vm_that_is_destroyed_is_not_waited_for(node: Node):
    task = await node.following("dhcp")
    node.vm = None
    node.board.forget(IP)
    with pytest.raises(NotFound):
        await task


async def test_a_port_is_tried_once_the_guest_has_its_lease(node: Node):
    task = await node.following("port:80")
    assert node.tried == []
    node.board.reach(IP, "dhcp")
    await asyncio.sleep(0.01)
    assert set(node.tried) == {80}
    node.open_ports.add(80)
    assert await asyncio.wait_for(task, 1) == ["dhcp", "port:80"]


async def test_a_guest_that_never_asks_for_a_lease_is_tried_all_the_same(
    node: Node, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(follow, "PATIENCE_S", 0.001)
    node.open_ports.add(22)
    assert await asyncio.wait_for(node.follow("port:22"), 1) == ["port:22"]


async def test_nobody_tries_a_port_after_the_follower_has_gone(node: Node):
    node.board.reach(IP, "dhcp")
    task = await node.following("port:80")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    tried = len(node.tried)
    await asyncio.sleep(0.02)
    assert len(node.tried) <= tried + 1
