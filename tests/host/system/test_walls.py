"""Walls around a program: what it sees while it starts and afterwards, and what becomes of one that cannot start."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from atoll.errors import HostFailure
from atoll.system import cgroups, landlock, libc, namespaces, processes, walls
from atoll.system.processes import Launch, Pid
from atoll.system.walls import Walls

UID = 61_500
GROUP = f"atoll-test-walls-{os.getpid()}"
needs_landlock = pytest.mark.skipif(landlock.abi() == 0, reason="this kernel has no Landlock")


@pytest.fixture
def group() -> Iterator[str]:
    cgroups.ensure(GROUP, cgroups.Limits())
    yield GROUP
    cgroups.kill_all(GROUP)
    cgroups.remove(GROUP)


@pytest.fixture
def without_landlock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landlock, "abi", lambda: 0)


def said_by(script: str, group: str, output: Path) -> str:
    """What a script says that runs behind walls to its end."""
    launch = Launch(("/bin/sh", "-c", script), uid=UID, cgroup=group, output=output, env={"PATH": "/usr/bin"})
    process = processes.identify(processes.spawn_behind(Walls(), launch))
    until(lambda: process is None or not processes.alive(process))
    return output.read_text()


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def sleeping(group: str) -> Pid:
    launch = Launch(("sleep", "60"), uid=UID, cgroup=group)
    process = processes.identify(processes.spawn_behind(Walls(), launch))
    assert process is not None
    until(lambda: Path(f"/proc/{process.pid}/comm").read_text().strip() == "sleep")
    return process


@pytest.mark.usefixtures("without_landlock")
def test_while_it_starts_a_program_sees_no_process_but_itself(group: str, tmp_path: Path) -> None:
    said = said_by("cd /proc; echo [0-9]*; cat /proc/cmdline /proc/1/cmdline", group, tmp_path / "said")
    assert len(said.splitlines()[0].split()) == 1, said
    assert said.count("No such file or directory") == 2


@pytest.mark.usefixtures("without_landlock")
def test_while_it_starts_a_program_finds_the_hosts_programs_and_can_write_nowhere(
    group: str, tmp_path: Path
) -> None:
    said = said_by("ls /; ls /home /root /var; touch /usr/made /start/made /made", group, tmp_path / "said")
    assert {"dev", "usr", "start"} < set(said.split())
    assert said.count("No such file or directory") == 3
    assert said.count("Read-only file system") + said.count("Permission denied") == 3


def test_a_program_that_has_started_is_left_with_nothing(group: str) -> None:
    process = sleeping(group)
    inside = Path(f"/proc/{process.pid}/root")
    assert (inside / "start/usr/bin").is_dir()

    for _ in range(2):
        walls.clear(process)

    assert sorted(path.name for path in (inside / "start").iterdir()) == []
    assert [path.name for path in (inside / "dev").iterdir()] == ["null"]
    assert len(Path(f"/proc/{process.pid}/mountinfo").read_text().splitlines()) == 2
    assert processes.alive(process)


def test_the_next_program_starts_though_the_root_of_the_first_is_empty(group: str) -> None:
    place = Walls()
    for _ in range(2):
        number = processes.spawn_behind(place, Launch(("sleep", "60"), uid=UID, cgroup=group))
        process = processes.identify(number)
        assert process is not None
        until(lambda process=process: Path(f"/proc/{process.pid}/comm").read_text().strip() == "sleep")  # type: ignore[misc]
        walls.clear(process)


def test_a_program_that_was_started_without_walls_keeps_the_hosts_root() -> None:
    process = processes.identify(processes.spawn_blocking(Launch(("sleep", "60"))))
    assert process is not None
    try:
        before = Path("/proc/self/mountinfo").read_text()
        walls.clear(process)
        assert Path("/proc/self/mountinfo").read_text() == before
        assert Path(f"/proc/{process.pid}/root/usr/bin").is_dir()
    finally:
        processes.send_signal(process, signal.SIGKILL)
    walls.clear(Pid(process.pid, process.started + 1))  # gone


def test_a_program_that_ends_while_its_root_is_cleared_is_gone_and_that_is_fine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unshare = libc.unshare
    with subprocess.Popen(["sleep", "60"]) as child:
        process = processes.identify(child.pid)
        assert process is not None

        def end_it_meanwhile(flags: int) -> None:
            child.kill()
            os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
            unshare(flags)

        monkeypatch.setattr(libc, "unshare", end_it_meanwhile)
        walls.clear(process)


def test_it_is_in_its_cgroup_before_it_begins_and_does_not_begin_where_it_cannot_be(tmp_path: Path) -> None:
    made = tmp_path / "said"
    launch = Launch(("/bin/sh", "-c", "echo begun"), uid=UID, cgroup="atoll-test-none/there", output=made)
    children = set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())

    with pytest.raises(HostFailure, match="into cgroup atoll-test-none/there"):
        processes.spawn_behind(Walls(), launch)

    until(lambda: set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()) <= children)
    assert made.read_text() == ""


def test_the_thread_that_starts_it_and_this_process_stay_where_they_are(group: str) -> None:
    names = ("ipc", "mnt", "net", "pid", "uts")
    before = [os.readlink(f"/proc/self/ns/{name}") for name in names]
    host_name = socket.gethostname()
    sleeping(group)
    assert [os.readlink(f"/proc/self/ns/{name}") for name in names] == before
    assert socket.gethostname() == host_name
    assert Path("/proc/self/status").read_text().count("NoNewPrivs:\t0") == 1
    assert namespaces.names() is not None
    assert Path("/etc").is_dir()


@needs_landlock
def test_landlock_leaves_programs_to_run_and_files_that_were_named_and_nothing_else(tmp_path: Path) -> None:
    named, other = tmp_path / "named", tmp_path / "other"
    for path in (named, other):
        path.write_text("content")

    def attempts(numbers: tuple[int, int]) -> list[object]:
        return [
            outcome(lambda: Path(f"/proc/self/fd/{numbers[0]}").read_text()),
            outcome(lambda: Path(f"/proc/self/fd/{numbers[1]}").read_text()),
            outcome(lambda: Path(f"/proc/self/fd/{numbers[0]}").write_text("changed")),
            outcome(lambda: Path("/proc/self/status").read_text()),
            outcome(lambda: list(Path("/proc").iterdir())),
            outcome(lambda: Path("/usr/bin/env").open("rb").close()),
            outcome(lambda: socket.create_connection(("127.0.0.1", 1), timeout=1)),
            outcome(lambda: os.kill(os.getppid(), 0)),
        ]

    with named.open() as first, other.open() as second:
        numbers = (first.fileno(), second.fileno())
        found = Walls().inside(lambda: attempts(numbers), readable=numbers[:1])

    refused = "PermissionError"
    assert found[:6] == ["content", refused, refused, refused, refused, None]
    if landlock.abi() >= 4:
        assert found[6] == refused
    if landlock.abi() >= 6:
        assert found[7] == refused
    assert (named.read_text(), other.read_text()) == ("content", "content")


def outcome(attempt: Callable[[], object]) -> object:
    try:
        return attempt()
    except OSError as error:
        return type(error).__name__
