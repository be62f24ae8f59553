"""A link that somebody removes under a machine, on every kind of them."""

from __future__ import annotations

from typing import Any

from atoll.system.links import Links


async def test_a_link_that_was_removed_is_told_until_the_machine_is_started_anew(
    lab: Any, exits: Any
) -> None:
    driver, machine = lab.driver(exits), lab.machine()
    await driver.start(machine)

    if driver.name == "sim":
        driver.faults.lost.add(machine.ip)
    else:
        with Links(lab.namespace) as links:
            links.delete(machine.nic.link)

    seen = (await driver.inspect([machine]))[machine.ip]
    assert (seen.exit, seen.lost) == (None, (machine.nic.link,))
    await driver.kill(machine)
    await driver.start(machine)
    assert (await driver.inspect([machine]))[machine.ip].lost == ()
    await driver.kill(machine)
    assert lab.traces(machine) == lab.kept
    assert exits.all == []
