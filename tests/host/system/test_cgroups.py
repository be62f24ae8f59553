"""Real control groups, of whichever version this host has."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from atoll.errors import HostFailure, Invalid
from atoll.system import aside, cgroups, freezer
from atoll.system.cgroup_layout import find_layout
from atoll.system.cgroups import Limits

TOP = f"xsys-{os.getpid()}-groups"
GROUP = f"{TOP}/10.1.0.5"


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    cgroups.kill_all(TOP)
    cgroups.remove(TOP)
    assert not any(path.parent.exists() for path in cgroups.join_paths(TOP))


@pytest.fixture
def version_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A real tree of version 2, which can be mounted anywhere, and beside version 1."""
    mounted = tmp_path / "unified"
    mounted.mkdir()
    subprocess.run(["mount", "-t", "cgroup2", "none", mounted], check=True)
    layout = find_layout(f"none {mounted} cgroup2 rw 0 0")
    monkeypatch.setattr(cgroups, "_layout", lambda: layout)
    try:
        yield mounted
        cgroups.kill_all(TOP)
        cgroups.remove(TOP)
    finally:
        subprocess.run(["umount", mounted], check=True)


def start_inside(script: str) -> subprocess.Popen[bytes]:
    """A shell that runs in the group from its first command on."""
    enter = " && ".join(f"echo $$ >{path}" for path in cgroups.join_paths(GROUP))
    return subprocess.Popen(["sh", "-c", f"{enter} && echo in && {script}"], stdout=subprocess.PIPE)


def read(file_v1: str, file_v2: str) -> str:
    for path in cgroups.join_paths(GROUP):
        for file in (file_v1, file_v2):
            if (path.parent / file).exists():
                return (path.parent / file).read_text().strip()
    raise AssertionError(f"neither {file_v1} nor {file_v2}")


def test_limits_arrive_in_the_kernel_and_can_be_changed() -> None:
    cgroups.ensure(GROUP, Limits(cpu_milli_quota=250, memory_mib=64, pids=20))
    assert read("cpu.cfs_quota_us", "cpu.max").split()[0] == "25000"
    assert read("memory.limit_in_bytes", "memory.max") == str(64 << 20)
    assert read("pids.max", "pids.max") == "20"
    cgroups.ensure(GROUP, Limits(memory_mib=128))
    assert read("cpu.cfs_quota_us", "cpu.max").split()[0] in ("-1", "max")
    assert read("memory.limit_in_bytes", "memory.max") == str(128 << 20)
    assert read("pids.max", "pids.max") == "max"


def test_a_process_cannot_use_more_memory_than_its_group_has() -> None:
    cgroups.ensure(GROUP, Limits(memory_mib=32))
    with start_inside("exec dd if=/dev/zero of=/dev/null bs=200M count=1 2>/dev/null") as greedy:
        assert greedy.wait(20) != 0


def test_what_a_thread_in_a_group_starts_is_in_it_and_the_rest_of_its_process_is_not() -> None:
    cgroups.ensure(GROUP, Limits())
    entered = []

    def start() -> subprocess.Popen[bytes]:
        entered.append(cgroups.enter_thread(GROUP))
        return subprocess.Popen(("sleep", "60"))

    with ThreadPoolExecutor(1) as threads, threads.submit(start).result() as process:
        members = cgroups.members(GROUP)
        cgroups.kill_all(GROUP)
        process.kill()
    assert members == ((process.pid,) if entered == [True] else ())
    assert cgroups.members(GROUP) == ()


def test_version_2_has_no_groups_of_threads_and_says_so(version_2: Path) -> None:
    cgroups.ensure(GROUP, Limits())
    assert not cgroups.enter_thread(GROUP)
    assert (version_2 / GROUP / "cgroup.procs").read_text() == ""


def test_a_group_knows_its_members_and_what_they_use() -> None:
    cgroups.ensure(GROUP, Limits(memory_mib=64, pids=20))
    with start_inside(
        "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; echo done; exec sleep 60"
    ) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == [b"in\n", b"done\n"]
        assert cgroups.members(TOP) == cgroups.members(GROUP) == (process.pid,)
        used = cgroups.usage(GROUP)
        assert 0.01 < used.cpu_s < 20
        assert 0 <= used.memory_mib < 64
        assert used.pids >= 1
        cgroups.kill_all(GROUP)
    assert cgroups.members(GROUP) == ()


def test_killing_all_also_ends_what_is_started_meanwhile() -> None:
    cgroups.ensure(GROUP, Limits(pids=60))
    with start_inside("while :; do sleep 60 & done 2>/dev/null") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"in\n"
        time.sleep(0.05)
        cgroups.kill_all(GROUP)
        assert cgroups.members(GROUP) == ()


@pytest.mark.parametrize(("script", "status"), [("sleep 0.1; exit 7", 7), ("exec sleep 60", -9)])
def test_what_does_not_end_by_itself_in_time_is_ended(script: str, status: int) -> None:
    cgroups.ensure(GROUP, Limits())
    with start_inside(script) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"in\n"
        cgroups.wait_empty(GROUP, timeout_s=10 if status == 7 else 0.05)
        assert cgroups.members(GROUP) == ()
        assert process.wait(10) == status


def test_a_group_with_processes_is_not_removed() -> None:
    cgroups.ensure(GROUP, Limits())
    with start_inside("exec sleep 60") as process:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(HostFailure, match=rf"processes \({process.pid},\) are still in it"):
            cgroups.remove(GROUP, timeout_s=0.05)
        process.kill()
    cgroups.remove(GROUP)
    assert cgroups.children(TOP) == set()


def test_removal_takes_what_is_below_and_gone_is_fine() -> None:
    cgroups.ensure(f"{GROUP}/deep", Limits())
    assert cgroups.children(TOP) == {"10.1.0.5"}
    cgroups.remove(TOP)
    cgroups.remove(TOP)
    assert cgroups.members(TOP) == ()
    assert cgroups.children(TOP) == set()
    assert cgroups.usage(TOP) == cgroups.Usage(0.0, 0, 0)


def test_groups_within_groups_are_removed_however_deep() -> None:
    cgroups.ensure(GROUP, Limits())
    directory = cgroups.join_paths(GROUP)[0].parent
    for _ in range(1200):
        directory /= "d"
        directory.mkdir()
    cgroups.remove(TOP, timeout_s=20)
    assert cgroups.children(TOP) == set()


async def test_a_removal_that_waits_for_a_process_lets_the_loop_go_on() -> None:
    cgroups.ensure(GROUP, Limits())
    with start_inside("exec sleep 60") as process:
        assert process.stdout is not None
        process.stdout.readline()
        removing = asyncio.create_task(aside.run(cgroups.remove, GROUP, 5.0))
        await asyncio.sleep(0.05)
        assert not removing.done()
        process.kill()
    await removing
    assert cgroups.children(TOP) == set()


def test_a_parent_that_others_use_stays() -> None:
    cgroups.ensure(GROUP, Limits())
    cgroups.remove_if_empty(TOP)
    assert cgroups.children(TOP) == {"10.1.0.5"}
    cgroups.remove(GROUP)
    cgroups.remove_if_empty(TOP)
    cgroups.remove_if_empty(TOP)
    assert not any(path.parent.exists() for path in cgroups.join_paths(TOP))


def test_a_group_that_leads_elsewhere_is_refused() -> None:
    for group in ("", "/etc", "../x", "a/../../b", "a//b"):
        with pytest.raises(Invalid):
            cgroups.ensure(group, Limits())


def test_in_version_2_processes_are_ended_and_groups_removed(version_2: Path) -> None:
    cgroups.ensure(GROUP, Limits())
    assert cgroups.join_paths(GROUP) == (version_2 / GROUP / "cgroup.procs",)
    with start_inside("sleep 60 & sleep 60") as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert process.pid in cgroups.members(TOP)
        cgroups.kill_all(TOP)
        assert cgroups.members(TOP) == ()
    cgroups.remove(TOP)
    assert not (version_2 / TOP).exists()


def test_in_version_2_a_limit_that_cannot_be_set_names_its_controller(version_2: Path) -> None:
    cgroups.ensure(TOP, Limits())
    # A group with processes of its own cannot hand controllers down.
    with subprocess.Popen(["sleep", "60"]) as process:
        (version_2 / TOP / "cgroup.procs").write_text(str(process.pid))
        with pytest.raises(HostFailure, match=f"{GROUP}: controller memory is not available") as failure:
            cgroups.ensure(GROUP, Limits(memory_mib=64))
        process.kill()
    assert "memory controller" in failure.value.hint


COUNTS = "while :; do echo x; sleep 0.01; done"


@pytest.mark.parametrize("version", ["the host's", "version_2"])
def test_a_group_that_is_held_does_nothing_until_it_goes_on_and_can_be_ended(
    version: str, request: pytest.FixtureRequest
) -> None:
    if version == "version_2":
        request.getfixturevalue(version)
    assert not freezer.is_frozen(GROUP)
    freezer.thaw(GROUP)
    cgroups.ensure(GROUP, Limits())
    with start_inside(COUNTS) as process:
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        until_read(process)
        for _ in range(2):
            freezer.freeze(GROUP)
        assert freezer.is_frozen(GROUP)
        process.stdout.read()
        time.sleep(0.1)
        assert not process.stdout.read()
        freezer.thaw(GROUP)
        assert not freezer.is_frozen(GROUP)
        until_read(process)
        freezer.freeze(GROUP)
        cgroups.kill_all(GROUP)
    assert cgroups.members(GROUP) == ()


def until_read(process: subprocess.Popen[bytes]) -> None:
    assert process.stdout is not None
    until = time.monotonic() + 10
    while b"x" not in (process.stdout.read() or b""):
        assert time.monotonic() < until, "it does not go on"
        time.sleep(0.01)
