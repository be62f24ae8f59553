"""The contract of kinds that take disks: at the start, and while a machine runs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from atoll.drivers.machine.base import CanHotplug, Disk
from atoll.errors import Conflict, HostFailure
from atoll.model.vm import MachineType


@pytest.fixture(params=["sim", "qemu"])
async def lab(
    request: pytest.FixtureRequest, tmp_path: Path, make_lab: Any, opened: Any
) -> AsyncIterator[Any]:
    async with opened(make_lab(request.param, request, tmp_path)) as lab:
        yield lab


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    path = tmp_path / "data.raw"
    path.write_bytes(bytes(1 << 20))
    return Disk("data", 1, path=path)


async def test_the_kind_says_that_it_takes_disks(lab: Any, exits: Any) -> None:
    driver = lab.driver(exits)
    assert isinstance(driver, CanHotplug)
    assert "disks" in (await driver.describe()).capabilities


async def test_a_machine_starts_with_its_disks_and_can_be_rid_of_them(
    lab: Any, exits: Any, disk: Disk
) -> None:
    driver = lab.driver(exits)
    machine = structs.replace(lab.machine(), disks=(disk, Disk("scratch", 1)))
    await driver.start(machine)
    await lab.booted(machine)
    for name in ("data", "scratch"):
        assert await driver.can_detach(machine, name)
        await driver.detach(machine, name)
        await driver.detach(machine, name)


async def test_a_disk_comes_and_goes_and_comes_again_while_a_machine_runs(
    lab: Any, exits: Any, disk: Disk
) -> None:
    driver, machine = lab.driver(exits), lab.machine()
    await driver.start(machine)
    await lab.booted(machine)
    for _ in range(2):
        assert await driver.can_attach(machine)
        await driver.attach(machine, disk)
        await driver.attach(machine, disk)
        await driver.detach(machine, disk.name)


async def test_the_next_agent_knows_the_disks_of_a_machine(
    lab: Any, exits: Any, new_exits: Any, disk: Disk
) -> None:
    first, machine = lab.driver(exits), lab.machine()
    await first.start(machine)
    await lab.booted(machine)
    await first.attach(machine, disk)
    await first.close()
    second = lab.driver(new_exits)
    await second.inspect([machine])
    await second.attach(machine, disk)
    await second.detach(machine, disk.name)


async def test_a_machine_without_a_disk_that_is_gone_does_not_start(
    lab: Any, exits: Any, tmp_path: Path
) -> None:
    driver, machine = lab.driver(exits), lab.machine()
    lost = structs.replace(machine, disks=(Disk("lost", 1, path=tmp_path / "lost.raw"),))
    with pytest.raises(HostFailure, match=r"lost"):
        await driver.start(lost)
    assert await driver.inspect([machine]) == {}


async def test_a_disk_that_is_gone_is_not_attached(lab: Any, exits: Any, tmp_path: Path) -> None:
    driver, machine = lab.driver(exits), lab.machine()
    await driver.start(machine)
    with pytest.raises(HostFailure, match="lost"):
        await driver.attach(machine, Disk("lost", 1, path=tmp_path / "lost.raw"))


async def test_what_does_not_run_is_given_no_disk(lab: Any, exits: Any, disk: Disk) -> None:
    driver, machine = lab.driver(exits), lab.machine()
    with pytest.raises(Conflict, match="is not running"):
        await driver.attach(machine, disk)
    with pytest.raises(Conflict, match="is not running"):
        await driver.detach(machine, disk.name)


async def test_a_microvm_keeps_the_disks_that_it_started_with(lab: Any, exits: Any, disk: Disk) -> None:
    driver = lab.driver(exits)
    machine = structs.replace(lab.machine(), machine_type=MachineType.MICROVM, disks=(disk,))
    await driver.start(machine)
    assert not await driver.can_attach(machine)
    assert not await driver.can_detach(machine, disk.name)
