"""Prometheus' own tool, which says what is wrong with a page of metrics."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest


def complaints(page: bytes) -> str:
    """What `promtool check metrics` finds: a name without its unit, a metric without help, a page that is none."""
    beside = Path(sys.executable).with_name("promtool")
    program = str(beside) if beside.exists() else shutil.which("promtool")
    if program is None:
        pytest.skip("there is no promtool: make setup-test")
    done = subprocess.run([program, "check", "metrics"], input=page, capture_output=True, timeout=30)
    said = (done.stdout + done.stderr).decode()
    assert done.returncode == 0 or said, f"promtool ended with {done.returncode} and said nothing"
    return said
