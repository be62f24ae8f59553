from __future__ import annotations

import asyncio

from atoll.hypervisor.vms.readiness import Board

IP = "10.1.0.5"


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def started(clock: Clock | None = None) -> tuple[Board, Clock]:
    clock = clock or Clock()
    board = Board(clock)
    board.begin(IP, clock.now)
    return board, clock


async def waiting(board: Board) -> asyncio.Task[None]:
    task = asyncio.create_task(board.changed(IP, 60))
    await asyncio.sleep(0)
    assert not task.done()
    return task


def test_a_stage_keeps_the_time_when_it_was_first_reached():
    board, clock = started()
    clock.now += 0.25
    assert board.reach(IP, "dhcp")
    clock.now += 1
    assert not board.reach(IP, "dhcp")
    assert board.stages(IP) == {"dhcp": 0.25}


def test_a_vm_that_nobody_began_has_no_stages():
    board, _ = started()
    assert not board.reach("10.1.0.9", "dhcp")
    assert board.stages("10.1.0.9") == {}


def test_what_is_handed_out_is_not_the_board_itself():
    board, _ = started()
    board.stages(IP)["dhcp"] = 1.0
    assert board.stages(IP) == {}


def test_a_new_start_begins_anew():
    board, clock = started()
    board.reach(IP, "dhcp")
    clock.now += 100
    board.begin(IP, clock.now)
    clock.now += 0.5
    assert board.reach(IP, "dhcp")
    assert board.stages(IP) == {"dhcp": 0.5}


def test_stages_that_an_earlier_agent_noted_stay_and_later_ones_come_after_them():
    board, clock = started()
    board.resume(IP, {"started": 0.1, "dhcp": 0.4})
    assert not board.reach(IP, "dhcp")
    clock.now += 1
    assert board.reach(IP, "metadata")
    assert board.stages(IP) == {"started": 0.1, "dhcp": 0.4, "metadata": 1.4}


async def test_a_stage_wakes_those_who_wait():
    board, _ = started()
    task = await waiting(board)
    board.reach(IP, "dhcp")
    await asyncio.wait_for(task, 1)


async def test_a_new_start_and_an_end_wake_those_who_wait():
    board, clock = started()
    task = await waiting(board)
    board.begin(IP, clock.now)
    await asyncio.wait_for(task, 1)
    task = await waiting(board)
    board.forget(IP)
    await asyncio.wait_for(task, 1)


async def test_a_wait_ends_when_its_time_is_up():
    board, _ = started()
    await board.changed(IP, 0.01)
    assert board.stages(IP) == {}


async def test_waiting_for_a_vm_that_nobody_began_does_wait():
    board = Board(Clock())
    await waiting(board)
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
