from __future__ import annotations

import os
from pathlib import Path

from hypothesis import given
from hypothesis.strategies import integers

from atoll.drivers.machine.base import Disk
from atoll.drivers.machine.console_log import KEPT, MOST, begin_behind, limit_of, place_before
from atoll.system.file_limits import ids_of, soft_limit


def test_a_log_that_has_to_begin_behind_a_disk_keeps_its_end_and_its_places(tmp_path: Path) -> None:
    log = tmp_path / "console.log"
    log.write_bytes(b"what was written before\n")
    begin_behind(log, 10_000_000)
    size = log.stat().st_size
    assert size >= 10_000_000
    assert size + place_before(log) == len(b"what was written before\n")
    with log.open("rb") as file:
        file.seek(-24, os.SEEK_END)
        assert file.read() == b"what was written before\n"
    begin_behind(log, 10_000_000)
    assert log.stat().st_size == size


def test_a_log_beside_no_disk_begins_at_its_beginning(tmp_path: Path) -> None:
    log = tmp_path / "console.log"
    begin_behind(log, 0)
    assert not log.exists()
    assert (place_before(log), limit_of(log)) == (0, MOST)


def test_a_log_may_grow_by_what_was_given_back(tmp_path: Path) -> None:
    log = tmp_path / "console.log"
    begin_behind(log, 5 * KEPT)
    with log.open("ab") as file:
        file.write(b"x" * 4096)
    assert limit_of(log) == 5 * KEPT + MOST


@given(integers(1, 1 << 30))
def test_the_file_of_a_disk_can_become_as_large_as_the_disk_at_least(size_mib: int) -> None:
    assert Disk("a", size_mib).most_bytes == size_mib << 20
    assert Disk("a", size_mib, format="qcow2").most_bytes > size_mib << 20


def test_what_the_kernel_says_of_a_process_is_understood() -> None:
    limits = "Max cpu time   unlimited  unlimited  seconds\nMax file size    8388608   unlimited  bytes\n"
    assert soft_limit(limits) == 8 << 20
    assert soft_limit("Max file size    unlimited   unlimited   bytes\n") is None
    assert ids_of("Name:\tx\nUid:\t7\t7\t7\t7\nGid:\t8\t8\t8\t8\n") == (7, 8)
