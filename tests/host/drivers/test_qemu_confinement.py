"""What a real QEMU of ours may do, as the kernel sees it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from atoll.drivers.machine.base import Machine
from atoll.system import cgroups


@pytest.fixture
async def running(lab: Any, exits: Any) -> tuple[Machine, Path]:
    """A machine that has been started, and its process in /proc."""
    driver, machine = lab.driver(exits), lab.machine()
    # As on a node: nobody else gets into the directories of VMs and images.
    lab.directory.chmod(0o700)
    await driver.start(machine)
    return machine, Path(f"/proc/{lab.process(machine).pid}")


def status_of(task: Path) -> dict[str, list[str]]:
    lines = (line.partition(":") for line in (task / "status").read_text().splitlines())
    return {key: value.split() for key, _, value in lines}


def tasks_of(process: Path) -> Iterator[Path]:
    yield from (process / "task").iterdir()


def test_every_thread_runs_as_the_user_of_its_vm_without_groups(running: tuple[Machine, Path]) -> None:
    machine, process = running
    uid = str(machine.uid)

    for task in tasks_of(process):
        status = status_of(task)
        assert (status["Uid"], status["Gid"]) == ([uid] * 4, [uid] * 4)
        assert status["Groups"] in ([], [uid])


def test_no_thread_has_or_can_gain_a_capability(running: tuple[Machine, Path]) -> None:
    _, process = running

    for task in tasks_of(process):
        status = status_of(task)
        for kind in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
            assert int(status[kind][0], 16) == 0, kind
        assert status["NoNewPrivs"] == ["1"]


def test_every_thread_is_in_the_sandbox(running: tuple[Machine, Path]) -> None:
    _, process = running

    for task in tasks_of(process):
        assert status_of(task)["Seccomp"] == ["2"], task


def test_it_is_in_the_cgroup_of_its_vm_under_every_controller(running: tuple[Machine, Path]) -> None:
    machine, process = running

    for members in cgroups.join_paths(machine.cgroup):
        assert process.name in members.read_text().split()


def test_it_leads_a_session_of_its_own_without_a_terminal(running: tuple[Machine, Path]) -> None:
    _, process = running
    fields = (process / "stat").read_text().rpartition(")")[2].split()

    assert (fields[3], fields[4]) == (process.name, "0")


def test_it_has_no_files_open_but_its_own(running: tuple[Machine, Path]) -> None:
    machine, process = running
    allowed = {
        "/dev/null",
        "/dev/net/tun",
        str(machine.kernel),
        str(machine.initrd),
        str(machine.directory / "console.log"),
        str(machine.directory / "qemu/messages"),
    }

    opened = {os.readlink(link) for link in (process / "fd").iterdir()}

    assert {name for name in opened if name.startswith("/")} <= allowed
    assert {name.partition(":")[0] for name in opened if not name.startswith("/")} <= {"socket", "anon_inode"}


def test_it_cannot_write_the_images_that_it_has_open(running: tuple[Machine, Path]) -> None:
    machine, process = running

    for link in (process / "fd").iterdir():
        if os.readlink(link) in (str(machine.kernel), str(machine.initrd)):
            assert not stat.S_IMODE(link.lstat().st_mode) & stat.S_IWUSR


def test_its_files_belong_to_root_alone(running: tuple[Machine, Path]) -> None:
    machine, _ = running

    for name in ("qemu/record.json", "qemu/messages", "console.log", "qemu/monitor.sock"):
        status = (machine.directory / name).stat()
        assert (status.st_uid, stat.S_IMODE(status.st_mode)) == (0, 0o600), name
