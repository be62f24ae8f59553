"""The contract of machine drivers, on every member of the family."""

from __future__ import annotations

from typing import Any

import pytest

from atoll.drivers.machine.base import Exit, Seen, capabilities_of
from atoll.errors import AtollError, Conflict


async def test_a_started_machine_is_seen_running(lab: Any, exits: Any) -> None:
    driver, machine, other = lab.driver(exits), lab.machine(), lab.machine(last=6)
    await driver.start(machine)

    seen = await driver.inspect([machine, other])

    assert seen == {machine.ip: Seen(machine.ip, seen[machine.ip].pid)}


async def test_starting_a_running_machine_changes_nothing(lab: Any, exits: Any) -> None:
    driver, machine = lab.driver(exits), lab.machine()
    await driver.start(machine)
    before = await driver.inspect([machine]), lab.traces(machine)

    await driver.start(machine)

    assert (await driver.inspect([machine]), lab.traces(machine)) == before


async def test_a_killed_machine_is_gone_and_can_be_killed_again(lab: Any, exits: Any) -> None:
    driver, machine = lab.driver(exits), lab.machine()
    await driver.start(machine)

    await driver.kill(machine)
    await driver.kill(machine)

    assert await driver.inspect([machine]) == {}
    assert lab.traces(machine) == lab.kept
    assert exits.all == []


async def test_a_machine_that_never_ran_can_be_killed(lab: Any, exits: Any) -> None:
    driver, machine = lab.driver(exits), lab.machine()

    await driver.kill(machine)

    assert await driver.inspect([machine]) == {}


async def test_a_guest_that_is_asked_to_powers_down_and_can_be_started_again(lab: Any, exits: Any) -> None:
    driver, machine = lab.driver(exits), lab.machine()
    await driver.start(machine)
    await lab.booted(machine)

    await driver.power_down(machine)

    assert await exits.first() == (machine.ip, Exit.POWERED_OFF)
    assert (await driver.inspect([machine]))[machine.ip].exit is Exit.POWERED_OFF
    await driver.start(machine)
    assert (await driver.inspect([machine]))[machine.ip].exit is None
    await driver.kill(machine)
    assert exits.all == [(machine.ip, Exit.POWERED_OFF)]


async def test_a_deaf_guest_runs_on_until_it_is_killed(lab: Any, exits: Any) -> None:
    driver, machine = lab.driver(exits), lab.machine()
    await driver.start(machine)
    await lab.booted(machine)
    await lab.make_deaf(driver, machine)

    await driver.power_down(machine)

    assert (await driver.inspect([machine]))[machine.ip].exit is None
    await driver.kill(machine)
    assert exits.all == []


async def test_a_panic_is_reported_once_as_a_crash(lab: Any, exits: Any) -> None:
    driver, machine = lab.driver(exits), lab.machine()
    await driver.start(machine)
    await lab.booted(machine)

    await lab.panic(driver, machine)

    assert await exits.first() == (machine.ip, Exit.CRASHED)
    assert (await driver.inspect([machine]))[machine.ip].exit is Exit.CRASHED
    await driver.kill(machine)
    assert exits.all == [(machine.ip, Exit.CRASHED)]


async def test_the_death_of_what_runs_it_is_reported_once_as_a_crash(lab: Any, exits: Any) -> None:
    driver, machine = lab.driver(exits), lab.machine()
    await driver.start(machine)

    await lab.end_process(driver, machine)

    assert await exits.first() == (machine.ip, Exit.CRASHED)
    await driver.start(machine)
    assert (await driver.inspect([machine]))[machine.ip].exit is None
    assert exits.all == [(machine.ip, Exit.CRASHED)]


async def test_the_next_agent_finds_a_running_machine_and_its_end(
    lab: Any, exits: Any, new_exits: Any
) -> None:
    driver, machine = lab.driver(exits), lab.machine()
    await driver.start(machine)
    await lab.booted(machine)
    before = await driver.inspect([machine])
    await driver.close()

    successor = lab.driver(new_exits)
    assert await successor.inspect([machine]) == before

    await successor.power_down(machine)
    assert await new_exits.first() == (machine.ip, Exit.POWERED_OFF)
    assert exits.all == []


async def test_the_next_agent_can_kill_what_it_has_not_looked_at(lab: Any, exits: Any) -> None:
    driver, machine = lab.driver(exits), lab.machine()
    await driver.start(machine)
    await driver.close()

    await lab.driver(exits).kill(machine)

    assert lab.traces(machine) == lab.kept
    assert exits.all == []


@pytest.mark.parametrize(
    ("doing", "reason"), [("power_off_inside", Exit.POWERED_OFF), ("panic", Exit.CRASHED)]
)
async def test_an_end_that_nobody_saw_is_found_and_not_reported_as_well(
    lab: Any, exits: Any, new_exits: Any, doing: str, reason: Exit
) -> None:
    driver, machine = lab.driver(exits), lab.machine()
    await driver.start(machine)
    await lab.booted(machine)
    await driver.close()
    await getattr(lab, doing)(None, machine)

    successor = lab.driver(new_exits)
    found = await successor.inspect([machine])

    assert found[machine.ip].exit is reason
    assert await successor.inspect([machine]) == found
    assert exits.all == new_exits.all == []


async def test_a_death_that_nobody_saw_is_found(lab: Any, exits: Any) -> None:
    driver, machine = lab.driver(exits), lab.machine()
    await driver.start(machine)
    await driver.close()
    await lab.end_process(None, machine)

    found = await lab.driver(exits).inspect([machine])

    assert found[machine.ip].exit is Exit.CRASHED


async def test_a_start_that_fails_says_why_and_leaves_nothing(lab: Any, exits: Any) -> None:
    for driver, machine in lab.failing_starts(exits):
        with pytest.raises(AtollError) as failure:
            await driver.start(machine)

        assert len(failure.value.brief) > 20
        assert lab.traces(machine) == set()
        assert await driver.inspect([machine]) == {}
    assert exits.all == []


async def test_a_reset_guest_comes_up_again_in_the_same_machine(lab: Any, exits: Any) -> None:
    driver, machine = lab.driver(exits), lab.machine()
    await driver.start(machine)
    await lab.booted(machine)

    await driver.reset(machine)

    await lab.until_boots(machine, 2)
    assert (await driver.inspect([machine]))[machine.ip].exit is None
    assert exits.all == []


async def test_the_console_carries_both_ways_and_is_logged(lab: Any, exits: Any) -> None:
    driver, machine = lab.driver(exits), lab.machine()
    assert "console" in capabilities_of(driver)
    await driver.start(machine)
    await lab.booted(machine)

    console = await driver.console(machine)
    await console.write(b"good morning\n")
    heard = b""
    while b"good morning" not in heard:
        heard += await console.read()

    assert b"good morning" in (machine.directory / "console.log").read_bytes()
    with pytest.raises(Conflict):
        await driver.console(machine)
    await console.close()
    again = await driver.console(machine)
    await driver.kill(machine)
    assert await again.read() == b""


async def test_a_console_that_was_left_open_ends_with_its_machine(lab: Any, exits: Any) -> None:
    driver, machine = lab.driver(exits), lab.machine()
    await driver.start(machine)
    left_open = await driver.console(machine)
    await lab.end_process(driver, machine)
    await exits.first()

    await driver.start(machine)
    console = await driver.console(machine)

    while await left_open.read():
        pass
    await left_open.close()
    await console.close()


@pytest.mark.parametrize("command", ["power_down", "reset", "console"])
async def test_what_needs_a_running_machine_is_refused_without_one(
    lab: Any, exits: Any, command: str
) -> None:
    driver, machine = lab.driver(exits), lab.machine()

    with pytest.raises(Conflict, match="not running"):
        await getattr(driver, command)(machine)


async def test_a_driver_describes_itself(lab: Any, exits: Any) -> None:
    driver = lab.driver(exits)

    info = await driver.describe()

    assert info.name == driver.name
    assert info.capabilities == capabilities_of(driver)
