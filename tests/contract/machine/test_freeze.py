"""The contract of kinds whose machines can be held still."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from atoll.drivers.machine.base import CanFreeze
from atoll.errors import Conflict
from atoll.system import cgroups


async def cpu_s(machine: Any) -> float:
    """What it uses in half a second; one that is simulated uses none in any case."""
    before = cgroups.usage(machine.cgroup).cpu_s
    await asyncio.sleep(0.5)
    return cgroups.usage(machine.cgroup).cpu_s - before


async def test_a_machine_that_is_held_says_and_uses_nothing_until_it_goes_on(lab: Any, exits: Any) -> None:
    driver, machine = lab.driver(exits), lab.machine()
    await driver.start(machine)
    await lab.booted(machine)
    assert isinstance(driver, CanFreeze)
    assert "suspend" in (await driver.describe()).capabilities
    assert not (await driver.inspect([machine]))[machine.ip].frozen
    for _ in range(2):
        await driver.freeze(machine)
    seen = (await driver.inspect([machine]))[machine.ip]
    assert (seen.frozen, seen.exit) == (True, None)
    assert await cpu_s(machine) < 0.05
    for _ in range(2):
        await driver.thaw(machine)
    assert not (await driver.inspect([machine]))[machine.ip].frozen
    console = await driver.console(machine)
    await console.write(b"good morning\n")
    heard = b""
    until = time.monotonic() + 20
    while b"good morning" not in heard and time.monotonic() < until:
        heard += await console.read()
    assert b"good morning" in heard
    assert exits.all == []


async def test_the_next_agent_finds_a_machine_held_and_can_end_it(
    lab: Any, exits: Any, new_exits: Any
) -> None:
    first, machine = lab.driver(exits), lab.machine()
    await first.start(machine)
    await lab.booted(machine)
    await first.freeze(machine)
    await first.close()
    second = lab.driver(new_exits)
    seen = (await second.inspect([machine]))[machine.ip]
    assert (seen.frozen, seen.exit) == (True, None)
    await second.kill(machine)
    assert await second.inspect([machine]) == {}
    assert new_exits.all == []


async def test_what_does_not_run_is_not_held(lab: Any, exits: Any) -> None:
    driver, machine = lab.driver(exits), lab.machine()
    for act in (driver.freeze, driver.thaw):
        with pytest.raises(Conflict, match="is not running"):
            await act(machine)
