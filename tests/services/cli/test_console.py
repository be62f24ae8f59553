"""`atoll vm console` as a process, on pipes and on a terminal."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from atoll.api import hypervisor as api

DEADLINE_S = 60


def test_a_script_can_pipe_commands_in(cloud: Any) -> None:
    cloud.node.make("web")
    process = cloud.start(
        "vm", "console", "web", "--linger", "3s",
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    out, err = process.communicate(b"uptime\n", timeout=DEADLINE_S)
    assert process.returncode == 0
    assert out == b"login: <uptime\n>"
    assert b"console of web" in err


def test_a_file_can_be_sent(cloud: Any, tmp_path: Path) -> None:
    cloud.node.make("web")
    (tmp_path / "commands").write_bytes(b"bye\n")
    with (tmp_path / "commands").open("rb") as commands:
        process = cloud.start(
            "vm", "console", "web", "-q", "--linger", "60s", stdin=commands, stdout=subprocess.PIPE
        )
        out, _ = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, out) == (0, b"login: <bye\n>")


def test_the_console_of_no_vm_is_exit_status_3(cloud: Any) -> None:
    process = cloud.start(
        "vm", "console", "ghost", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 3
    assert b"atoll: no VM ghost" in err


def test_a_script_gets_no_history_unless_it_asks(cloud: Any) -> None:
    cloud.node.make("web")
    for option, seen in ((), b"login: <bye\n>"), (("--history",), b"booting\r\nlogin: <bye\n>"):
        process = cloud.start(
            "vm", "console", "web", "--linger", "60s", *option, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert process.communicate(b"bye\n", timeout=DEADLINE_S)[0] == seen


def test_a_script_that_cannot_type_fails_and_says_who_can(cloud: Any) -> None:
    cloud.node.make("web")
    cloud.node.writer = "eve"
    process = cloud.start(
        "vm", "console", "web", stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    out, err = process.communicate(b"reboot\n", timeout=DEADLINE_S)
    assert (process.returncode, out) == (4, b"")
    assert b"eve has the keyboard" in err
    assert b"--take" in err


def test_a_script_can_take_the_keyboard(cloud: Any) -> None:
    cloud.node.make("web")
    cloud.node.writer = "eve"
    process = cloud.start(
        "vm", "console", "web", "--take", "--linger", "60s", stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.communicate(b"bye\n", timeout=DEADLINE_S)[0] == b"login: <bye\n>"
    assert cloud.node.attached[0].take


def test_one_who_watches_sends_nothing_and_stays_until_the_end(cloud: Any) -> None:
    cloud.node.make("web")
    process = cloud.start(
        "vm",
        "console",
        "web",
        "--watch",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        process.stdin.write(b"crash\n")
        process.stdin.close()
        assert process.stdout.read(len(b"booting\r\nlogin: ")) == b"booting\r\nlogin: "
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 128 + signal.SIGTERM
        assert cloud.node.attached == [api.Attach(watch=True)]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


def test_to_watch_and_to_take_is_a_usage_error(cloud: Any) -> None:
    process = cloud.start("vm", "console", "web", "--watch", "--take", stderr=subprocess.PIPE)
    _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 2
    assert b"not allowed with" in err


class Terminal:
    """A terminal with a person at it."""

    def __init__(self) -> None:
        self.master, self.slave = pty.openpty()
        self.seen = b""

    def settings(self) -> list[Any]:
        return termios.tcgetattr(self.slave)

    def type(self, keys: bytes) -> None:
        os.set_blocking(self.master, False)
        while keys:
            assert select.select([], [self.master], [], DEADLINE_S)[1]
            keys = keys[os.write(self.master, keys) :]

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


@contextmanager
def opened(cloud: Any, terminal: Terminal, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """A console on a terminal, connected."""
    cloud.node.make("web")
    end = terminal.slave
    process = cloud.start(
        "vm", "console", "web", *options, stdin=end, stdout=end, stderr=end, start_new_session=True
    )
    try:
        terminal.expect(b"Ctrl-] leaves it")
        terminal.expect(b"login: ")
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def session(cloud: Any, terminal: Terminal) -> Iterator[subprocess.Popen[bytes]]:
    """A console that has connected."""
    with opened(cloud, terminal) as process:
        yield process


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


def test_on_a_terminal_the_history_comes_first_and_asks_the_terminal_nothing(
    cloud: Any, terminal: Terminal
) -> None:
    cloud.node.history = b"~ # \x1b[6nls\r\n\x1b[1mbold\r\n"
    with opened(cloud, terminal):
        assert b"~ # ls\r\n\x1b[1mbold\r\nlogin: " in terminal.seen


def test_one_who_comes_second_is_told_who_types(cloud: Any, terminal: Terminal) -> None:
    cloud.node.writer = "eve"
    with opened(cloud, terminal):
        assert b"[eve has the keyboard, you look on; --take takes it]" in terminal.seen


def test_one_who_loses_the_keyboard_is_told(terminal: Terminal, session: subprocess.Popen[bytes]) -> None:
    terminal.type(b"lose\n")
    terminal.expect(b"[eve has the keyboard")


def test_one_who_watches_types_nothing_and_leaves_with_the_escape_or_control_c(
    cloud: Any, terminal: Terminal
) -> None:
    for key in (b"\x1d", b"\x03"):
        with opened(cloud, terminal, "--watch") as process:
            terminal.type(b"crash\n" + key)
            terminal.expect(b"left the console of web")
            assert process.wait(DEADLINE_S) == 0
            terminal.seen = b""


def test_what_the_guest_changed_in_the_terminal_is_taken_back(cloud: Any, terminal: Terminal) -> None:
    cloud.node.history = b"\x1b[?1049h\x1b[?2004h\x1b[?25leditor"
    with opened(cloud, terminal) as process:
        terminal.type(b"\x1d")
        terminal.expect(b"left the console of web")
        assert process.wait(DEADLINE_S) == 0
    end = terminal.seen.partition(b"login: ")[2]
    for sequence in (b"\x1b[?1049l", b"\x1b[?2004l", b"\x1b[?25h", b"\x1b[0m"):
        assert sequence in end


def test_a_terminal_that_goes_ends_the_console_without_a_complaint(cloud: Any) -> None:
    cloud.node.make("web")
    master, slave = pty.openpty()
    process = cloud.start(
        "vm", "console", "web",
        stdin=slave, stdout=slave, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    os.close(slave)
    terminal_text = b""
    while b"login: " not in terminal_text:
        terminal_text += os.read(master, 4096)
    os.close(master)
    assert process.communicate(timeout=DEADLINE_S)[1].endswith(b"left the console of web\n")
    assert process.returncode == 0
