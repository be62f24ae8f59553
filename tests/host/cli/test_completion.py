"""The completion script in a real shell."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from atoll.cli.completion import script
from atoll.cli.main import parser_for

NOUNS = ("vm", "node", "image", "event", "ca", "completion")


@pytest.fixture
def bash_script(tmp_path: Path) -> Path:
    path = tmp_path / "atoll.bash"
    path.write_text(script("bash", parser_for(NOUNS)))
    return path


@pytest.fixture
def names(tmp_path: Path) -> Path:
    """A stand-in `atoll` that lists two VMs and counts how often it was asked."""
    command = tmp_path / "bin" / "atoll"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\nprintf "web\\ndb\\n"\n')
    command.chmod(0o755)
    return tmp_path / "asked"


def complete(path: Path, *lines: tuple[str, ...]) -> list[list[str]]:
    """What bash would offer for each command line."""
    calls = "\n".join(
        f"COMP_WORDS=(atoll {' '.join(repr(word) for word in line)}); COMP_CWORD={len(line)}; _atoll;"
        ' echo "${COMPREPLY[*]}"'
        for line in lines
    )
    home = path.parent
    environment = {
        "PATH": f"{home}/bin:{os.environ['PATH']}",
        "XDG_CACHE_HOME": f"{home}/cache",
        "HOME": str(home),
    }
    run = subprocess.run(
        ["bash", "-c", f"source {path}\n{calls}"], env=environment, capture_output=True, text=True, timeout=60
    )
    assert run.stderr == ""
    return [sorted(line.split()) for line in run.stdout.splitlines()]


def test_the_script_is_sound_bash(bash_script: Path) -> None:
    subprocess.run(["bash", "-n", bash_script], check=True)


def test_nouns_verbs_options_choices_and_files_are_offered(bash_script: Path, names: Path) -> None:
    offered = complete(
        bash_script,
        ("",),
        ("vm", "st"),
        ("--dir", "/x", "vm", "li"),
        ("vm", "list", "-o", "j"),
        ("vm", "list", "--sor"),
        ("ca", "issue", ""),
        ("vm", "create", "--machine-type", ""),
        ("vm", "create", "--user-data", "/etc/host"),
        ("vm", "create", "--name", ""),
    )
    assert offered == [
        sorted(NOUNS),
        ["start", "stop"],
        ["list"],
        ["json"],
        ["--sort"],
        ["server", "service", "user"],
        ["auto", "microvm", "q35"],
        sorted(str(path) for path in Path("/etc").glob("host*")),
        [],
    ]


def test_names_of_vms_are_asked_for_once_in_a_while(bash_script: Path, names: Path) -> None:
    assert complete(bash_script, ("vm", "stop", ""), ("vm", "show", "w"), ("vm", "stop", "--force", "d")) == [
        ["db", "web"],
        ["web"],
        ["db"],
    ]
    assert names.read_text() == "vm list -o name\n"


def test_the_command_prints_its_scripts() -> None:
    for shell in ("bash", "zsh", "fish"):
        run = subprocess.run(
            [sys.executable, "-m", "atoll.cli", "completion", shell],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert run.returncode == 0, run.stderr
        assert "atoll" in run.stdout
