"""The writer's order, groups and failures. How long a disk takes is of no matter here."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from atoll.errors import HostFailure
from atoll.system import files, steps
from atoll.system.line_log import LineLog
from atoll.system.spares import COUNT, SIZE, Spares
from atoll.system.writer import TOGETHER, WAITING, Writer


@pytest.fixture
async def writer() -> AsyncIterator[Writer]:
    writer = Writer()
    yield writer
    await writer.close()


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    steps.arm("")


class Held:
    """A writer whose thread is busy until it is let go."""

    def __init__(self, writer: Writer) -> None:
        self._begun, self._gate = threading.Event(), threading.Event()
        self._busy = asyncio.ensure_future(writer.run(self._wait))

    def _wait(self) -> None:
        self._begun.set()
        assert self._gate.wait(10)

    async def release(self) -> None:
        self._gate.set()
        await self._busy


async def hold(writer: Writer) -> Held:
    held = Held(writer)
    while not held._begun.is_set():
        await asyncio.sleep(0)
    return held


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_what_was_written_is_there_with_its_mode_and_nothing_else_is(writer: Writer, tmp_path: Path):
    await writer.write(tmp_path / "one", b"1")
    await writer.write(tmp_path / "one", b"2", 0o644)
    assert (tmp_path / "one").read_bytes() == b"2"
    assert (tmp_path / "one").stat().st_mode & 0o777 == 0o644
    assert os.listdir(tmp_path) == ["one"]


async def test_what_gathers_while_the_disk_is_busy_is_written_as_one_group(
    writer: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    groups: list[int] = []
    together = files.write_together

    def counted(writes: list[files.Write], spares: Spares | None) -> list[HostFailure | None]:
        groups.append(len(writes))
        return together(writes, spares)

    monkeypatch.setattr(files, "write_together", counted)
    held = await hold(writer)
    writes = [asyncio.ensure_future(writer.write(tmp_path / f"{n}", b"x")) for n in range(TOGETHER + 5)]
    await settle()
    await held.release()
    await asyncio.gather(*writes)
    assert sum(groups) == TOGETHER + 5
    assert groups[0] == TOGETHER


async def test_each_directory_is_synchronised_once_for_a_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    synced: list[Path] = []
    monkeypatch.setattr(files, "sync_dir", synced.append)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    writes = [files.Write(tmp_path / name / f"{n}", b"x") for name in ("a", "b") for n in range(10)]
    assert files.write_together(writes) == [None] * 20
    assert synced == [tmp_path / "a", tmp_path / "b"]


async def test_the_last_write_of_a_file_is_the_one_that_stays(writer: Writer, tmp_path: Path):
    held = await hold(writer)
    writes = [asyncio.ensure_future(writer.write(tmp_path / "one", b"%d" % n)) for n in range(150)]
    await settle()
    await held.release()
    await asyncio.gather(*writes)
    assert (tmp_path / "one").read_bytes() == b"149"


async def test_a_failure_is_told_to_its_own_caller_and_to_nobody_else(writer: Writer, tmp_path: Path):
    (tmp_path / "directory").mkdir()
    paths = [tmp_path / "one", tmp_path / "gone" / "x", tmp_path / "directory", tmp_path / "two"]
    held = await hold(writer)
    writes = [asyncio.ensure_future(writer.write(path, b"x")) for path in paths]
    await settle()
    await held.release()
    done = await asyncio.gather(*writes, return_exceptions=True)
    assert [type(result) for result in done] == [type(None), HostFailure, HostFailure, type(None)]
    assert f"writing {tmp_path / 'gone' / 'x'}: No such file" in str(done[1])
    assert sorted(os.listdir(tmp_path)) == ["directory", "one", "two"]


async def test_a_directory_that_cannot_be_synchronised_fails_the_writes_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def refuse(path: Path) -> None:
        if path.name == "bad":
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(files, "sync_dir", refuse)
    for name in ("bad", "good"):
        (tmp_path / name).mkdir()
    writes = [files.Write(tmp_path / name / "x", b"x") for name in ("bad", "good", "bad")]
    failures = files.write_together(writes)
    assert [failure is not None for failure in failures] == [True, False, True]


@pytest.mark.parametrize("nth", [1, 2, 3])
@pytest.mark.parametrize("step", ["write.begin", "write.written", "write.renamed"])
async def test_a_fault_strikes_the_write_whose_number_it_has_however_they_gather(
    writer: Writer, tmp_path: Path, step: str, nth: int
):
    steps.arm(f"{step}:{nth}:ENOSPC")
    held = await hold(writer)
    writes = [asyncio.ensure_future(writer.write(tmp_path / f"{n}", b"x")) for n in (1, 2, 3)]
    await settle()
    await held.release()
    done = await asyncio.gather(*writes, return_exceptions=True)
    assert [isinstance(result, HostFailure) for result in done] == [n == nth for n in (1, 2, 3)]
    there = {1, 2, 3} if step == "write.renamed" else {1, 2, 3} - {nth}
    assert {int(name) for name in os.listdir(tmp_path)} == there


async def test_work_that_is_run_comes_after_what_was_given_before_and_before_the_rest(
    writer: Writer, tmp_path: Path
):
    held = await hold(writer)
    first = asyncio.ensure_future(writer.write(tmp_path / "one", b"1"))
    seen = asyncio.ensure_future(writer.run(os.listdir, tmp_path))
    second = asyncio.ensure_future(writer.write(tmp_path / "two", b"2"))
    await settle()
    await held.release()
    await asyncio.gather(first, second)
    assert await seen == ["one"]


async def test_an_error_of_what_is_run_is_its_callers(writer: Writer, tmp_path: Path):
    with pytest.raises(FileNotFoundError):
        await writer.run(os.unlink, tmp_path / "none")
    await writer.write(tmp_path / "one", b"1")


async def test_the_write_of_a_caller_that_is_cancelled_happens_in_its_place(writer: Writer, tmp_path: Path):
    held = await hold(writer)
    first = asyncio.ensure_future(writer.write(tmp_path / "one", b"1"))
    await settle()
    first.cancel()
    second = asyncio.ensure_future(writer.run((tmp_path / "one").read_bytes))
    await settle()
    await held.release()
    assert await second == b"1"
    assert first.cancelled()


async def test_callers_wait_for_their_turn_when_too_much_is_given(writer: Writer, tmp_path: Path):
    held = await hold(writer)
    writes = [asyncio.ensure_future(writer.write(tmp_path / f"{n}", b"x")) for n in range(WAITING + 10)]
    await settle()
    assert writer._queue.qsize() < WAITING
    writes[-1].cancel()
    await held.release()
    done = await asyncio.gather(*writes, return_exceptions=True)
    assert sum(result is None for result in done) == WAITING + 9
    # One that had not given yet has given nothing.
    assert len(os.listdir(tmp_path)) == WAITING + 9


async def test_closing_finishes_what_was_given_and_refuses_the_rest(tmp_path: Path):
    writer = Writer()
    held = await hold(writer)
    write = asyncio.ensure_future(writer.write(tmp_path / "one", b"1"))
    await settle()
    closing = asyncio.ensure_future(writer.close())
    await settle()
    await held.release()
    await closing
    await write
    assert (tmp_path / "one").exists()
    with pytest.raises(HostFailure, match="the agent is ending"):
        await writer.write(tmp_path / "two", b"2")
    await writer.close()


async def test_lines_and_files_are_written_together_and_each_has_its_own_fate(writer: Writer, tmp_path: Path):
    log, broken = LineLog(tmp_path / "log", 1 << 20, 1), LineLog(tmp_path, 1 << 20, 1)
    held = await hold(writer)
    works = [
        asyncio.ensure_future(work)
        for n in range(5)
        for work in (
            writer.append(log, b"%d" % n),
            writer.write(tmp_path / f"{n}", b""),
            writer.append(broken, b""),
        )
    ]
    await settle()
    await held.release()
    done = await asyncio.gather(*works, return_exceptions=True)
    assert [isinstance(result, HostFailure) for result in done] == [False, False, True] * 5
    assert (tmp_path / "log").read_bytes() == b"0\n1\n2\n3\n4\n"


# --- logs of lines


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.binary(max_size=30).map(lambda line: line.replace(b"\n", b"")), min_size=1, max_size=6),
    st.integers(0, 200),
)
def test_a_disk_that_fills_up_leaves_whole_lines_and_says_which(
    tmp_path: Path, lines: list[bytes], room: int
):
    path = tmp_path / "log"
    path.unlink(missing_ok=True)
    path.write_bytes(b"first\n")
    with pytest.MonkeyPatch.context() as patch:
        write = os.write

        def fill(descriptor: int, data: bytes) -> int:
            left = 6 + room - os.fstat(descriptor).st_size
            if left <= 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return write(descriptor, data[:left])

        patch.setattr(os, "write", fill)
        failures = LineLog(path, 1 << 20, 1).append(lines)
    kept = [line for line, failure in zip(lines, failures, strict=True) if failure is None]
    assert path.read_bytes() == b"".join(line + b"\n" for line in (b"first", *kept))
    if sum(len(line) + 1 for line in lines) <= room:
        assert kept == lines


@pytest.mark.parametrize("torn", [b"", b"half", b"x" * 200_000])
@pytest.mark.parametrize("before", [b"", b"one\n"])
def test_half_a_line_that_a_crash_left_goes_with_the_next_one(tmp_path: Path, before: bytes, torn: bytes):
    (tmp_path / "log").write_bytes(before + torn)
    assert LineLog(tmp_path / "log", 1 << 20, 1).append([b"two"]) == [None]
    assert (tmp_path / "log").read_bytes() == before + b"two\n"


def test_a_log_that_cannot_be_cut_back_is_mended_by_the_next_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    log = LineLog(tmp_path / "log", 1 << 20, 1)
    log.append([b"one"])

    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", refuse)
        patch.setattr(os, "ftruncate", refuse)
        patch.setattr(files, "write_whole", lambda descriptor, data: os.write(descriptor, data[:2]))
        (failure,) = log.append([b"two"])
    assert failure is not None
    log.append([b"three"])
    assert (tmp_path / "log").read_bytes() == b"one\nthree\n"


@pytest.fixture
async def provident(tmp_path: Path) -> AsyncIterator[Writer]:
    """A writer with room set aside."""
    spares = Spares(tmp_path / "spares")
    writer = Writer(spares)
    await writer.run(spares.fill)
    yield writer
    await writer.close()


def set_aside(tmp_path: Path) -> int:
    return sum(path.stat().st_size == SIZE for path in (tmp_path / "spares").iterdir())


async def test_on_a_full_disk_what_is_there_is_replaced_with_room_that_was_set_aside(
    provident: Writer, tmp_path: Path
) -> None:
    record = tmp_path / "record"
    await provident.write(record, b"old", 0o640)
    for number in range(2 * COUNT):
        steps.arm("write.begin:1:ENOSPC")
        await provident.write(record, b"new %d" % number, 0o640)
        assert (record.read_bytes(), record.stat().st_mode & 0o777) == (b"new %d" % number, 0o640)
    # What was replaced makes room for the next.
    assert set_aside(tmp_path) == COUNT
    assert {path.name for path in tmp_path.iterdir()} == {"record", "spares"}


async def test_on_a_full_disk_nothing_new_is_made_and_nothing_larger_than_what_was_set_aside(
    provident: Writer, tmp_path: Path
) -> None:
    record = tmp_path / "record"
    await provident.write(record, b"old")
    for path, size in ((tmp_path / "another", 1), (record, SIZE + 1)):
        steps.arm("write.begin:1:ENOSPC")
        with pytest.raises(HostFailure, match="No space left on device"):
            await provident.write(path, bytes(size))
    assert record.read_bytes() == b"old"
    assert set_aside(tmp_path) == COUNT


async def test_room_that_cannot_be_set_aside_is_missed_when_it_is_needed_and_not_before(
    tmp_path: Path,
) -> None:
    (tmp_path / "spares").touch()
    spares = Spares(tmp_path / "spares")
    writer = Writer(spares)
    await writer.run(spares.fill)
    await writer.write(tmp_path / "record", b"old")
    steps.arm("write.begin:1:ENOSPC")
    with pytest.raises(HostFailure, match="No space left on device"):
        await writer.write(tmp_path / "record", b"new")
    assert (tmp_path / "record").read_bytes() == b"old"
    await writer.close()


async def test_room_that_an_agent_was_killed_with_is_set_aside_anew(tmp_path: Path) -> None:
    Spares(tmp_path / "spares").fill()
    (tmp_path / "spares" / "3").write_bytes(b"half a record")
    Spares(tmp_path / "spares").fill()
    assert set_aside(tmp_path) == COUNT
