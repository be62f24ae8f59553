"""The keeper that waits for the next container: there in time, used once, and gone with whoever had it."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from atoll.drivers.machine.lxc import driver as lxc
from atoll.drivers.machine.lxc import keeper
from atoll.errors import HostFailure
from atoll.system import processes


async def waiting(driver: Any) -> processes.Pid:
    """The keeper that has nobody to keep."""
    async with asyncio.timeout(10):
        while (spare := driver._keepers._spare) is None:
            await asyncio.sleep(0.01)
    found: processes.Pid = spare.process
    return found


async def test_it_keeps_the_next_container_and_another_one_waits(lxc_lab: Any, exits: Any) -> None:
    driver, first, second = lxc_lab.driver(exits), lxc_lab.machine(5), lxc_lab.machine(6)
    await driver.start(first)
    spare = await waiting(driver)
    await driver.start(second)
    assert (await driver.inspect([second]))[second.ip].pid == spare.pid
    other = await waiting(driver)
    assert other != spare
    await lxc_lab.booted(second)
    await driver.close()
    assert not processes.alive(other)
    # What keeps a container stays.
    assert processes.alive(spare)


async def test_one_that_was_killed_is_not_waited_for(lxc_lab: Any, exits: Any) -> None:
    driver, first, second = lxc_lab.driver(exits), lxc_lab.machine(5), lxc_lab.machine(6)
    await driver.start(first)
    spare = await waiting(driver)
    os.kill(spare.pid, signal.SIGKILL)
    await processes.wait_gone(spare, 5)
    await driver.start(second)
    await lxc_lab.booted(second)


@pytest.mark.parametrize("moment", ["mount_root", "hide_groups"])
async def test_one_that_is_killed_while_its_container_starts_is_a_failure_that_leaves_nothing(
    lxc_lab: Any, exits: Any, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    driver, machine = lxc_lab.driver(exits), lxc_lab.machine()
    real, keep = getattr(lxc, moment), keeper.Keeper.keep
    kept: list[processes.Pid] = []

    def noted(self: keeper.Keeper, machine: Any) -> None:
        kept.append(self.process)
        keep(self, machine)

    def killing(*args: object, **more: object) -> None:
        os.kill(kept[0].pid, signal.SIGKILL)
        while processes.alive(kept[0]):
            pass
        real(*args, **more)

    before = lxc_lab.traces(machine)
    with monkeypatch.context() as patch:
        patch.setattr(keeper.Keeper, "keep", noted)
        patch.setattr(lxc, moment, killing)
        with pytest.raises(HostFailure, match=f"starting machine {machine.name}"):
            await driver.start(machine)
    assert lxc_lab.traces(machine) == before
    await driver.start(machine)
    await lxc_lab.booted(machine)


async def test_it_waits_where_its_links_will_be_and_with_no_right_too_many(lxc_lab: Any, exits: Any) -> None:
    driver, machine = lxc_lab.driver(exits), lxc_lab.machine()
    await driver.start(machine)
    spare = await waiting(driver)
    status = Path(f"/proc/{spare.pid}/status").read_text()
    bounding = int(status.partition("CapBnd:\t")[2].split()[0], 16)
    assert bounding.bit_count() == len(keeper.CAPABILITIES)
    own, ours = (Path(f"/proc/{pid}/ns/mnt").readlink() for pid in (spare.pid, os.getpid()))
    assert own != ours
    assert Path(f"/proc/{spare.pid}/ns/net").stat() == Path(f"/run/netns/{lxc_lab.namespace}").stat()
