"""A container that reboots by itself, as its guest does it, with nobody there to help."""

from __future__ import annotations

from typing import Any


async def test_a_guest_reboots_as_often_as_it_likes_also_while_there_is_no_agent(
    lxc_lab: Any, exits: Any
) -> None:
    driver, machine = lxc_lab.driver(exits), lxc_lab.machine()
    await driver.start(machine)
    await lxc_lab.booted(machine)
    before = await driver.inspect([machine])
    for count in (2, 3, 4):
        await lxc_lab.tell(driver, machine, b"reboot\n")
        await lxc_lab.until_boots(machine, count)
    await driver.close()
    await lxc_lab.tell(None, machine, b"reboot\n")
    await lxc_lab.until_boots(machine, 5)

    successor = lxc_lab.driver(exits)
    assert await successor.inspect([machine]) == before
    assert f"link {machine.nic.link}" in lxc_lab.traces(machine)
    assert exits.all == []
