"""Directories that are locks, with several who want them at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from atoll.system.directory_lock import mutex

PARTIES, ROUNDS = 6, 150


def test_a_lock_that_comes_and_goes_keeps_all_but_one_out(tmp_path: Path):
    inside: list[int] = []
    together: list[int] = []

    def party(number: int) -> None:
        for _ in range(ROUNDS):
            with mutex(tmp_path / "lock"):
                inside.append(number)
                together.append(len(inside))
                inside.remove(number)

    with ThreadPoolExecutor(PARTIES) as pool:
        for done in [pool.submit(party, number) for number in range(PARTIES)]:
            done.result()
    assert together == [1] * PARTIES * ROUNDS
    assert not (tmp_path / "lock").exists()
