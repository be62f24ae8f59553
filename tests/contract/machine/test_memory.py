"""The contract of kinds whose memory is a limit: more and less of it while a machine runs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from atoll.drivers.machine.base import CanResizeMemory
from atoll.errors import Conflict
from atoll.system import cgroups


@pytest.fixture(params=["lxc", "docker", "podman"])
async def lab(
    request: pytest.FixtureRequest, tmp_path: Path, make_lab: Any, opened: Any
) -> AsyncIterator[Any]:
    async with opened(make_lab(request.param, request, tmp_path)) as lab:
        yield lab


def limit_mib(group: str) -> int:
    files = ("memory.limit_in_bytes", "memory.max")
    (found,) = {
        path.parent / name
        for path in cgroups.join_paths(group)
        for name in files
        if (path.parent / name).exists()
    }
    return int(found.read_text()) >> 20


async def test_a_machine_gets_more_and_less_memory_while_it_runs(lab: Any, exits: Any) -> None:
    driver, machine = lab.driver(exits), lab.machine()
    assert isinstance(driver, CanResizeMemory)
    overhead_mib = (await driver.describe()).overhead_mib
    assert overhead_mib is not None
    await driver.start(machine)
    await lab.booted(machine)
    before = await driver.inspect([machine])

    for memory_mib in (200, 64):
        await driver.resize_memory(structs.replace(machine, memory_mib=memory_mib))
        assert limit_mib(machine.cgroup) == memory_mib + overhead_mib

    assert await driver.inspect([machine]) == before


async def test_a_machine_is_not_held_to_less_than_it_uses(lab: Any, exits: Any) -> None:
    driver, machine = lab.driver(exits), lab.machine()
    await driver.start(machine)
    await lab.booted(machine)
    await lab.use_memory(driver, machine)
    held = limit_mib(machine.cgroup)

    with pytest.raises(Conflict, match=r"it uses \d\d MiB of memory and cannot be held to 16"):
        await driver.resize_memory(structs.replace(machine, memory_mib=16))

    assert limit_mib(machine.cgroup) == held
    assert (await driver.inspect([machine]))[machine.ip].exit is None


async def test_what_does_not_run_is_given_no_memory(lab: Any, exits: Any) -> None:
    driver, machine = lab.driver(exits), lab.machine()
    with pytest.raises(Conflict, match="not running"):
        await driver.resize_memory(machine)
