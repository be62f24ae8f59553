"""Which control groups a host has, and what limits look like in each version."""

from __future__ import annotations

from pathlib import Path

import pytest

from atoll.errors import HostFailure
from atoll.system.cgroup_layout import (
    Layout,
    Limits,
    Write,
    find_layout,
    needed_controllers,
    writes_v1,
    writes_v2,
)

SEPARATE = """\
proc /proc proc rw,relatime 0 0
tmpfs /sys/fs/cgroup tmpfs rw,relatime,mode=755 0 0
cgroup /sys/fs/cgroup/pids cgroup rw,relatime,pids 0 0
cgroup /sys/fs/cgroup/cpu cgroup rw,relatime,cpu 0 0
cgroup /sys/fs/cgroup/cpuacct cgroup rw,relatime,cpuacct 0 0
cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0
cgroup /sys/fs/cgroup/freezer cgroup rw,relatime,freezer 0 0
cgroup /sys/fs/cgroup/systemd cgroup rw,relatime,name=systemd 0 0
cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0
"""
TOGETHER = "cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,nosuid,cpu,cpuacct 0 0\n"
UNIFIED = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid,nodev,noexec,relatime,nsdelegate 0 0\n"


def test_version_1_has_a_root_for_each_controller_that_we_use() -> None:
    root = Path("/sys/fs/cgroup")
    assert find_layout(SEPARATE) == Layout(
        1,
        {name: root / name for name in ("cpu", "cpuacct", "memory", "pids")},
        tuple(root / name for name in ("freezer", "systemd", "unified")),
        systemd=root / "systemd",
        freezer=root / "freezer",
    )


def test_what_is_to_be_removed_is_looked_for_in_hierarchies_that_we_do_not_use_too() -> None:
    places = {str(path) for path in find_layout(SEPARATE).everywhere("atoll/a")}
    assert {"/sys/fs/cgroup/cpu/atoll/a", "/sys/fs/cgroup/freezer/atoll/a"} <= places


def test_controllers_that_are_mounted_together_share_a_root() -> None:
    layout = find_layout(TOGETHER)
    assert layout.directories("atoll/a") == (Path("/sys/fs/cgroup/cpu,cpuacct/atoll/a"),)


def test_version_2_has_one_root() -> None:
    assert find_layout(UNIFIED) == Layout(2, {"": Path("/sys/fs/cgroup")})


def test_version_2_is_used_only_where_version_1_has_no_controllers() -> None:
    assert find_layout(UNIFIED + SEPARATE).version == 1
    only_names = "cgroup /sys/fs/cgroup/systemd cgroup rw,xattr,name=systemd 0 0\n"
    assert find_layout(only_names + UNIFIED).version == 2


def test_blanks_in_a_mount_point_are_understood() -> None:
    assert find_layout("cgroup2 /my\\040groups cgroup2 rw 0 0\n").roots[""] == Path("/my groups")


def test_a_host_without_control_groups_is_told_how_to_mount_them() -> None:
    with pytest.raises(HostFailure, match="none are mounted") as failure:
        find_layout("proc /proc proc rw 0 0\n")
    assert "mount -t cgroup2" in failure.value.hint


def test_limits_in_version_1() -> None:
    assert writes_v1(Limits(cpu_milli_quota=500, cpu_weight=200, memory_mib=64, pids=20)) == (
        Write("cpu", "cpu.shares", "2048"),
        Write("cpu", "cpu.cfs_period_us", "100000"),
        Write("cpu", "cpu.cfs_quota_us", "50000"),
        Write("memory", "memory.limit_in_bytes", str(64 * 1024 * 1024)),
        Write("pids", "pids.max", "20"),
    )


def test_limits_in_version_2() -> None:
    assert writes_v2(Limits(cpu_milli_quota=500, cpu_weight=200, memory_mib=64, pids=20)) == (
        Write("cpu", "cpu.weight", "200"),
        Write("cpu", "cpu.max", "50000 100000"),
        Write("memory", "memory.max", str(64 * 1024 * 1024)),
        Write("pids", "pids.max", "20"),
    )


def test_no_limits_take_earlier_ones_away() -> None:
    assert [write.value for write in writes_v1(Limits())] == ["1024", "100000", "-1", "-1", "max"]
    assert [write.value for write in writes_v2(Limits())] == ["100", "max 100000", "max", "max"]


@pytest.mark.parametrize(("weight", "shares"), [(1, "10"), (100, "1024"), (10_000, "102400")])
def test_the_default_weight_is_the_default_of_shares(weight: int, shares: str) -> None:
    assert writes_v1(Limits(cpu_weight=weight))[0].value == shares


def test_a_tiny_quota_is_the_least_that_the_kernel_takes() -> None:
    assert writes_v2(Limits(cpu_milli_quota=1))[1].value == "1000 100000"


def test_only_limits_that_are_asked_for_need_their_controller() -> None:
    assert needed_controllers(Limits()) == frozenset()
    assert needed_controllers(Limits(cpu_weight=50)) == {"cpu"}
    assert needed_controllers(Limits(cpu_milli_quota=100, memory_mib=1, pids=1)) == {"cpu", "memory", "pids"}
