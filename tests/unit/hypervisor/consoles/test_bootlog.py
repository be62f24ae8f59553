from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from atoll.hypervisor.consoles import bootlog
from atoll.hypervisor.consoles.bootlog import BootLogs, Tail, trim
from atoll.system import sparse

BLOCK = sparse.BLOCK


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootlog, "LARGEST", 10 * BLOCK)
    monkeypatch.setattr(bootlog, "KEPT", 2 * BLOCK)
    monkeypatch.setattr(bootlog, "CHUNK", 1000)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "console.log"


def lines(first: int, last: int) -> bytes:
    """Lines of 16 bytes, each another."""
    return b"".join(b"line %09d\r\n" % number for number in range(first, last))


async def text_of(log: Path) -> bytes:
    return (await part_of(log))[1]


async def part_of(log: Path, offset: int | None = None) -> tuple[int, bytes]:
    part = await BootLogs(lambda ip: log.parent).read("10.1.0.5", offset)
    return part.offset, b"".join([chunk async for chunk in part.chunks])


def drained(tail: Tail) -> bytes:
    return b"".join(iter(tail.read, b""))


async def test_a_log_is_read_whole(log: Path):
    log.write_bytes(lines(0, 500))
    assert await text_of(log) == lines(0, 500)


async def test_a_machine_that_has_not_written_yet_has_an_empty_log(log: Path):
    assert await text_of(log) == b""


def test_a_log_that_is_small_enough_stays(log: Path):
    log.write_bytes(b"x" * 10 * BLOCK)
    trim(log)
    assert log.read_bytes() == b"x" * 10 * BLOCK


async def test_of_a_log_that_is_too_large_the_end_stays_and_the_machine_goes_on_after_it(log: Path):
    with log.open("ab", buffering=0) as machine:
        machine.write(lines(0, 5000))
        before = log.stat()
        trim(log)
        machine.write(lines(5000, 5001))
    assert log.stat().st_blocks < before.st_blocks
    kept = await text_of(log)
    assert kept == lines(5001 - len(kept) // 16, 5001)
    assert 2 * BLOCK <= len(kept) <= 3 * BLOCK


async def test_a_log_is_trimmed_again_and_again(log: Path):
    with log.open("ab", buffering=0) as machine:
        for start in range(0, 50_000, 500):
            machine.write(lines(start, start + 500))
            trim(log)
    assert log.stat().st_blocks * 512 <= 13 * BLOCK
    kept = await text_of(log)
    assert kept == lines(50_000 - len(kept) // 16, 50_000)


async def test_where_no_front_can_be_given_back_the_end_is_kept_all_the_same(
    log: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sparse, "release", lambda descriptor, length: False)
    with log.open("ab", buffering=0) as machine:
        machine.write(lines(0, 5000))
        with Tail(log, history=False) as tail:
            trim(log)
            machine.write(lines(5000, 5001))
            assert log.read_bytes() == lines(5000 - 2 * BLOCK // 16, 5001)
            assert drained(tail) == lines(5000, 5001)
            machine.write(lines(5001, 5002))
            assert drained(tail) == lines(5001, 5002)
    assert await part_of(log, 16 * 4999) == (16 * 4999, lines(4999, 5002))
    assert await part_of(log, 0) == (16 * 5000 - 2 * BLOCK, lines(5000 - 2 * BLOCK // 16, 5002))


async def test_a_log_that_has_come_too_far_is_begun_anew_at_its_place(
    log: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(bootlog, "FURTHEST", 20 * BLOCK)
    with log.open("ab", buffering=0) as machine:
        for start in range(0, 50_000, 500):
            machine.write(lines(start, start + 500))
            trim(log)
    assert log.stat().st_size < 40 * BLOCK
    assert await part_of(log, 16 * 49_990) == (16 * 49_990, lines(49_990, 50_000))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 1500), st.booleans(), st.booleans()), max_size=12), st.booleans())
async def test_who_asks_by_place_gets_each_byte_once_and_is_told_of_every_gap(
    log: Path, turns: list[tuple[int, bool, bool]], holes: bool
):
    """Whatever is written, trimmed and asked for in whichever order, and however the log is trimmed."""
    for path in (log, log.with_name("console.offset")):
        path.unlink(missing_ok=True)
    written, at = b"", 0
    with pytest.MonkeyPatch.context() as patch, log.open("ab", buffering=0) as machine:
        if not holes:
            patch.setattr(sparse, "release", lambda descriptor, length: False)
        for count, trims, asks in turns:
            new = lines(len(written) // 16, len(written) // 16 + count)
            machine.write(new)
            written += new
            if trims:
                trim(log)
            if asks:
                begin, data = await part_of(log, at)
                assert begin >= at
                assert data == written[begin:]
                assert begin == at or len(written) - begin >= 2 * BLOCK - 16
                at = begin + len(data)


async def test_a_place_that_was_never_reached_is_answered_with_the_end(log: Path):
    log.write_bytes(lines(0, 5))
    assert await part_of(log, 1000) == (80, b"")


async def test_what_is_given_back_while_it_is_read_is_not_read_as_zeros(
    log: Path, monkeypatch: pytest.MonkeyPatch
):
    log.write_bytes(lines(0, 2000))
    pread, cut = os.pread, []

    def late(descriptor: int, length: int, place: int) -> bytes:
        if not cut:
            cut.append(None)
            with log.open("ab") as machine:
                machine.write(lines(2000, 5000))
            trim(log)
        return pread(descriptor, length, place)

    with Tail(log, offset=0) as tail:
        monkeypatch.setattr(os, "pread", late)
        rest = drained(tail)
    assert rest == lines(5000 - len(rest) // 16, 5000)


async def test_a_guest_that_floods_its_console_is_trimmed_soon_and_then_often(
    log: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(bootlog, "EVERY_S", 0.02)
    monkeypatch.setattr(bootlog, "FLOODED_EVERY_S", 0.001)
    keeping = asyncio.create_task(BootLogs(lambda ip: log.parent).keep_small(lambda: ["10.1.0.5"]))
    with log.open("ab", buffering=0) as machine:
        for start in range(0, 100_000, 500):
            machine.write(lines(start, start + 500))
            await asyncio.sleep(0.001)
    await asyncio.sleep(0.05)
    taken = log.stat().st_blocks * 512
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)
    assert taken <= 13 * BLOCK < log.stat().st_size


def test_no_log_is_nothing_to_trim(log: Path):
    trim(log)
    assert not log.exists()


async def test_a_link_is_never_followed(log: Path, tmp_path: Path):
    secret = tmp_path / "secret"
    secret.write_bytes(b"s" * 20 * BLOCK)
    log.symlink_to(secret)
    with pytest.raises(OSError, match="symbolic"):
        await text_of(log)
    assert not trim(log)
    assert secret.read_bytes() == b"s" * 20 * BLOCK


def test_who_follows_gets_the_history_and_every_byte_after_it_once(log: Path):
    with log.open("ab", buffering=0) as machine:
        machine.write(lines(0, 100))
        with Tail(log) as tail:
            machine.write(lines(100, 150))
            assert b"".join(tail.history()) == lines(0, 100)
            assert drained(tail) == lines(100, 150)
            machine.write(lines(150, 151)[:7])
            assert drained(tail) == lines(150, 151)[:7]
            machine.write(lines(150, 151)[7:])
            assert drained(tail) == lines(150, 151)[7:]


def test_who_wants_no_history_gets_what_comes(log: Path):
    with log.open("ab", buffering=0) as machine:
        machine.write(lines(0, 100) + b"half a li")
        with Tail(log, history=False) as tail:
            assert list(tail.history()) == []
            assert drained(tail) == b""
            machine.write(b"ne\r\n")
            assert drained(tail) == b"ne\r\n"


def test_trimming_takes_nothing_from_who_follows(log: Path):
    with log.open("ab", buffering=0) as machine, Tail(log) as tail:
        seen = b""
        for start in range(0, 20_000, 400):
            machine.write(lines(start, start + 400))
            trim(log)
            seen += drained(tail)
    assert seen == lines(0, 20_000)


def test_who_is_too_slow_goes_on_with_the_first_whole_line_that_is_kept(log: Path):
    with log.open("ab", buffering=0) as machine:
        machine.write(lines(0, 10))
        with Tail(log) as tail:
            assert b"".join(tail.history()) == lines(0, 10)
            machine.write(lines(10, 5000))
            trim(log)
            rest = drained(tail)
    assert 2 * BLOCK <= len(rest) <= 3 * BLOCK
    assert rest == lines(5000 - len(rest) // 16, 5000)


def test_the_history_is_no_more_than_is_ever_kept_and_begins_with_a_whole_line(log: Path):
    log.write_bytes(b"x" + lines(0, 5000))
    with Tail(log) as tail:
        seen = b"".join(tail.history())
    assert len(seen) <= 10 * BLOCK
    assert seen == lines(5000 - len(seen) // 16, 5000)


def test_a_log_can_be_followed_before_it_is_there(log: Path):
    with Tail(log) as tail:
        assert list(tail.history()) == []
        assert tail.read() == b""
        log.write_bytes(b"booting")
        assert drained(tail) == b"booting"
