"""The man pages, as man itself shows them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from atoll.cli.man import write_pages


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    for tool in ("man", "groff"):
        if shutil.which(tool) is None:
            pytest.skip(f"there is no {tool}: apt-get install man-db groff-base")
    write_pages(tmp_path / "share" / "man" / "man1")
    return tmp_path


def test_they_are_set_without_a_warning_in_80_columns(pages: Path) -> None:
    files = sorted(map(str, (pages / "share" / "man" / "man1").iterdir()))
    environment = {
        "PATH": os.environ["PATH"],
        "MANWIDTH": "80",
        "LC_ALL": "C.UTF-8",
    }
    command = ["man", "--warnings", "--pager=cat", "--local-file", *files]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert [line for line in done.stdout.splitlines() if len(line) > 80] == []
    assert done.stdout.count("SYNOPSIS") == len(files)


def test_man_finds_them_beside_the_program(pages: Path) -> None:
    (pages / "bin").mkdir()
    environment = {"PATH": f"{pages}/bin:{os.environ['PATH']}", "MANWIDTH": "80", "LC_ALL": "C.UTF-8"}
    command = ["man", "--warnings", "--pager=cat", "atoll-vm-create"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    for text in (
        "atoll-vm-create - create and start VMs",
        "atoll vm create [options]",
        "--memory SIZE",
        "atoll-vm(1)",
    ):
        assert text in done.stdout
