"""Hostile archives never leave the destination."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.cli.landing import Landing, Limits, parts_of
from atoll.cli.tar_stream import DIRECTORY, FILE, HARD_LINK, SYMLINK, Entry
from atoll.errors import AtollError, Malformed

PARTS = st.sampled_from([b"a", b"b", b"link", b"..", b".", b"", b"out", b"victim", b"\xff"])
NAMES = st.builds(
    lambda parts, rooted: (b"/" if rooted else b"") + b"/".join(parts),
    st.lists(PARTS, min_size=1, max_size=4),
    st.booleans(),
)
ENTRIES = st.lists(
    st.builds(
        Entry,
        st.sampled_from([FILE, FILE, SYMLINK, HARD_LINK, DIRECTORY, "fifo"]),
        NAMES,
        st.integers(0, 0o7777),
        st.just(3),
        st.integers(0, 2**31),
        st.one_of(NAMES, st.sampled_from([b"../victim", b"..", b"../..", b"/tmp", b"."])),
    ),
    max_size=12,
)


def put(landing: Landing, entries: list[Entry]) -> None:
    for entry in entries:
        landing.take(entry)
        if entry.kind == FILE:
            landing.take(b"bad"[: entry.size])
    landing.finish()


def snapshot(directory: Path) -> dict[str, tuple[int, int, bytes]]:
    """All of it but the destination."""
    found = {}
    for path in sorted(directory.rglob("*")):
        if "in" not in path.relative_to(directory).parts[:1]:
            seen = path.lstat()
            found[str(path)] = (seen.st_mode, seen.st_nlink, path.read_bytes() if path.is_file() else b"")
    return found


@settings(max_examples=400, deadline=None)
@given(ENTRIES)
def test_whatever_an_archive_says_nothing_outside_is_touched(entries: list[Entry]) -> None:
    outside = Path(tempfile.mkdtemp())
    try:
        (outside / "victim").write_bytes(b"good")
        (outside / "out").mkdir()
        (outside / "out" / "victim").write_bytes(b"good")
        root = outside / "in"
        root.mkdir()
        # Links that were there before are no way out either.
        (root / "out").symlink_to(outside / "out")
        (root / "link").symlink_to("..")
        before = snapshot(outside)
        descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        landing = Landing(descriptor, Limits(100, 1000))
        try:
            with contextlib.suppress(AtollError):
                put(landing, entries)
        finally:
            landing.close()
            os.close(descriptor)
        assert snapshot(outside) == before
        for path in root.rglob("*"):
            assert path.is_symlink() or not path.lstat().st_mode & 0o7000
            assert path.is_symlink() or path.is_file() or path.is_dir()
    finally:
        shutil.rmtree(outside)


@pytest.fixture
def root(tmp_path: Path):
    descriptor = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield descriptor
    os.close(descriptor)


def a_file(name: bytes, size: int = 3, mode: int = 0o644) -> Entry:
    return Entry(FILE, name, mode, size, 1_700_000_000)


def test_modes_and_times_are_kept_and_links_stay_links(tmp_path: Path, root: int) -> None:
    entries = [
        Entry(DIRECTORY, b"./d", 0o550, 0, 1_600_000_000),
        a_file(b"./d/f", mode=0o4755),
        Entry(SYMLINK, b"./d/l", 0o777, 0, 1_600_000_000, b"/etc/passwd"),
        Entry(HARD_LINK, b"./d/h", 0o755, 0, 1_600_000_000, b"./d/f"),
    ]
    put(Landing(root, Limits(4, 3)), entries)
    assert (tmp_path / "d").stat().st_mode & 0o7777 == 0o550
    assert (tmp_path / "d").stat().st_mtime == 1_600_000_000
    assert (tmp_path / "d/f").stat().st_mode & 0o7777 == 0o755
    assert (tmp_path / "d/f").stat().st_mtime == 1_700_000_000
    assert str((tmp_path / "d/l").readlink()) == "/etc/passwd"
    assert (tmp_path / "d/h").samefile(tmp_path / "d/f")
    (tmp_path / "d").chmod(0o700)


def test_bits_that_give_rights_are_kept_where_that_is_asked_for(tmp_path: Path, root: int) -> None:
    put(Landing(root, Limits(1, 3), keep_setid=True), [a_file(b"f", mode=0o4755)])
    assert (tmp_path / "f").stat().st_mode & 0o7777 == 0o4755


def test_devices_are_left_out_and_named(tmp_path: Path, root: int) -> None:
    landing = Landing(root, Limits(1, 0))
    put(landing, [Entry("block device", b"sda", 0o660, 0, 0)])
    assert landing.skipped == ["sda (block device)"]
    assert list(tmp_path.iterdir()) == []


def test_more_than_was_announced_is_refused(root: int) -> None:
    with pytest.raises(Malformed, match="more than it announced"):
        put(Landing(root, Limits(0, 0)), [a_file(b"%d" % n, 0) for n in range(200)])
    with pytest.raises(Malformed, match="more than it announced"):
        put(Landing(root, Limits(1, 100)), [a_file(b"f", 1 << 30)])


def test_a_hard_link_is_only_made_to_a_file_of_the_archive(tmp_path: Path, root: int) -> None:
    (tmp_path / "mine").write_text("secret")
    with pytest.raises(Malformed, match="no file of its own"):
        put(Landing(root, Limits(1, 1)), [Entry(HARD_LINK, b"h", 0, 0, 0, b"mine")])


@pytest.mark.parametrize("name", [b"/etc/x", b"../x", b"a/../../x", b"a\0b", b"a/" * 300 + b"x", b"x" * 300])
def test_names_that_lead_out_are_refused(name: bytes) -> None:
    with pytest.raises(Malformed):
        parts_of(name)
