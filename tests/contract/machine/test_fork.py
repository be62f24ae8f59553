"""The contract of those machine drivers that can copy machines from a template."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from atoll.drivers.machine.base import BadTemplate, CanFork, CanRehearse, Exit, Machine
from atoll.errors import AtollError, Conflict, HostFailure
from atoll.system import files


@pytest.fixture(params=["sim", "qemu"])
async def lab(
    request: pytest.FixtureRequest, tmp_path: Path, make_lab: Any, opened: Any
) -> AsyncIterator[Any]:
    async with opened(make_lab(request.param, request, tmp_path)) as lab:
        yield lab


def template_of(lab: Any) -> tuple[Machine, Path]:
    """The machine that becomes a template, in no bridge and nobody yet, and where that is kept."""
    machine = lab.machine(last=200)
    directory = lab.directory / "templates" / "t1"
    files.make_dirs(directory)
    return replace(machine, name="template", nic=replace(machine.nic, bridge="")), directory


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Templates that were made already, by kind."""
    return tmp_path_factory.mktemp("templates")


@pytest.fixture
async def forking(lab: Any, exits: Any, made: Path) -> tuple[Any, Path]:
    """A driver, and a template that is ready for forks."""
    driver = lab.driver(exits)
    assert isinstance(driver, CanFork)
    machine, directory = template_of(lab)
    known = made / driver.name
    if known.exists():
        shutil.copytree(known, directory, dirs_exist_ok=True)
        await driver.load_template(directory)
    else:
        await driver.make_template(machine, directory)
        shutil.copytree(directory, known)
    return driver, directory


async def test_forks_of_one_template_run_and_each_is_told_who_it_is(
    lab: Any, forking: tuple[Any, Path], exits: Any, new_exits: Any
) -> None:
    driver, directory = forking
    one, other = lab.machine(last=5), replace(lab.machine(last=6), name="other")

    for machine in (one, other):
        await driver.fork(machine, directory)
        await driver.identify(machine)

    for machine in (one, other):
        await lab.until_told(machine, "identity")
    seen = await driver.inspect([one, other])
    assert [seen[machine.ip].exit for machine in (one, other)] == [None, None]
    # As any other machine, they are found by the next agent, and do what they are told.
    await driver.close()
    successor = lab.driver(new_exits)
    assert await successor.inspect([one, other]) == seen
    await successor.power_down(one)
    assert await new_exits.first() == (one.ip, Exit.POWERED_OFF)
    await successor.kill(other)
    assert exits.all == []


async def test_what_became_a_template_is_gone_and_leaves_only_that(lab: Any, exits: Any) -> None:
    driver = lab.driver(exits)
    machine, directory = template_of(lab)

    await driver.make_template(machine, directory)

    assert await driver.inspect([machine]) == {}
    assert lab.traces(machine) == set()
    assert any(directory.iterdir())
    assert exits.all == []


async def test_the_next_agent_forks_a_template_once_it_has_loaded_it(
    lab: Any, forking: tuple[Any, Path], exits: Any
) -> None:
    driver, directory = forking
    await driver.close()
    successor, machine = lab.driver(exits), lab.machine()

    with pytest.raises(Conflict, match="not ready"):
        await successor.fork(machine, directory)
    await successor.load_template(directory)
    await successor.load_template(directory)
    await successor.fork(machine, directory)
    await successor.identify(machine)

    await lab.until_told(machine, "identity")
    successor.forget_template(directory)
    successor.forget_template(directory)
    assert (await successor.inspect([machine]))[machine.ip].exit is None
    with pytest.raises(Conflict, match="not ready"):
        await successor.fork(lab.machine(last=6), directory)


async def test_a_fork_that_is_reset_boots_and_runs_on_in_the_same_machine(
    lab: Any, forking: tuple[Any, Path], exits: Any
) -> None:
    driver, directory = forking
    machine = lab.machine()
    await driver.fork(machine, directory)
    await driver.identify(machine)
    await lab.until_boots(machine, 1)
    before = await driver.inspect([machine])

    await driver.reset(machine)

    await lab.until_boots(machine, 2)
    assert await driver.inspect([machine]) == before
    assert exits.all == []


async def test_a_rehearsal_is_forgotten_and_the_identity_comes_after_it(
    lab: Any, forking: tuple[Any, Path]
) -> None:
    driver, directory = forking
    assert isinstance(driver, CanRehearse)
    machine = lab.machine()
    await driver.fork(machine, directory)

    await driver.rehearse(replace(machine, name="nobody"))
    await lab.until_told(replace(machine, name="nobody"), "rehearse")
    await driver.park(machine)
    await driver.identify(machine)

    await lab.until_told(machine, "identity")


async def test_a_machine_that_was_not_forked_takes_no_identity(lab: Any, exits: Any) -> None:
    driver, machine = lab.driver(exits), lab.machine()
    await driver.start(machine)

    with pytest.raises(HostFailure, match="takes no identity"):
        await driver.identify(machine)

    assert (await driver.inspect([machine]))[machine.ip].exit is None


async def test_another_size_is_another_basis(lab: Any, exits: Any) -> None:
    driver, machine = lab.driver(exits), lab.machine()
    basis = driver.template_basis(machine)

    assert driver.template_basis(machine) == basis
    for other in (replace(machine, memory_mib=2 * machine.memory_mib), replace(machine, vcpus=2)):
        assert driver.template_basis(other) != basis


async def test_a_template_that_cannot_be_made_leaves_nothing(lab: Any, exits: Any) -> None:
    machine, directory = template_of(lab)
    for driver, broken in lab.failing_templates(exits, machine):
        with pytest.raises(AtollError):
            await driver.make_template(broken, directory)

        assert lab.traces(machine) == set()
        assert list(directory.iterdir()) == []
        with pytest.raises(Conflict, match="not ready"):
            await driver.fork(lab.machine(), directory)
    assert exits.all == []


async def test_a_fork_of_a_bad_template_says_so_and_leaves_nothing(
    lab: Any, forking: tuple[Any, Path], exits: Any
) -> None:
    driver, directory = forking
    lab.break_template(driver, directory)
    machine = lab.machine()

    with pytest.raises(BadTemplate) as failure:
        await driver.fork(machine, directory)

    assert len(failure.value.brief) > 20
    assert lab.traces(machine) == set()
    assert exits.all == []


async def test_a_fork_that_lacks_its_place_is_not_the_templates_fault(
    lab: Any, forking: tuple[Any, Path], exits: Any
) -> None:
    driver, directory = forking
    if driver.name == "sim":
        driver.faults.fail = {"fork"}
    machine = lab.machine()

    with pytest.raises(AtollError) as failure:
        await driver.fork(replace(machine, nic=replace(machine.nic, bridge="xdrvnone")), directory)

    assert not isinstance(failure.value, BadTemplate)
    assert exits.all == []
