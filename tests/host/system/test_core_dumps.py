"""A process that holds keys leaves no core; what it starts may."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import os, resource, signal, subprocess, sys
from atoll.system import core_dumps
resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY,) * 2)
if "forbid" in sys.argv:
    core_dumps.forbid()
show = "import ctypes; print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))"
exec(show)
subprocess.run([sys.executable, "-c", show], check=True)
"""


def dumpable(*argv: str) -> list[str]:
    """Whether the kernel would write a core: of a process, and of one that it starts."""
    command = [sys.executable, "-u", "-c", SCRIPT, *argv]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def test_core_dumps_are_forbidden_for_the_process_and_not_for_what_it_starts() -> None:
    assert dumpable() == ["1", "1"]
    assert dumpable("forbid") == ["0", "1"]
