"""The contract of kinds that take disks: at the start, and while a machine runs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from atoll.drivers.machine.base import CanGrowDisks, CanHotplug, Disk
from atoll.errors import Conflict, HostFailure
from atoll.model.vm import MachineType
from atoll.model.volume import DiskInterface
from atoll.system import disks


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
        assert await driver.can_attach(machine, disk)
        await driver.attach(machine, disk)
        await driver.attach(machine, disk)
        await driver.detach(machine, disk.name)


@pytest.mark.parametrize("disk_format", ["raw", "qcow2"])
async def test_a_disk_that_a_machine_has_grows_and_its_guest_sees_it(
    lab: Any, exits: Any, tmp_path: Path, disk_format: str
) -> None:
    driver, path = lab.driver(exits), tmp_path / "data"
    path.touch()
    await disks.set_size(path, 1) if disk_format == "raw" else await disks.make_qcow2(path, 1)
    disk = Disk("data", 1, disk_format, path)
    machine = structs.replace(lab.machine(), disks=(disk,))
    await driver.start(machine)
    await lab.booted(machine)
    assert isinstance(driver, CanGrowDisks)
    assert driver.grows_while_used(disk)
    larger = structs.replace(disk, size_mib=96)
    for _ in range(2):
        await driver.grow_disk(machine, larger)
    await lab.sees_disk(driver, machine, "vd", 96)
    assert not driver.grows_while_used(structs.replace(disk, interface=DiskInterface.IDE))


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
    assert not await driver.can_attach(machine, Disk("more", 1))
    assert not await driver.can_detach(machine, disk.name)


SEEN_AS = {DiskInterface.VIRTIO: "vd", DiskInterface.NVME: "nvme", DiskInterface.IDE: "sd"}


async def test_a_guest_finds_each_disk_at_the_interface_that_was_asked_for(lab: Any, exits: Any) -> None:
    driver = lab.driver(exits)
    several = tuple(
        Disk(f"disk{number}", 2 + number, interface=interface)
        for number, interface in enumerate((*SEEN_AS, DiskInterface.IDE, DiskInterface.IDE))
    )
    machine = structs.replace(lab.machine(), disks=several)
    await driver.start(machine)
    await lab.booted(machine)
    for disk in several:
        await lab.sees_disk(driver, machine, SEEN_AS[disk.interface], disk.size_mib)


async def test_an_nvme_disk_comes_and_goes_while_a_machine_runs(lab: Any, exits: Any, disk: Disk) -> None:
    driver, machine = lab.driver(exits), lab.machine()
    nvme = structs.replace(disk, interface=DiskInterface.NVME)
    await driver.start(machine)
    await lab.booted(machine)
    assert await driver.can_attach(machine, nvme)
    await driver.attach(machine, nvme)
    await lab.sees_disk(driver, machine, "nvme", nvme.size_mib)
    assert await driver.can_detach(machine, nvme.name)
    await driver.detach(machine, nvme.name)


async def test_an_ide_disk_comes_and_goes_at_a_start_only(lab: Any, exits: Any, disk: Disk) -> None:
    driver = lab.driver(exits)
    ide = structs.replace(disk, interface=DiskInterface.IDE)
    machine = structs.replace(lab.machine(), disks=(ide,))
    await driver.start(machine)
    assert not await driver.can_detach(machine, ide.name)
    assert not await driver.can_attach(machine, structs.replace(ide, name="more"))
