from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from atoll.errors import Conflict
from atoll.system.lock_files import exclusive


def test_a_lock_is_held_by_one_process_and_names_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    script = (
        "import sys; from pathlib import Path; from atoll.system.lock_files import exclusive\n"
        "with exclusive(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(Conflict, match=f"held by process {holder.pid}"):
            exclusive(path).__enter__()
        holder.kill()
    with exclusive(path):
        assert path.read_text() == f"{os.getpid()}\n"
    assert path.exists()


def test_a_lock_is_free_again_after_its_block(tmp_path: Path) -> None:
    with exclusive(tmp_path / "lock"), pytest.raises(Conflict):
        exclusive(tmp_path / "lock").__enter__()
    with exclusive(tmp_path / "lock"):
        pass


def test_a_lock_that_a_killed_process_left_to_its_child_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    script = (
        "import os, sys, time; from pathlib import Path; from atoll.system.lock_files import exclusive\n"
        "with exclusive(Path(sys.argv[1])):\n"
        "  if os.fork() == 0: time.sleep(0.5); os._exit(0)\n"
        "  os.kill(os.getpid(), 9)"
    )
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", script, path], check=False)
    with exclusive(path):
        assert path.read_text() == f"{os.getpid()}\n"
    assert time.monotonic() - began > 0.5, "the child had it"
