from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from atoll.api import hypervisor as api
from atoll.api.observing import AuditQuery
from atoll.errors import Conflict
from atoll.model.audit import AuditEntry
from atoll.serving import audit
from atoll.serving.audit import AuditLog, is_noted, matches, result_of
from atoll.serving.folding import Deed
from atoll.system import clock
from atoll.system.writer import Writer

NOW = clock.now()


def entry(number: int = 0, **changes: Any) -> AuditEntry:
    known = {"at": NOW, "user": "ann", "method": "vm.stop", "result": "ok", "target": f"10.0.0.{number}"}
    return AuditEntry(**known | changes)


def deed(entry: AuditEntry, *, changed: bool = True) -> Deed:
    return Deed(entry, changed, entry.user)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


@pytest.fixture
async def writer() -> AsyncIterator[Writer]:
    writer = Writer()
    yield writer
    await writer.close()


@pytest.fixture
def log(path: Path, writer: Writer) -> AuditLog:
    return AuditLog(path, writer)


async def test_what_is_noted_is_read_back_in_its_order(log: AuditLog):
    for number in range(3):
        await log.note(deed(entry(number)))
    assert await log.read(AuditQuery()) == tuple(entry(number) for number in range(3))
    assert await log.read(AuditQuery(limit=1)) == (entry(2),)


async def test_what_is_noted_at_once_is_all_there(log: AuditLog):
    await asyncio.gather(*(log.note(deed(entry(number))) for number in range(100)))
    assert await log.read(AuditQuery()) == tuple(entry(number) for number in range(100))


async def test_only_root_reads_it(log: AuditLog, path: Path):
    await log.note(deed(entry()))
    assert path.stat().st_mode & 0o777 == 0o600


async def test_nothing_there_is_nothing_to_read(log: AuditLog):
    assert await log.read(AuditQuery()) == ()


async def test_a_line_that_was_cut_short_by_a_crash_hides_no_other(log: AuditLog, path: Path):
    await log.note(deed(entry(1)))
    with path.open("ab") as file:
        file.write(b'{"at":"2024-01-0\n')
    await log.note(deed(entry(2)))
    assert await log.read(AuditQuery()) == (entry(1), entry(2))


async def test_a_log_that_is_full_is_turned_over_and_the_oldest_goes(
    path: Path, writer: Writer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(audit, "KEPT", 4)
    log = AuditLog(path, writer, limit_bytes=200)
    for number in range(60):
        await log.note(deed(entry(number)))
    files = sorted(file.name for file in path.parent.iterdir())
    assert sorted(files) == sorted([path.name, *(f"{path.name}.{number}" for number in range(1, 5))])
    found = [int(one.target.rsplit(".", 1)[1]) for one in await log.read(AuditQuery())]
    assert found == list(range(found[0], 60))
    assert 0 < found[0] < 55


async def test_a_log_that_cannot_be_written_to_does_not_stop_the_node(
    log: AuditLog, path: Path, caplog: pytest.LogCaptureFixture
):
    path.mkdir()
    await log.note(deed(entry()))
    assert "not noted" in caplog.text


@pytest.mark.parametrize(
    ("query", "count"),
    [
        (AuditQuery(), 1),
        (AuditQuery(user="ann"), 1),
        (AuditQuery(user="bob"), 0),
        (AuditQuery(target="10.0.0.0"), 1),
        (AuditQuery(target="web"), 1),
        (AuditQuery(target="db"), 0),
        (AuditQuery(method="vm.stop"), 1),
        (AuditQuery(method="vm.start", user="ann"), 0),
    ],
)
def test_entries_are_found_by_user_target_and_method(query: AuditQuery, count: int):
    assert matches(entry(name="web"), query) == bool(count)


def test_what_changes_something_is_noted_and_what_only_looks_is_not():
    noted = {route.name for route in api.ROUTES if is_noted(route)}
    assert {"vm.create", "vm.destroy", "vm.change", "volume.upload", "node.drain", "vm.console"} <= noted
    assert not noted & {
        "vm.show",
        "vm.list",
        "event.list",
        "vm.log",
        "vm.user-data",
        "metrics.show",
        "audit.list",
    }


def test_a_result_is_told_by_its_code():
    found = [result_of(error) for error in (None, Conflict("x"), ValueError("x"), asyncio.CancelledError())]
    assert found == ["ok", "conflict", "internal", "abandoned"]


async def test_a_part_is_turned_over_when_it_is_a_week_old_and_goes_after_its_days(
    path: Path, writer: Writer
):
    log = AuditLog(path, writer, keep_days=30)
    first, second = (path.with_name(f"audit.jsonl.{number}") for number in (1, 2))
    await log.note(deed(entry(1, at=NOW - timedelta(days=6))))
    await log.note(deed(entry(2)))
    assert not first.exists()
    path.unlink()
    for number, days in ((3, 9), (4, 8), (5, 8)):
        log = AuditLog(path, writer, keep_days=30)
        await log.note(deed(entry(number, at=NOW - timedelta(days=days))))
    assert [one.target[-1] for one in await log.read(AuditQuery())] == ["3", "4", "5"]
    assert (first.exists(), second.exists()) == (True, True)
    month_ago = (NOW - timedelta(days=31)).timestamp()
    os.utime(second, (month_ago, month_ago))
    await log.note(deed(entry(6)))
    assert [one.target[-1] for one in await log.read(AuditQuery())] == ["4", "5", "6"]


async def test_what_a_full_disk_took_half_of_is_taken_back_and_hides_no_other(
    log: AuditLog, path: Path, caplog: pytest.LogCaptureFixture
):
    await log.note(deed(entry(1)))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    # A write that goes beyond is a short one, as on a disk that becomes full: then an error.
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 20, before[1]))
    try:
        await log.note(deed(entry(2)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "not noted" in caplog.text
    assert path.read_bytes().count(b"\n") == 1
    assert path.read_bytes().endswith(b"\n")
    await log.note(deed(entry(3)))
    assert await log.read(AuditQuery()) == (entry(1), entry(3))


async def test_what_is_counted_is_read_as_one_entry_and_is_on_disk_then(log: AuditLog, path: Path):
    for number in range(5):
        await log.note(deed(entry(number, result="denied"), changed=False))
    assert path.read_bytes().count(b"\n") == 1
    first, others = await log.read(AuditQuery())
    assert (first, others.count, others.target, others.since) == (entry(0, result="denied"), 4, "", NOW)
    assert path.read_bytes().count(b"\n") == 2
