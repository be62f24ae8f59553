from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from atoll.api import hypervisor as api
from atoll.api.observing import AuditQuery
from atoll.errors import Conflict
from atoll.model.audit import AuditEntry
from atoll.serving.audit import AuditLog, is_noted, matches, result_of
from atoll.system.writer import Writer

NOW = datetime(2024, 1, 1, tzinfo=UTC)


def entry(number: int = 0, **changes: Any) -> AuditEntry:
    known = {"at": NOW, "user": "ann", "method": "vm.stop", "result": "ok", "target": f"10.0.0.{number}"}
    return AuditEntry(**known | changes)


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
        await log.note(entry(number))
    assert await log.read(AuditQuery()) == tuple(entry(number) for number in range(3))
    assert await log.read(AuditQuery(limit=1)) == (entry(2),)


async def test_what_is_noted_at_once_is_all_there(log: AuditLog):
    await asyncio.gather(*(log.note(entry(number)) for number in range(100)))
    assert await log.read(AuditQuery()) == tuple(entry(number) for number in range(100))


async def test_only_root_reads_it(log: AuditLog, path: Path):
    await log.note(entry())
    assert path.stat().st_mode & 0o777 == 0o600


async def test_nothing_there_is_nothing_to_read(log: AuditLog):
    assert await log.read(AuditQuery()) == ()


async def test_a_line_that_was_cut_short_by_a_crash_hides_no_other(log: AuditLog, path: Path):
    await log.note(entry(1))
    with path.open("ab") as file:
        file.write(b'{"at":"2024-01-0\n')
    await log.note(entry(2))
    assert await log.read(AuditQuery()) == (entry(1), entry(2))


async def test_a_log_that_is_full_is_turned_over_and_the_oldest_goes(path: Path, writer: Writer):
    log = AuditLog(path, writer, limit_bytes=200)
    for number in range(60):
        await log.note(entry(number))
    files = sorted(file.name for file in path.parent.iterdir())
    assert files == [path.name, *(f"{path.name}.{number}" for number in range(1, 5))]
    found = [int(one.target.rsplit(".", 1)[1]) for one in await log.read(AuditQuery())]
    assert found == list(range(found[0], 60))
    assert 0 < found[0] < 55


async def test_a_log_that_cannot_be_written_to_does_not_stop_the_node(
    log: AuditLog, path: Path, caplog: pytest.LogCaptureFixture
):
    path.mkdir()
    await log.note(entry())
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
