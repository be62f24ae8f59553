"""Completion in the real shells, on a terminal, as somebody types who presses Tab."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from atoll.cli.completion import SCRIPTS
from atoll.cli.completion_names import ASK_S
from atoll.model.network import Subnet
from atoll.model.node import Pool
from terminals import opened, until

START = {
    "bash": ["bash", "--norc", "--noprofile", "-i"],
    "zsh": ["zsh", "-f", "-i"],
    "fish": ["fish", "--no-config", "-i"],
}
PREPARE = {
    "bash": "bind 'set show-all-if-ambiguous on'; bind 'set enable-bracketed-paste off'; PS1='> '; source {script}",
    "zsh": "unsetopt zle_bracketed_paste; PS1='> '; autoload -U compinit; compinit -u -d {home}/dump; source {script}",
    "fish": "function fish_prompt; echo '> '; end; source {script}",
}
# What is completed is not run: this says what it would have been.
STAND_IN = """#!/bin/sh
if [ "$1" = __complete ]; then echo asked >>{home}/asked; exec {python} -m atoll.cli "$@"; fi
echo "RUN[$*]"
"""


class Shell:
    """One that is typed to."""

    def __init__(self, name: str, master: int, home: Path) -> None:
        self.name = name
        self.home = home
        self._master = master

    def run(self, line: str) -> str:
        """The arguments that the command gets of what was typed, Tab by Tab."""
        seen = self.type(f"{line}\r", b"RUN[")
        return until(self._master, b"]", seen.split(b"RUN[", 1)[1]).split(b"]")[0].decode()

    def type(self, text: str, awaited: bytes) -> bytes:
        os.write(self._master, text.encode())
        return until(self._master, awaited)


@contextmanager
def started(name: str, home: Path, environment: dict[str, str]) -> Iterator[Shell]:
    script = home / f"atoll.{name}"
    script.write_text(SCRIPTS[name])
    master, slave = opened(100)
    settings = environment | {
        "PATH": f"{home}/bin:{os.environ['PATH']}",
        "HOME": str(home),
        "TERM": "dumb" if name == "fish" else "xterm",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    process = subprocess.Popen(
        ["setsid", "--ctty", *START[name]], stdin=slave, stdout=slave, stderr=slave, env=settings, cwd=home
    )
    os.close(slave)
    try:
        shell = Shell(name, master, home)
        shell.type(PREPARE[name].format(script=script, home=home) + "; echo rea''dy\r", b"ready")
        yield shell
    finally:
        process.kill()
        process.wait()
        os.close(master)


@pytest.fixture(params=["bash", "zsh", "fish"])
def shell(request: pytest.FixtureRequest, cloud: Any, tmp_path: Path) -> Iterator[Shell]:
    name: str = request.param
    if shutil.which(name) is None:
        pytest.skip(f"there is no {name}: apt-get install {name}")
    cloud.node.make("web", tags={"tier": "front"})
    cloud.node.make("database")
    cloud.node.pools.append(Pool(Subnet("lan", "10.9.0.0/24", "10.9.0.1"), (), 0))
    home = tmp_path / "home"
    (home / "bin").mkdir(parents=True)
    (home / "keys").mkdir()
    (home / "keys" / "mine.pub").write_text("k")
    program = home / "bin" / "atoll"
    program.write_text(STAND_IN.format(home=home, python=sys.executable))
    program.chmod(0o755)
    with started(name, home, cloud.environment) as shell:
        yield shell


LINES = [
    ("atoll vm sho\tw\t", "vm show web"),
    ("atoll vm stop web dat\t", "vm stop web database"),
    ("atoll vm create --ima\tappl\t", "vm create --image appliance"),
    ("atoll vm create --image=appl\t", "vm create --image=appliance"),
    ("atoll vm create --subnet l\t", "vm create --subnet lan"),
    ("atoll vm list --state runn\t", "vm list --state running"),
    ("atoll vm list --kind qe\t", "vm list --kind qemu"),
    ("atoll vm list -c name,own\t", "vm list -c name,owners"),
    ("atoll vm list --tag ti\t", "vm list --tag tier=front"),
    ("atoll vm create --ssh-key key\tmi\t", "vm create --ssh-key keys/mine.pub"),
    ("atoll vm cp keys/mi\tdata\t/tmp", "vm cp keys/mine.pub database:/tmp"),
    ("atoll --dir $ATOLL_DIR vm show w\t", None),
]


def test_what_is_typed_in_part_is_completed(shell: Shell) -> None:
    found = {typed: shell.run(typed) for typed, _ in LINES}
    wanted = {typed: run for typed, run in LINES if run is not None}
    assert {typed: found[typed].strip() for typed in wanted} == wanted
    assert found[LINES[-1][0]].strip().endswith("vm show web")


def test_where_there_are_several_all_are_shown(shell: Shell) -> None:
    # fish draws its list only on a terminal that can do more than this one; it can be asked for it.
    line = "atoll vm start --wait-for "
    shell.type(f"complete -C '{line}'\r" if shell.name == "fish" else f"{line}\t", b"dhcp")


@pytest.mark.parametrize("shell", ["bash"], indirect=True)
def test_the_node_is_asked_once_in_a_while(shell: Shell, cloud: Any) -> None:
    assert shell.run("atoll vm show w\t").strip() == "vm show web"
    cloud.node.make("weather")
    assert shell.run("atoll vm show we\t").strip() == "vm show web"
    kept = Path(cloud.environment["XDG_CACHE_HOME"]) / "atoll" / "completion.json"
    assert (kept.stat().st_mode & 0o777, kept.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    os.utime(kept, (0, 0))
    assert shell.run("atoll vm show wea\t").strip() == "vm show weather"


def test_where_nobody_answers_nothing_is_offered_nothing_is_said_and_nobody_waits(
    shell: Shell, cloud: Any
) -> None:
    # A port that takes connections and says nothing.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        began = time.monotonic()
        assert shell.run(f"atoll --node 127.0.0.1:{port} vm show w\t") == f"--node 127.0.0.1:{port} vm show w"
        assert time.monotonic() - began < ASK_S + 10
        # That nobody answered is remembered too.
        assert shell.run(f"atoll --node 127.0.0.1:{port} vm show w\t") == f"--node 127.0.0.1:{port} vm show w"
    assert shell.run("atoll --dir /nonexistent vm show w\t") == "--dir /nonexistent vm show w"
    assert shell.run("atoll nonsense w\t") == "nonsense w"


def test_the_command_prints_the_scripts(atoll: Any) -> None:
    for name, script in SCRIPTS.items():
        assert atoll("completion", name).out == script


def test_the_scripts_are_sound(tmp_path: Path) -> None:
    for name, script in SCRIPTS.items():
        if shutil.which(name):
            path = tmp_path / name
            path.write_text(script)
            subprocess.run([name, "-n", path], check=True)
