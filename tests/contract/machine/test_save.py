"""The contract of kinds that can keep the memory of a machine on disk."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from atoll.drivers.machine.base import CanSave, Disk, Machine
from atoll.errors import Conflict
from atoll.model.vm import MachineType


@pytest.fixture(params=["sim", "qemu"])
async def lab(
    request: pytest.FixtureRequest, tmp_path: Path, make_lab: Any, opened: Any
) -> AsyncIterator[Any]:
    async with opened(make_lab(request.param, request, tmp_path)) as lab:
        yield lab


def a_disk(directory: Path, name: str) -> Disk:
    (directory / name).write_bytes(bytes(1 << 20))
    return Disk(name, 1, path=directory / name)


def boots(machine: Machine) -> int:
    """How often its guest has come up."""
    said = (machine.directory / "console.log").read_bytes()
    return said.count(b"guest ready") + said.count(b"simulated guest")


async def hears(driver: Any, machine: Machine, words: bytes) -> None:
    console = await driver.console(machine)
    await console.write(words + b"\n")
    heard, until = b"", time.monotonic() + 20
    while words not in heard and time.monotonic() < until:
        heard += await console.read()
    await console.close()
    assert words in heard


@pytest.mark.parametrize("board", [MachineType.Q35, MachineType.MICROVM])
async def test_a_machine_goes_on_from_its_memory_under_the_next_agent(
    lab: Any, exits: Any, new_exits: Any, tmp_path: Path, board: MachineType
) -> None:
    first = lab.driver(exits)
    assert isinstance(first, CanSave)
    assert "suspend-to-disk" in (await first.describe()).capabilities
    one, late = a_disk(tmp_path, "one"), a_disk(tmp_path, "late")
    machine = structs.replace(lab.machine(), disks=(one,), machine_type=board)
    await first.start(machine)
    await lab.booted(machine)
    if board is MachineType.Q35:
        await first.attach(machine, late)
        machine = structs.replace(machine, disks=(one, late))
    first.check_savable(machine)
    await first.freeze(machine)
    await first.save(machine)
    await first.kill(machine)
    assert await first.inspect([machine]) == {}
    before = boots(machine)
    await first.close()

    second = lab.driver(new_exits)
    await second.restore(machine)
    seen = (await second.inspect([machine]))[machine.ip]
    assert (seen.frozen, seen.exit) == (True, None)
    await second.thaw(machine)
    await second.forget_saved(machine)
    await second.forget_saved(machine)
    await hears(second, machine, b"good morning")
    # What is simulated says so again when it is started.
    assert boots(machine) == before + (lab.make_driver(exits).name == "sim")
    assert exits.all == new_exits.all == []


async def test_a_machine_whose_save_was_enough_of_it_goes_on_where_it_was(lab: Any, exits: Any) -> None:
    driver, machine = lab.driver(exits), lab.machine()
    await driver.start(machine)
    await lab.booted(machine)
    await driver.freeze(machine)
    await driver.save(machine)
    await driver.forget_saved(machine)
    await driver.thaw(machine)
    await hears(driver, machine, b"here again")
    with pytest.raises(Conflict):
        await driver.restore(structs.replace(machine, name="other"))
