"""Roots of machines that have the host's kernel: kept while they do not run, and gone with their VM."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from atoll.drivers.machine.base import KeepsElsewhere

KEPT_ELSEWHERE = pytest.mark.parametrize("lab", ["docker", "podman"], indirect=True)
"""Those whose roots are an engine's; that of lxc is in its VM's directory."""


@pytest.fixture(params=["lxc", "docker", "podman"])
async def lab(
    request: pytest.FixtureRequest, tmp_path: Path, make_lab: Any, opened: Any
) -> AsyncIterator[Any]:
    async with opened(make_lab(request.param, request, tmp_path)) as lab:
        yield lab


async def with_something_kept(lab: Any, driver: Any, machine: Any) -> None:
    await driver.start(machine)
    await lab.booted(machine)
    await lab.tell(driver, machine, b"keep\n")


async def test_what_a_guest_wrote_is_there_after_it_was_killed_and_started_again(
    lab: Any, exits: Any, new_exits: Any
) -> None:
    driver, machine = lab.driver(exits), lab.machine()
    await with_something_kept(lab, driver, machine)

    await driver.kill(machine)
    await driver.start(machine)

    await lab.until_logged(machine, f"I kept good morning, {machine.name}")
    await driver.close()
    successor = lab.driver(new_exits)
    await successor.kill(machine)
    await successor.start(machine)
    await lab.until_boots(machine, 3)


async def test_it_is_there_also_under_another_name_and_with_other_memory(lab: Any, exits: Any) -> None:
    driver, machine = lab.driver(exits), lab.machine()
    await with_something_kept(lab, driver, machine)
    await driver.kill(machine)

    other = structs.replace(machine, name="other", memory_mib=64, milli_cpus=500)
    for _ in range(3):
        await driver.start(other)
        await driver.kill(other)
    await driver.start(other)

    await lab.until_logged(machine, "I kept good morning, other")
    await driver.kill(other)
    assert {trace for trace in lab.traces(machine) if not trace.startswith("root ")} == lab.kept


async def test_it_is_there_also_at_another_address(lab: Any, exits: Any) -> None:
    driver, machine, place = lab.driver(exits), lab.machine(), lab.machine(last=7)
    await with_something_kept(lab, driver, machine)
    await driver.kill(machine)

    # As a node moves a VM: its directory gets the new name.
    place.directory.rmdir()
    machine.directory.rename(place.directory)
    await driver.start(structs.replace(place, instance_id=machine.instance_id))

    await lab.until_logged(place, f"I kept good morning, {place.name}")
    machine.directory.mkdir()
    assert lab.traces(machine) == set()


@KEPT_ELSEWHERE
async def test_nothing_is_left_of_a_machine_that_is_discarded(lab: Any, exits: Any) -> None:
    driver, machine = lab.driver(exits), lab.machine()
    assert isinstance(driver, KeepsElsewhere)
    await with_something_kept(lab, driver, machine)
    await driver.kill(machine)
    await driver.start(structs.replace(machine, name="other"))

    await driver.discard(machine)
    await driver.discard(machine)

    assert lab.traces(machine) == {"file console.log"}
    assert await driver.inspect([machine]) == {}
    assert exits.all == []


@KEPT_ELSEWHERE
async def test_a_machine_whose_record_is_lost_is_found_by_its_instance(lab: Any, exits: Any) -> None:
    driver, machine = lab.driver(exits), lab.machine()
    assert isinstance(driver, KeepsElsewhere)
    await with_something_kept(lab, driver, machine)
    before = await driver.inspect([machine])
    await driver.close()
    (machine.directory / "docker/record.json").write_bytes(b"{")

    successor = lab.driver(exits)
    assert await successor.inspect([machine]) == before
    await successor.discard(machine)
    assert lab.traces(machine) == {"file console.log"}


@pytest.mark.parametrize("lab", ["lxc"], indirect=True)
async def test_an_image_is_not_held_for_a_container_that_is_no_more(lab: Any, exits: Any) -> None:
    driver, machine = lab.driver(exits), lab.machine()
    await driver.start(machine)
    await driver.kill(machine)
    (users,) = lab.directory.glob("roots/*/users")
    assert os.listdir(users) == [machine.ip], "it is held for one that does not run"

    (machine.directory / "lxc/root.ext4").unlink()  # as by a start that failed
    await driver.discard(machine)
    await driver.discard(machine)

    assert os.listdir(users) == []
