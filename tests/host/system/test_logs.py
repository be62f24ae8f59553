"""A log that others can make grow stays small: a process of its own writes to it, as an agent does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

LIMIT = 20_000
WRITER = f"""
import logging, pathlib, sys
from atoll.system import logs
logs.LIMIT = {LIMIT}
logs.MOST_ALIKE = 10_000
logs.start()
for number in range(2000):
    logging.info("line %d %s", number, "x" * 80)
    if number == 100 and len(sys.argv) > 1:
        pathlib.Path(sys.argv[1]).unlink()
print("and what is printed", flush=True)
"""


def write(path: Path, *words: str) -> None:
    with path.open("ab") as log:
        subprocess.run([sys.executable, "-c", WRITER, *words], stdout=log, stderr=log, check=True, timeout=60)


def test_two_files_are_all_that_it_takes_and_the_last_lines_are_there(tmp_path: Path) -> None:
    path = tmp_path / "agent.log"
    write(path)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["agent.log", "agent.log.1"]
    assert sum(one.stat().st_size for one in tmp_path.iterdir()) < 2 * LIMIT + 1000
    assert path.stat().st_mode & 0o077 == 0
    assert path.read_text().endswith("and what is printed\n")
    numbers = [
        int(line.split("line ")[1].split()[0])
        for name in ("agent.log.1", "agent.log")
        for line in (tmp_path / name).read_text().splitlines()
        if "line " in line
    ]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


def test_one_that_was_removed_does_not_grow_in_the_dark(tmp_path: Path) -> None:
    path = tmp_path / "agent.log"
    with path.open("ab") as log:
        command = [sys.executable, "-c", WRITER, str(path)]
        subprocess.run(command, stdout=log, stderr=log, check=True, timeout=60)
        assert Path(f"/proc/self/fd/{log.fileno()}").stat().st_size < LIMIT + 1000
    assert list(tmp_path.iterdir()) == []


def test_a_pipe_is_not_touched() -> None:
    done = subprocess.run([sys.executable, "-c", WRITER], capture_output=True, text=True, timeout=60)
    assert done.stderr.count("INFO root: line") == 2000


def test_a_line_for_a_log_that_is_full_begins_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from atoll.system import logs

    monkeypatch.setattr(logs, "LIMIT", 100)
    path = tmp_path / "agent.log"
    for number in range(50):
        logs.append(path, f"line {number} {'x' * 40}")
    assert path.read_text().splitlines()[-1].startswith("line 49 ")
    assert sum(one.stat().st_size for one in tmp_path.iterdir()) < 400
