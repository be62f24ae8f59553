from __future__ import annotations

import os
from pathlib import Path

from atoll.system.tree_size import DEEPEST, LEAST_BYTES, measure


def test_files_count_with_their_blocks_and_at_least_with_their_inode(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "data").write_bytes(bytes(range(256)) * 256)
    os.sync()
    (tmp_path / "empty").touch()
    assert 65536 + 2 * LEAST_BYTES <= measure(tmp_path, 1 << 30) <= 65536 + 6 * LEAST_BYTES


def test_a_hole_is_nothing(tmp_path: Path) -> None:
    (tmp_path / "sparse").touch()
    os.truncate(tmp_path / "sparse", 1 << 30)
    assert measure(tmp_path, 1 << 30) == LEAST_BYTES


def test_the_looking_ends_when_more_was_found_than_may_be(tmp_path: Path) -> None:
    for number in range(10):
        (tmp_path / str(number)).touch()
    assert measure(tmp_path, 3 * LEAST_BYTES) == 4 * LEAST_BYTES


def test_a_tree_without_end_is_too_large(tmp_path: Path) -> None:
    within = os.open(tmp_path, os.O_RDONLY)
    for _ in range(DEEPEST + 2):
        os.mkdir("d", dir_fd=within)
        inner = os.open("d", os.O_RDONLY, dir_fd=within)
        os.close(within)
        within = inner
    os.close(within)
    most = 1 << 30
    assert measure(tmp_path, most) > most


def test_a_link_leads_nowhere(tmp_path: Path) -> None:
    (tmp_path / "up").symlink_to("/")
    assert measure(tmp_path, 1 << 20) == LEAST_BYTES


def test_what_is_gone_takes_nothing(tmp_path: Path) -> None:
    assert measure(tmp_path / "gone", 1) == 0
