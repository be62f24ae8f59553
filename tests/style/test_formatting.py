"""Form, lint and types. The tools are told what to look at in pyproject.toml."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(*words: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *words], cwd=ROOT, capture_output=True, text=True, timeout=170
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_code_has_its_form():
    run("ruff", "format", "--check", ".")


def test_the_linter_finds_nothing():
    run("ruff", "check", ".")


def test_all_types_are_right():
    run("mypy")
