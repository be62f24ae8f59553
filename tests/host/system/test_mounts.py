"""Mounts that only those see who are meant to, with owners that are mapped."""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path

import pytest

from atoll.errors import HostFailure
from atoll.system import mounts
from atoll.system.mounts import IdRange

OWNERS = [IdRange(inside=0, outside=3_000_000_000, count=65_536), IdRange(65_536, 0, 1)]


@pytest.fixture
def trees(tmp_path: Path) -> dict[str, Path]:
    made = {name: tmp_path / name for name in ("lower", "disk", "stage")}
    for path in (*made.values(), made["disk"] / "upper", made["disk"] / "work"):
        path.mkdir()
    (made["lower"] / "file").write_text("from below")
    return made


def test_a_private_mount_is_seen_inside_and_by_what_is_started_there_and_by_nobody_else(
    tmp_path: Path,
) -> None:
    def inside() -> str:
        mounts.tmpfs(tmp_path)
        (tmp_path / "secret").write_text("here")
        return subprocess.run(["ls", tmp_path], capture_output=True, text=True, check=True).stdout

    assert mounts.private(inside) == "secret\n"
    assert list(tmp_path.iterdir()) == []
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()


def test_an_unmount_inside_leaves_the_host_as_it_was() -> None:
    mounts.private(lambda: mounts.unmount(Path("/dev/shm")))
    assert " /dev/shm " in Path("/proc/self/mounts").read_text()


def test_errors_come_out() -> None:
    with pytest.raises(HostFailure, match="mounting a tmpfs on /none"):
        mounts.private(lambda: mounts.tmpfs(Path("/none")))


def test_owners_are_mapped_both_ways(trees: dict[str, Path]) -> None:
    there = trees["stage"] / "there"

    def inside(namespace: int) -> int:
        mounts.tmpfs(trees["stage"])
        there.mkdir()
        mounts.idmapped(trees["lower"], there, namespace)
        (there / "new").touch()
        os.chown(there / "new", OWNERS[0].outside + 7, OWNERS[0].outside + 7)
        return (there / "file").stat().st_uid

    with mounts.user_namespace(OWNERS) as made:
        assert mounts.private(lambda: inside(made())) == OWNERS[0].outside
    assert (trees["lower"] / "new").stat().st_uid == 7


def test_changes_go_to_the_upper_side_of_an_overlay_of_mapped_directories(trees: dict[str, Path]) -> None:
    stage = trees["stage"]

    def inside(namespace: int) -> None:
        mounts.tmpfs(stage)
        for name in ("lower", "disk", "root"):
            (stage / name).mkdir()
        mounts.idmapped(trees["lower"], stage / "lower", namespace)
        mounts.idmapped(trees["disk"], stage / "disk", namespace)
        mounts.overlay(stage / "root", stage / "lower", stage / "disk/upper", stage / "disk/work")
        assert (stage / "root/file").stat().st_uid == OWNERS[0].outside
        (stage / "root/file").write_text("changed")

    with mounts.user_namespace(OWNERS) as made:
        mounts.private(lambda: inside(made()))
    assert (trees["lower"] / "file").read_text() == "from below"
    changed = trees["disk"] / "upper/file"
    assert (changed.read_text(), changed.stat().st_uid) == ("changed", 0)


def test_a_user_namespace_leaves_no_process(trees: dict[str, Path]) -> None:
    before = _children()
    with mounts.user_namespace(OWNERS) as made:
        made()
    assert _children() <= before


def _children() -> set[int]:
    """The processes that this one started and has not forgotten."""
    found = set()
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(status.read_text().rpartition(")")[2].split()[1]) == os.getpid():
                found.add(int(status.parent.name))
    return found
