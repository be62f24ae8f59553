"""The archive read back by a reader written from the format's description."""

from __future__ import annotations

import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import Invalid
from atoll.images import cpio

names = st.text("abcXYZ09._-", min_size=1, max_size=12).filter(lambda name: name not in (".", ".."))
paths = st.lists(names, min_size=1, max_size=3).map("/".join)


def read_back(data: bytes) -> list[tuple[str, int, int, int, bytes]]:
    """(path, mode, inode, mtime, data) of each record up to the trailer."""
    found = []
    at = 0
    while True:
        assert data[at : at + 6] == b"070701"
        fields = [int(data[at + 6 + 8 * i : at + 14 + 8 * i], 16) for i in range(13)]
        name = data[at + 110 : at + 110 + fields[11] - 1].decode()
        at = (at + 110 + fields[11] + 3) & ~3
        content = data[at : at + fields[6]]
        at = (at + fields[6] + 3) & ~3
        if name == "TRAILER!!!":
            assert not data[at:].strip(b"\0")
            return found
        found.append((name, fields[1], fields[0], fields[5], content))


@given(st.dictionaries(names, st.binary(max_size=50), max_size=8))
def test_what_goes_in_comes_out(content: dict[str, bytes]) -> None:
    archived = cpio.archive(cpio.regular_file(name, data) for name, data in content.items())
    assert {name: data for name, _, _, _, data in read_back(archived)} == content


@given(st.dictionaries(paths, st.binary(max_size=20), max_size=8), st.randoms())
def test_the_order_of_entries_does_not_change_the_bytes(content: dict[str, bytes], random: object) -> None:
    entries = [cpio.regular_file(f"top/{path}.f", data) for path, data in content.items()]
    shuffled = sorted(entries, key=lambda _: random.random())  # type: ignore[attr-defined]
    assert cpio.archive(entries) == cpio.archive(shuffled)


@given(st.lists(paths, max_size=8, unique=True))
def test_every_directory_comes_before_what_is_in_it(files: list[str]) -> None:
    seen = set()
    for name, mode, *_ in read_back(cpio.archive(cpio.regular_file(f"{path}/file,", b"") for path in files)):
        assert "/" not in name or name.rpartition("/")[0] in seen
        if stat.S_ISDIR(mode):
            seen.add(name)


def test_inodes_differ_and_times_are_zero() -> None:
    records = read_back(
        cpio.archive([cpio.regular_file("a", b"1"), cpio.directory("b"), cpio.symlink("c", "a")])
    )
    assert [record[2] for record in records] == [1, 2, 3]
    assert {record[3] for record in records} == {0}


def test_types_and_permissions_are_kept() -> None:
    records = read_back(
        cpio.archive(
            [
                cpio.regular_file("init", b"x", 0o755),
                cpio.directory("root", 0o700),
                cpio.symlink("sh", "busybox"),
            ]
        )
    )
    assert {name: stat.filemode(mode) for name, mode, *_ in records} == {
        "init": "-rwxr-xr-x",
        "root": "drwx------",
        "sh": "lrwxrwxrwx",
    }


@pytest.mark.parametrize("path", ["", "/etc", "a/../b", "a//b", "a/", ".", "./a", "a\0b", "TRAILER!!!"])
def test_a_path_that_is_not_plain_is_refused(path: str) -> None:
    with pytest.raises(Invalid):
        cpio.archive([cpio.regular_file(path, b"")])


def test_a_path_given_twice_is_refused() -> None:
    with pytest.raises(Invalid, match="twice"):
        cpio.archive([cpio.regular_file("a", b""), cpio.directory("a")])
