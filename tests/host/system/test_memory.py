"""Files in memory, as the kernel keeps them."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from atoll.errors import HostFailure
from atoll.system import memory

MIB = 1 << 20


@pytest.fixture
def filled() -> Iterator[int]:
    """Sixteen MiB, of which two are used."""
    descriptor = memory.create("test", 16 * MIB)
    os.pwrite(descriptor, b"a" * MIB, 3 * MIB)
    os.pwrite(descriptor, b"b" * MIB, 15 * MIB)
    yield descriptor
    os.close(descriptor)


def reopened(descriptor: int) -> int:
    return os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR)


def test_what_is_sealed_can_be_opened_for_writing_and_copied_but_not_changed(filled: int) -> None:
    memory.seal(filled)

    other = reopened(filled)
    try:
        with pytest.raises(PermissionError):
            os.pwrite(other, b"x", 0)
        with pytest.raises(PermissionError):
            os.ftruncate(other, 0)
        with pytest.raises(PermissionError):
            mmap.mmap(other, 4096, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        with mmap.mmap(other, 4096, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE) as private:
            private[0] = 1
        assert os.pread(filled, 1, 0) == b"\0"
    finally:
        os.close(other)


def test_what_somebody_can_still_write_to_cannot_be_sealed(filled: int) -> None:
    with (
        mmap.mmap(filled, 4096, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE),
        pytest.raises(HostFailure, match="sealing"),
    ):
        memory.seal(filled)


def test_what_is_saved_comes_back_the_same_and_sealed_with_its_holes(filled: int, tmp_path: Path) -> None:
    memory.save(filled, tmp_path / "ram")

    loaded = memory.load("again", tmp_path / "ram")
    try:
        assert os.pread(loaded, 16 * MIB, 0) == os.pread(filled, 16 * MIB, 0)
        with pytest.raises(PermissionError):
            os.pwrite(loaded, b"x", 0)
        assert os.fstat(loaded).st_blocks == os.fstat(filled).st_blocks == 2 * MIB // 512
        assert (tmp_path / "ram").stat().st_blocks * 512 <= 3 * MIB
        assert (tmp_path / "ram").stat().st_mode & 0o777 == 0o600
    finally:
        os.close(loaded)


def test_nothing_that_exists_is_written_over(filled: int, tmp_path: Path) -> None:
    (tmp_path / "ram").write_bytes(b"mine")

    with pytest.raises(HostFailure, match="ram"):
        memory.save(filled, tmp_path / "ram")
    assert (tmp_path / "ram").read_bytes() == b"mine"


def test_reading_what_is_not_there_is_a_failure(tmp_path: Path) -> None:
    with pytest.raises(HostFailure, match="ram"):
        memory.load("none", tmp_path / "ram")
