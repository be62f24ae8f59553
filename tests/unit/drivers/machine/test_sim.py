from __future__ import annotations

from pathlib import Path

import pytest

from atoll.drivers.machine.base import Disk, Exit, Machine, Nic
from atoll.drivers.machine.sim import STEPS, SimDriver, SimFaults
from atoll.errors import HostFailure
from atoll.model.command import Command
from samples import a_machine


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return a_machine(
        nic=Nic(link="vm5", bridge="br0", mac="02:00:0a:01:00:05", mtu=1500),
        directory=tmp_path,
        cgroup="none",
        screen=True,
    )


def ignore(ip: str, reason: Exit) -> None:
    pass


async def prepare(step: str, driver: SimDriver, machine: Machine) -> None:
    """Bring a machine to where the step can be taken."""
    if step in ("load_template", "fork", "identify", "rehearse", "park"):
        await driver.make_template(machine, machine.directory)
    if step in ("identify", "rehearse", "park"):
        await driver.fork(machine, machine.directory)
    if step == "park":
        await driver.rehearse(machine)
    if step not in ("start", "started", "make_template", "load_template", "fork"):
        await driver.start(machine)
    if step in ("save", "restore"):
        await driver.freeze(machine)
    if step == "restore":
        await driver.save(machine)


async def take(step: str, driver: SimDriver, machine: Machine) -> None:
    method = {"started": "start"}.get(step, step)
    if step == "load_template":
        await driver.load_template(machine.directory)
        return
    more: dict[str, tuple[object, ...]] = {
        "attach": (Disk("data", 1),),
        "exec": (Command(("/bin/busybox", "true")),),
        "detach": ("data",),
        "grow_disk": (Disk("data", 2),),
        "make_template": (machine.directory,),
        "fork": (machine.directory,),
    }
    await getattr(driver, method)([machine] if step == "inspect" else machine, *more.get(step, ()))


@pytest.mark.parametrize("step", STEPS)
async def test_every_step_can_be_told_to_fail_and_works_afterwards(step: str, machine: Machine) -> None:
    driver = SimDriver(ignore)
    await prepare(step, driver, machine)
    driver.faults = SimFaults(fail=[step])

    with pytest.raises(HostFailure, match=step):
        await take(step, driver, machine)

    driver.faults = SimFaults()
    await take(step, driver, machine)


async def test_a_hook_sees_every_step_with_its_machine(machine: Machine) -> None:
    seen: list[tuple[str, str]] = []
    driver = SimDriver(ignore, SimFaults(hook=lambda step, ip: seen.append((step, ip))))

    await driver.start(machine)
    await driver.reset(machine)
    await driver.kill(machine)

    assert seen == [(step, machine.ip) for step in ("start", "started", "reset", "kill")]


def test_a_fault_in_an_unknown_step_is_refused() -> None:
    with pytest.raises(ValueError, match="stop"):
        SimFaults(fail=["stop"])


async def test_a_failed_kill_leaves_the_machine_running(machine: Machine) -> None:
    driver = SimDriver(ignore, SimFaults(fail=["kill"]))
    await driver.start(machine)

    with pytest.raises(HostFailure):
        await driver.kill(machine)

    assert (await driver.inspect([machine]))[machine.ip].exit is None


async def test_a_damaged_record_is_no_machine(machine: Machine) -> None:
    driver = SimDriver(ignore)
    await driver.start(machine)
    (machine.directory / "sim/record.json").write_bytes(b"{")

    assert await driver.inspect([machine]) == {}
