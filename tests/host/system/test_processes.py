"""Real processes: run to their end, launched to outlive us, followed by their number."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

from atoll.errors import HostFailure, TimedOut
from atoll.system import cgroups, processes
from atoll.system.processes import Launch, Pid

GROUP = f"xsys-{os.getpid()}/processes"


@pytest.fixture
def cgroup() -> Iterator[str]:
    cgroups.ensure(GROUP, cgroups.Limits(memory_mib=256, pids=64))
    yield GROUP
    cgroups.kill_all(GROUP)
    cgroups.remove(GROUP.partition("/")[0])


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


def in_both_loops(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Runs a coroutine function in asyncio's loop and in uvloop's, with open files counted."""
    run_in(uvloop.new_event_loop, asyncio.sleep(0))  # its first loop opens files that it keeps
    before = len(os.listdir("/proc/self/fd"))
    run_in(asyncio.new_event_loop, work())
    run_in(uvloop.new_event_loop, work())
    assert len(os.listdir("/proc/self/fd")) <= before


def run_in(new_loop: Any, work: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(work)


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(500):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not happen within 5 s")


def processes_of(argument: str) -> list[str]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if argument in entry.read_bytes().decode(errors="replace"):
                found.append(entry.parent.name)
        except OSError:
            continue
    return found


def test_a_program_gets_its_input_and_gives_its_output() -> None:
    async def work() -> None:
        done = await processes.run(["sh", "-c", "tr a-z A-Z; echo aside >&2"], stdin=b"hello")
        assert (done.returncode, done.stdout, done.stderr) == (0, b"HELLO", b"aside\n")

    in_both_loops(work)


def test_more_output_than_a_pipe_holds_is_no_problem() -> None:
    async def work() -> None:
        data = bytes(3 * 1024 * 1024)
        assert (await processes.run(["cat"], stdin=data)).stdout == data

    in_both_loops(work)


async def test_a_failure_names_the_tool_its_status_and_its_last_words() -> None:
    with pytest.raises(HostFailure, match=r"^running sh: exit status 3: no such disk$"):
        await processes.run(["sh", "-c", "echo first >&2; echo no such disk >&2; exit 3"])
    with pytest.raises(HostFailure, match=r"^running sh: killed by SIGTERM: it said nothing$"):
        await processes.run(["sh", "-c", "kill -TERM $$"])


async def test_a_failure_is_returned_when_it_is_not_to_be_checked() -> None:
    assert (await processes.run(["false"], check=False)).returncode == 1


async def test_a_missing_tool_comes_with_a_hint_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(HostFailure, match="starting nft: no such program") as failure:
        await processes.run(["nft", "list"])
    assert failure.value.hint == "install it: apt-get install nftables"


async def test_a_missing_working_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(HostFailure, match="nowhere"):
        await processes.run(["true"], cwd=tmp_path / "nowhere")


def test_a_timeout_kills_the_whole_group() -> None:
    async def work() -> None:
        before = time.monotonic()
        with pytest.raises(TimedOut, match=r"^running sh: not done after 0.2 s$"):
            await processes.run(["sh", "-c", "sleep 61.25 & sleep 61.25"], timeout_s=0.2)
        assert time.monotonic() - before < 5
        await asyncio.sleep(0.05)
        assert processes_of("61.25") == []

    in_both_loops(work)


def test_a_cancellation_kills_and_collects() -> None:
    async def work() -> None:
        task = asyncio.create_task(processes.run(["sleep", "61.5"]))
        await until(lambda: bool(processes_of("61.5")))
        (pid,) = processes_of("61.5")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert processes.identify(int(pid)) is None

    in_both_loops(work)


async def test_many_at_once_do_not_mix() -> None:
    results = await asyncio.gather(*(processes.run(["echo", str(n)]) for n in range(40)))
    assert [int(done.stdout) for done in results] == list(range(40))


def test_blocking_run_does_the_same() -> None:
    assert processes.run_blocking(["cat"], stdin=b"x").stdout == b"x"
    with pytest.raises(HostFailure, match="exit status 1"):
        processes.run_blocking(["false"])
    with pytest.raises(TimedOut):
        processes.run_blocking(["sleep", "61.75"], timeout_s=0.1)
    assert processes_of("61.75") == []


def test_the_environment_is_ours_or_the_one_given() -> None:
    assert b"LC_ALL=C.UTF-8" in processes.run_blocking(["env"]).stdout
    assert processes.run_blocking(["/usr/bin/env"], env={"A": "b"}).stdout == b"A=b\n"


def test_a_launched_program_is_confined_before_it_starts(cgroup: str) -> None:
    script = "id -u; id -g; id -G; cat /proc/self/cgroup; cat /proc/self/status; ps -o sid= -p $$; echo $$"

    async def work() -> None:
        launch = Launch(("sh", "-c", script), uid=12345, gid=23456, groups=(34567,), cgroup=cgroup)
        lines = (await processes.launch(launch)).stdout.decode().splitlines()
        assert lines[:3] == ["12345", "23456", "23456 34567"]
        assert f"memory:/{cgroup}" in " ".join(lines) or f"0::/{cgroup}" in lines
        status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        assert {status[f"Cap{kind}"] for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {"0" * 16}
        assert status["NoNewPrivs"] == "1"
        assert lines[-2].strip() == lines[-1]

    in_both_loops(work)


async def test_other_groups_are_dropped(cgroup: str) -> None:
    done = await processes.launch(Launch(("id", "-G"), uid=12345, cgroup=cgroup))
    assert done.stdout == b"12345\n"


def test_a_detached_child_that_keeps_its_output_open_holds_nobody_up(cgroup: str) -> None:
    async def work() -> None:
        before = time.monotonic()
        done = await processes.launch(Launch(("sh", "-c", "echo ready >&2; sleep 60 &"), cgroup=cgroup))
        assert time.monotonic() - before < 5
        assert done.stderr == b"ready\n"
        assert len(processes.processes_in(cgroup)) == 1
        cgroups.kill_all(cgroup)

    in_both_loops(work)


async def test_a_launch_that_fails_says_why(cgroup: str) -> None:
    with pytest.raises(HostFailure, match=r"^running sh: exit status 2: bad option$"):
        await processes.launch(Launch(("sh", "-c", "echo bad option >&2; exit 2"), uid=12345, cgroup=cgroup))


async def test_a_launch_into_a_group_that_is_not_there_does_not_start_the_program(tmp_path: Path) -> None:
    with pytest.raises(HostFailure, match="exit status 125"):
        await processes.launch(Launch(("touch", str(tmp_path / "ran")), cgroup="xsys-none/none"))
    assert not (tmp_path / "ran").exists()


async def test_a_launched_program_gets_the_files_that_are_passed(tmp_path: Path, cgroup: str) -> None:
    (tmp_path / "secret").write_text("open already")
    descriptor = os.open(tmp_path / "secret", os.O_RDONLY)
    try:
        launch = Launch(("cat", f"/dev/fd/{descriptor}"), cgroup=cgroup, pass_fds=(descriptor,))
        assert (await processes.launch(launch)).stdout == b"open already"
    finally:
        os.close(descriptor)


async def test_output_is_appended_to_a_file_that_only_root_reads(tmp_path: Path) -> None:
    log = tmp_path / "log"
    for word in ("one", "two"):
        done = await processes.launch(Launch(("sh", "-c", f"echo {word}; echo aside >&2"), output=log))
        assert (done.stdout, done.stderr) == (b"", b"aside\n")
    assert log.read_text() == "one\ntwo\n"
    assert log.stat().st_mode & 0o777 == 0o600


async def test_a_spawned_program_runs_on_in_its_own_session(tmp_path: Path) -> None:
    log = tmp_path / "log"
    pid = processes.spawn_blocking(Launch(("sh", "-c", "echo up; exec sleep 60"), output=log))
    process = processes.identify(pid)
    assert process is not None
    try:
        assert os.getsid(pid) == pid != os.getsid(0)
        await until(lambda: log.read_text() == "up\n")
    finally:
        processes.send_signal(process, signal.SIGKILL)
    assert await processes.wait_gone(process, 5)


async def test_many_children_are_collected_by_one_thread() -> None:
    threads = threading.active_count()
    descriptors = len(os.listdir("/proc/self/fd"))
    spawned = [processes.spawn_blocking(Launch(("sleep", "60"))) for _ in range(20)]
    assert threading.active_count() <= threads + 1
    for pid in spawned:
        os.kill(pid, signal.SIGKILL)
    # A child that was not collected would still have its number, as a zombie.
    await until(lambda: not any(processes.identify(pid) for pid in spawned))
    await until(lambda: len(os.listdir("/proc/self/fd")) <= descriptors + 1)  # the reaper's own


def test_a_process_is_known_by_its_number_and_its_start(sleeper: subprocess.Popen[bytes]) -> None:
    process = processes.identify(sleeper.pid)
    assert process is not None
    assert processes.alive(process)
    assert not processes.alive(Pid(process.pid, process.started + 1))


def test_a_number_that_was_reused_is_not_signalled(sleeper: subprocess.Popen[bytes]) -> None:
    process = processes.identify(sleeper.pid)
    assert process is not None
    processes.send_signal(Pid(process.pid, process.started - 1), signal.SIGKILL)
    with pytest.raises(subprocess.TimeoutExpired):
        sleeper.wait(0.1)


def test_a_zombie_is_not_alive_and_signalling_it_is_fine(sleeper: subprocess.Popen[bytes]) -> None:
    process = processes.identify(sleeper.pid)
    assert process is not None
    processes.send_signal(process, signal.SIGKILL)
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert not processes.alive(process)
    processes.send_signal(process, signal.SIGTERM)
    sleeper.wait()
    assert processes.identify(sleeper.pid) is None
    processes.send_signal(process, signal.SIGTERM)


def test_a_name_with_parentheses_does_not_confuse_the_start_time(tmp_path: Path) -> None:
    program = tmp_path / "a) R (b"
    program.write_bytes(Path("/bin/sleep").read_bytes())
    program.chmod(0o755)
    with subprocess.Popen([program, "60"]) as process:
        try:
            seen = processes.identify(process.pid)
            assert seen is not None
            assert seen.started > 0
            assert processes.alive(seen)
        finally:
            process.kill()


def test_the_end_of_a_process_that_is_not_our_child_is_seen(cgroup: str) -> None:
    async def work() -> None:
        await processes.launch(Launch(("sh", "-c", "sleep 60 &"), cgroup=cgroup))
        (pid,) = processes.processes_in(cgroup)
        process = processes.identify(pid)
        assert process is not None
        assert not await processes.wait_gone(process, 0.05)
        calls: list[str] = []
        processes.on_gone(process, lambda: calls.append("kept"))
        processes.on_gone(process, lambda: calls.append("cancelled"))()
        processes.send_signal(process, signal.SIGKILL)
        assert await processes.wait_gone(process, 5)
        processes.on_gone(process, lambda: calls.append("late"))
        await asyncio.sleep(0.01)
        assert calls == ["kept", "late"]

    in_both_loops(work)


def test_of_a_program_that_talks_without_end_the_beginning_is_kept() -> None:
    async def work() -> None:
        loud = ("/bin/sh", "-c", "cat; head -c 30000000 /dev/zero; echo end >&2; exit 3")
        status, said = await processes.feed(Launch(loud), b"hello", timeout_s=30, keep_bytes=100)
        assert (status, said) == (3, b"hello" + bytes(95))

    in_both_loops(work)


def test_a_program_that_leaves_a_child_behind_is_not_waited_for_any_longer() -> None:
    async def work() -> None:
        leaving = ("/bin/sh", "-c", "sleep 5 & echo $!")
        began = time.monotonic()
        status, said = await processes.feed(Launch(leaving), b"", timeout_s=30, keep_bytes=100)
        assert time.monotonic() - began < 4
        assert status == 0
        os.kill(int(said), signal.SIGKILL)

    in_both_loops(work)


def test_a_program_that_takes_too_long_is_killed_with_its_children() -> None:
    async def work() -> None:
        with pytest.raises(TimedOut):
            await processes.feed(
                Launch(("/bin/sh", "-c", "sleep 61 | cat")), b"", timeout_s=0.3, keep_bytes=100
            )

    in_both_loops(work)
