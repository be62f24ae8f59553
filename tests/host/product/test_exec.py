"""`atoll vm exec` and `atoll vm shell` on every kind of machine, as people and scripts use them."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import private_engine as engine

if TYPE_CHECKING:
    from tests.host.conftest import Cli

KINDS = ("qemu", "lxc", "docker")
PATIENCE_S = 15


@pytest.fixture(scope="module")
def engine_socket() -> Iterator[Path]:
    with engine.private_engine() as socket:
        yield socket


@pytest.fixture(scope="module")
def handy(
    engine_socket: Path, images: Path, making_cloud: Callable[[Path], AbstractContextManager[Cli]]
) -> Iterator[Cli]:
    """A cloud with a VM of each kind, and one that began as a fork."""
    with making_cloud(images) as made:
        cli = replace(made, environment={"DOCKER_HOST": f"unix://{engine_socket}"})
        cli("up")
        for kind in KINDS:
            cli.create(f"a-{kind}", "--driver", kind)
        until = time.monotonic() + 60
        while cli.create("a-fork")["started_by"] == "cold" and time.monotonic() < until:
            cli.destroy("a-fork")
        yield cli


@pytest.fixture(params=[*KINDS, "fork"])
def vm(request: pytest.FixtureRequest) -> str:
    return f"a-{request.param}"


def test_the_status_and_the_streams_of_a_command_are_those_of_atoll(handy: Cli, vm: str) -> None:
    done = handy("vm", "exec", vm, "--", "sh", "-c", "echo out; echo oops >&2; exit 3", check=False)
    assert (done.returncode, done.stdout, done.stderr) == (3, "out\n", "oops\n")
    assert handy("vm", "exec", vm, "--", "none", check=False).returncode == 127
    assert handy("vm", "exec", vm, "--", "sh", "-c", "kill -9 $$", check=False).returncode == 137
    late = handy("vm", "exec", vm, "--timeout", "0.5s", "--", "sleep", "60", check=False)
    assert (late.returncode, "did not end within 0.5 s" in late.stderr) == (124, True)


def test_what_comes_in_a_pipe_comes_out_of_another(handy: Cli, vm: str, tmp_path: Path) -> None:
    content = os.urandom(3 << 20)
    source = tmp_path / "source"
    source.write_bytes(content)
    with source.open("rb") as file:
        done = handy.start("vm", "exec", "-i", vm, "--", "cat", stdin=file, stdout=subprocess.PIPE)
        out, _ = done.communicate(timeout=PATIENCE_S)
    assert (done.returncode, out == content) == (0, True)


def test_a_fork_is_one(handy: Cli) -> None:
    assert handy.show("a-fork")["started_by"] != "cold"


def test_environment_user_and_directory(handy: Cli, vm: str) -> None:
    words = ("--env", "A=b c", "--cwd", "/tmp", "--user", "0", "--", "sh", "-c", "echo $A; pwd; id -u")
    assert handy("vm", "exec", vm, *words).stdout == "b c\n/tmp\n0\n"


class Terminal:
    """A person at a terminal who runs a command of ours."""

    def __init__(self, handy: Cli, *words: str) -> None:
        self.ours, theirs = pty.openpty()
        self.process = handy.start(
            *words,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=_take_terminal,
        )
        os.close(theirs)
        self.seen = b""

    def type(self, keys: bytes) -> None:
        os.write(self.ours, keys)

    def until(self, text: bytes) -> None:
        end = time.monotonic() + PATIENCE_S
        while text not in self.seen:
            ready, _, _ = select.select([self.ours], [], [], 0.2)
            assert time.monotonic() < end, self.seen
            if ready:
                try:
                    self.seen += os.read(self.ours, 65536)
                except OSError:
                    assert text in self.seen, self.seen


def _take_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def test_a_shell_is_one_and_its_terminal_has_our_size(handy: Cli, vm: str) -> None:
    import termios

    person = Terminal(handy, "vm", "shell", vm)
    before = termios.tcgetattr(person.ours)
    termios.tcsetwinsize(person.ours, (37, 101))
    # What is typed before the terminal is the guest's is nobody's.
    person.until(b"# ")
    person.type(b"echo $((6*7)) $0; stty size; exit 5\r")
    person.until(b"42 ")
    person.until(b"37 101")
    assert person.process.wait(PATIENCE_S) == 5
    assert termios.tcgetattr(person.ours)[3] == before[3], "the terminal is not as it was"
    os.close(person.ours)


def test_a_command_ends_with_whoever_wanted_it(handy: Cli, vm: str) -> None:
    def running() -> bool:
        return "sleep 4711" in handy("vm", "exec", vm, "--", "ps", "-o", "args").stdout

    client = handy.start("vm", "exec", vm, "--", "sleep", "4711")
    _until(running)
    client.send_signal(signal.SIGKILL)
    client.wait()
    _until(lambda: not running())


def _until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < end
        time.sleep(0.1)


def test_what_cannot_be_is_refused_with_its_reason(handy: Cli) -> None:
    assert handy.refused("vm", "exec", "a-lxc").status == 2
    handy("vm", "stop", "a-docker")
    refusal = handy.refused("vm", "exec", "a-docker", "--", "true")
    assert (refusal.status, "is stopped" in refusal.brief) == (4, True)
    handy("vm", "start", "a-docker")


# --- vm cp


def a_tree(top: Path) -> Path:
    (top / "sub").mkdir(parents=True)
    (top / "sub" / "run").write_text("#!/bin/sh\necho ran\n")
    (top / "sub" / "run").chmod(0o750)
    (top / "large").write_bytes(os.urandom(2_000_001))
    (top / "link").symlink_to("sub/run")
    (top / ("n" * 150)).write_text("long")
    os.utime(top / "large", (1_600_000_000, 1_600_000_000))
    (top / "sub").chmod(0o710)
    return top


def seen(top: Path) -> dict[str, object]:
    return {
        str(path.relative_to(top)): str(path.readlink())
        if path.is_symlink()
        else (path.stat().st_mode, int(path.stat().st_mtime), path.read_bytes() if path.is_file() else b"")
        for path in top.rglob("*")
    }


def test_a_tree_goes_into_a_guest_and_comes_back_the_same(handy: Cli, vm: str, tmp_path: Path) -> None:
    source = a_tree(tmp_path / "source")
    handy("vm", "cp", str(source), f"{vm}:/tmp/tree")
    assert handy("vm", "exec", vm, "--", "/tmp/tree/link").stdout == "ran\n"

    handy("vm", "cp", f"{vm}:/tmp/tree", str(tmp_path / "back"))
    assert seen(tmp_path / "back") == seen(source)
    (tmp_path / "into").mkdir()
    handy("vm", "cp", f"{vm}:/tmp/tree", str(tmp_path / "into"))
    assert seen(tmp_path / "into" / "tree") == seen(source)
    handy("vm", "exec", vm, "--", "rm", "-rf", "/tmp/tree")


def test_a_file_that_broke_off_goes_on_where_it_did(handy: Cli, vm: str, tmp_path: Path) -> None:
    content = os.urandom(3_000_000)
    source = tmp_path / "source"
    source.write_bytes(content)
    source.chmod(0o604)
    os.utime(source, (1_600_000_000, 1_600_000_000))
    show = ("--", "sh", "-c", "stat -c '%a %Y %s' /tmp/f; sha256sum </tmp/f; ls /tmp/f.part 2>/dev/null")

    # The beginning is there, and is no other file's.
    begun = tmp_path / "begun"
    begun.write_bytes(content[:1_234_567])
    handy("vm", "cp", str(begun), f"{vm}:/tmp/f.part")
    handy("vm", "cp", str(source), f"{vm}:/tmp/f")
    first = handy("vm", "exec", vm, *show, check=False).stdout
    begun.write_bytes(b"something else")
    handy("vm", "cp", str(begun), f"{vm}:/tmp/f.part")
    handy("vm", "cp", str(source), f"{vm}:/tmp/f")
    assert handy("vm", "exec", vm, *show, check=False).stdout == first
    assert first.startswith("604 1600000000 3000000\n")

    back = tmp_path / "back"
    for part in (content[:2_000_000], b"something else", b""):
        (tmp_path / "back.part").write_bytes(part)
        handy("vm", "cp", f"{vm}:/tmp/f", str(back))
        assert back.read_bytes() == content
        assert (back.stat().st_mode & 0o7777, int(back.stat().st_mtime)) == (0o604, 1_600_000_000)
        assert not (tmp_path / "back.part").exists()
    handy("vm", "exec", vm, "--", "rm", "/tmp/f")


def test_a_copy_of_nothing_or_between_two_here_is_refused(handy: Cli, tmp_path: Path) -> None:
    assert handy.refused("vm", "cp", "a-lxc:/none", str(tmp_path)).status == 3
    assert handy.refused("vm", "cp", str(tmp_path / "none"), "a-lxc:/tmp").status == 3
    assert handy.refused("vm", "cp", "a", "b").status == 2
    assert handy.refused("vm", "cp", "a-lxc:/etc/passwd", str(tmp_path / "no" / "such")).status != 0


# --- the end of an agent; the last, since it mends what it breaks


def test_an_agent_that_is_killed_takes_its_commands_with_it(handy: Cli) -> None:
    names = ("a-qemu", "a-lxc", "a-fork")
    clients = [handy.start("vm", "exec", name, "--", "sleep", "4712") for name in names]

    def running(name: str) -> bool:
        return "sleep 4712" in handy("vm", "exec", name, "--", "ps", "-o", "args").stdout

    for name in names:
        _until(lambda name=name: running(name))
    handy.kill_agent()
    assert all(client.wait(PATIENCE_S) == 7 for client in clients)
    handy("up")
    for name in names:
        _until(lambda name=name: not running(name))
