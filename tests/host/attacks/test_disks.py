"""Guests that write as much as they can: each is held to its own, and nobody else is held up for long."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import structs

import container_labs
import machine_labs as labs
import private_engine as engine
from atoll.drivers.machine.base import Disk, Exit
from atoll.drivers.machine.console_log import KEPT, MOST
from atoll.hypervisor.consoles.bootlog import BootLogs, Tail, trim
from small_disks import free_mib, full_but_for, small_disk

if TYPE_CHECKING:
    from tests.host.conftest import Cli

RESERVE_MIB = 64
FULL = "No space left on device"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system that guests share: 160 MiB."""
    with small_disk(tmp_path, 160) as place:
        yield place


@pytest.fixture
async def lxc(disk: Path, tmp_path: Path) -> AsyncIterator[Any]:
    image = container_labs.make_image(tmp_path)
    async with labs.opened(container_labs.LxcLab(disk, image)) as lab:
        yield lab


@pytest.fixture
async def qemu(tmp_path: Path) -> AsyncIterator[Any]:
    boot = labs.make_boot_files(tmp_path)
    async with labs.opened(labs.QemuLab(tmp_path, boot)) as lab:
        yield lab


async def test_a_container_that_fills_its_root_leaves_the_reserve_and_other_tenants_alone(
    lxc: Any, qemu: Any, disk: Path
) -> None:
    driver, machine = lxc.driver(labs.Exits()), structs.replace(lxc.machine(), root_mib=48)
    await driver.start(machine)
    await lxc.booted(machine)
    await lxc.tell(driver, machine, b"fill\n")
    await lxc.until_logged(machine, "filled: 1")
    assert FULL in lxc.log(machine)
    assert free_mib(disk) > RESERVE_MIB
    (disk / "other.raw").touch()
    os.truncate(disk / "other.raw", 32 << 20)
    other = structs.replace(qemu.machine(), disks=(Disk("data", 32, path=disk / "other.raw"),))
    neighbour = qemu.driver(labs.Exits())
    await neighbour.start(other)
    await qemu.booted(other)
    await qemu.tell(neighbour, other, b"write\n")
    await qemu.until_logged(other, "wrote: 0")
    assert not (await neighbour.inspect([other]))[other.ip].stalled
    # It lives, and can make room for itself.
    await lxc.tell(driver, machine, b"unfill\n")
    await lxc.until_logged(machine, "unfilled: 0")


async def test_a_container_of_an_engine_without_quotas_is_ended_when_it_exceeds_its_root(
    tmp_path: Path,
) -> None:
    image = container_labs.make_image(tmp_path)
    with engine.private_engine() as socket:
        async with labs.opened(container_labs.DockerLab(tmp_path, image, socket, engine.ask)) as lab:
            exits = labs.Exits()
            driver, machine = lab.driver(exits), lab.machine()
            assert "not enforced at once" in (await driver.describe()).confinement["disk"]
            await driver.start(machine)
            await lab.booted(machine)
            await lab.tell(driver, machine, b"fill\n")
            assert await exits.first() == (machine.ip, Exit.OVERFULL)


async def test_a_console_without_end_stays_small_with_an_agent_and_without_one(lxc: Any) -> None:
    driver, machine = lxc.driver(labs.Exits()), lxc.machine()
    log = machine.directory / "console.log"
    await driver.start(machine)
    await lxc.booted(machine)
    await lxc.tell(driver, machine, b"flood\n")
    # No agent makes it smaller: it comes to its end, and the guest runs on.
    assert await largest(log, 3.0) <= MOST
    assert log.stat().st_size > MOST // 2
    assert (await driver.inspect([machine]))[machine.ip].exit is None
    logs = BootLogs(lambda _ip: machine.directory, lambda _ip: driver.let_log_grow(machine))
    keeping = asyncio.create_task(logs.keep_small(lambda: [machine.ip]))
    assert await largest(log, 3.0) <= MOST
    keeping.cancel()
    assert log.stat().st_size > 2 * MOST, "the log does not go on when it has room again"


async def test_the_log_of_a_machine_with_disks_stays_small_and_its_disks_can_be_written_to_their_ends(
    qemu: Any, tmp_path: Path
) -> None:
    (tmp_path / "data.raw").touch()
    os.truncate(tmp_path / "data.raw", 24 << 20)
    machine = structs.replace(qemu.machine(), disks=(Disk("data", 24, path=tmp_path / "data.raw"),))
    log = machine.directory / "console.log"
    log.write_bytes(b"from its last run\n" * (MOST // 18 - 1000))
    driver = qemu.driver(labs.Exits())
    await driver.start(machine)
    await qemu.booted(machine)
    await qemu.tell(driver, machine, b"write\n")
    await qemu.until_logged(machine, "wrote: 0")
    assert os.stat(tmp_path / "data.raw").st_blocks * 512 == 24 << 20
    with Tail(log) as tail:
        assert next(tail.history()).startswith(b"from its last run\n")
    trim(log)
    with log.open("ab") as file:
        file.write(b"x" * (MOST - KEPT - 60_000))
    await qemu.tell(driver, machine, b"flood\n")
    assert await largest(log, 2.0) <= MOST
    assert (await driver.inspect([machine]))[machine.ip].exit is None
    trim(log)
    driver.let_log_grow(machine)
    size = log.stat().st_size
    await labs.until(lambda: log.stat().st_size > size)


async def largest(log: Path, seconds: float) -> int:
    """The most that a log took of the disk, within this time."""
    most, until_s = 0, time.monotonic() + seconds
    while time.monotonic() < until_s:
        most = max(most, log.stat().st_blocks * 512)
        await asyncio.sleep(0.01)
    return most


def test_a_vm_that_is_paused_on_a_full_disk_says_so_and_goes_on_when_there_is_room(
    images: Path, tmp_path: Path, making_cloud: Callable[[Path], AbstractContextManager[Cli]]
) -> None:
    with small_disk(tmp_path, 96) as place, making_cloud(images) as cloud:
        settings = f'disk_reserve_mib = 0\n[stores]\nsmall = "{place}/store"\n'
        (cloud.directory / "settings.toml").write_text(settings)
        cloud("up")
        cloud.create("writer", "--volume", "size=48MiB")
        with full_but_for(place, 4):
            with cloud.shell("writer") as shell:
                shell.begin("dd if=/dev/zero of=/dev/vda bs=1M count=32 conv=fsync && echo 'all ''written'")
                until(lambda: bool(cloud.show("writer")["reason"]), "it does not say that it is paused")
            vm = cloud.show("writer")
            assert vm["state"] == "running"
            assert vm["reason"].startswith("paused: no space left")
            assert "running, paused" in cloud("vm", "list").stdout
            cloud.kill_agent()
            cloud("up")
            until(lambda: cloud.show("writer")["reason"] == vm["reason"], "the next agent does not say so")
        until(lambda: cloud.show("writer")["reason"] == "", "it is not let go on")
        until(lambda: "all written" in cloud("vm", "log", "writer").stdout, "its guest does not get on")
        paused = [entry["method"] for entry in cloud.json("audit", "list") if "vm." in entry["method"]]
        assert {"vm.paused", "vm.resumed"} <= set(paused)


def until(true: Callable[[], bool], complaint: str) -> None:
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline, complaint
        time.sleep(0.1)
