"""How the process of a command ends."""

from __future__ import annotations

import os
import subprocess
import sys

ATOLL = [sys.executable, "-m", "atoll.cli"]


def test_all_that_a_command_says_is_written_before_it_ends() -> None:
    done = subprocess.run([*ATOLL, "--help"], capture_output=True, check=True)
    assert done.stdout.startswith(b"usage: atoll")
    assert done.stdout.endswith(b"\n")
    assert subprocess.run([*ATOLL, "nonsense"], capture_output=True, check=False).returncode == 2


def test_what_could_not_be_written_is_no_success() -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*ATOLL, "--version"], stdout=full, stderr=subprocess.PIPE, check=False, env={**os.environ}
        )
    assert done.returncode != 0
