"""Machines with several interfaces, on every kind of them."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from atoll.errors import AtollError


async def test_each_interface_is_in_its_own_bridge_as_long_as_the_machine_is_there(
    lab: Any, exits: Any, new_exits: Any
) -> None:
    driver, machine = lab.driver(exits), lab.with_another_nic(lab.machine())
    plugged = {nic.link: nic.bridge for nic in machine.nics}
    await driver.start(machine)
    await lab.booted(machine)

    assert lab.bridges(machine) == plugged
    assert lab.macs(machine) == [nic.mac for nic in machine.nics]

    await driver.reset(machine)
    await lab.until_boots(machine, 2)

    assert lab.bridges(machine) == plugged
    await driver.close()
    await lab.driver(new_exits).kill(machine)
    assert lab.bridges(machine) == {}
    assert lab.traces(machine) == lab.kept


async def test_a_start_without_one_of_its_bridges_leaves_nothing(lab: Any, exits: Any) -> None:
    machine = lab.with_another_nic(lab.machine())
    broken = structs.replace(machine.extra_nics[0], bridge="xdrvnone")
    machine = structs.replace(machine, extra_nics=(broken,))
    driver = lab.driver(exits)
    if driver.name == "sim":
        driver.faults.fail.add("started")

    with pytest.raises(AtollError):
        await driver.start(machine)

    assert lab.bridges(machine) == {}
    assert lab.traces(machine) <= lab.kept - {"file console.log"}
    assert await driver.inspect([machine]) == {}
