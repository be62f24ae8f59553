"""`atoll vm console` as a process, on pipes and on a terminal."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

DEADLINE_S = 20


def test_a_script_can_pipe_commands_in(cloud: Any) -> None:
    cloud.node.make("web")
    process = cloud.start(
        "vm", "console", "web", "--linger", "0.5",
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    out, err = process.communicate(b"uptime\n", timeout=DEADLINE_S)
    assert process.returncode == 0
    assert out == b"login: <uptime\n>"
    assert b"console of web" in err


def test_a_file_can_be_sent(cloud: Any, tmp_path: Path) -> None:
    cloud.node.make("web")
    (tmp_path / "commands").write_bytes(b"id\n")
    with (tmp_path / "commands").open("rb") as commands:
        process = cloud.start("vm", "console", "web", "-q", stdin=commands, stdout=subprocess.PIPE)
        out, _ = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, out) == (0, b"login: <id\n>")


def test_the_console_of_no_vm_is_exit_status_3(cloud: Any) -> None:
    process = cloud.start(
        "vm", "console", "ghost", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 3
    assert b"atoll: no VM ghost" in err


class Terminal:
    """A terminal with a person at it."""

    def __init__(self) -> None:
        self.master, self.slave = pty.openpty()
        self.seen = b""

    def settings(self) -> list[Any]:
        return termios.tcgetattr(self.slave)

    def type(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def expect(self, text: bytes) -> None:
        deadline = time.monotonic() + DEADLINE_S
        os.set_blocking(self.master, False)
        while text not in self.seen:
            assert time.monotonic() < deadline, self.seen
            try:
                self.seen += os.read(self.master, 4096)
            except BlockingIOError:
                time.sleep(0.01)

    def close(self) -> None:
        os.close(self.master)
        os.close(self.slave)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    made = Terminal()
    yield made
    made.close()


@pytest.fixture
def session(cloud: Any, terminal: Terminal) -> Iterator[subprocess.Popen[bytes]]:
    """A console that has connected."""
    cloud.node.make("web")
    end = terminal.slave
    process = cloud.start("vm", "console", "web", stdin=end, stdout=end, stderr=end, start_new_session=True)
    try:
        terminal.expect(b"Ctrl-] leaves it")
        terminal.expect(b"login: ")
        yield process
    finally:
        process.kill()
        process.wait()


def test_every_key_goes_to_the_guest_until_the_escape(
    terminal: Terminal, session: subprocess.Popen[bytes]
) -> None:
    terminal.type(b"a")
    terminal.expect(b"<a>")
    terminal.type(b"\x03")
    terminal.expect(b"<\x03>")
    terminal.type(b"\x1d")
    terminal.expect(b"left the console of web")
    assert session.wait(DEADLINE_S) == 0


@pytest.mark.parametrize(
    ("how", "status"),
    [
        (lambda terminal, session: terminal.type(b"\x1d"), 0),
        (lambda terminal, session: session.send_signal(signal.SIGTERM), 128 + signal.SIGTERM),
        (lambda terminal, session: session.send_signal(signal.SIGINT), 130),
        (lambda terminal, session: terminal.type(b"crash\n"), 0),
    ],
    ids=["escape", "terminated", "interrupted", "ended by the guest"],
)
def test_the_terminal_is_restored_however_it_ends(cloud: Any, how: Any, status: int) -> None:
    terminal = Terminal()
    cloud.node.make("web")
    before = terminal.settings()
    process = cloud.start(
        "vm", "console", "web",
        stdin=terminal.slave, stdout=terminal.slave, stderr=terminal.slave, start_new_session=True,
    )  # fmt: skip
    try:
        terminal.expect(b"login: ")
        assert terminal.settings() != before
        how(terminal, process)
        assert process.wait(DEADLINE_S) == status
        assert terminal.settings() == before
    finally:
        process.kill()
        process.wait()
        terminal.close()
