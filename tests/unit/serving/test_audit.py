from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from atoll.api import hypervisor as api
from atoll.api.observing import AuditQuery
from atoll.errors import Conflict
from atoll.model.audit import AuditEntry
from atoll.serving.audit import AuditLog, is_noted, matches, result_of

NOW = datetime(2024, 1, 1, tzinfo=UTC)


def entry(number: int = 0, **changes: Any) -> AuditEntry:
    known = {"at": NOW, "user": "ann", "method": "vm.stop", "result": "ok", "target": f"10.0.0.{number}"}
    return AuditEntry(**known | changes)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


def test_what_is_noted_is_read_back_in_its_order(path: Path):
    log = AuditLog(path)
    for number in range(3):
        log.note(entry(number))
    assert AuditLog(path).read(AuditQuery()) == tuple(entry(number) for number in range(3))
    assert AuditLog(path).read(AuditQuery(limit=1)) == (entry(2),)


def test_only_root_reads_it(path: Path):
    AuditLog(path).note(entry())
    assert path.stat().st_mode & 0o777 == 0o600


def test_nothing_there_is_nothing_to_read(path: Path):
    assert AuditLog(path).read(AuditQuery()) == ()


def test_a_line_that_was_cut_short_by_a_crash_hides_no_other(path: Path):
    log = AuditLog(path)
    log.note(entry(1))
    with path.open("ab") as file:
        file.write(b'{"at":"2024-01-0\n')
    log.note(entry(2))
    assert log.read(AuditQuery()) == (entry(1), entry(2))


def test_a_log_that_is_full_is_turned_over_and_the_oldest_goes(path: Path):
    log = AuditLog(path, limit_bytes=200)
    for number in range(60):
        log.note(entry(number))
    files = sorted(file.name for file in path.parent.iterdir())
    assert files == [path.name, *(f"{path.name}.{number}" for number in range(1, 5))]
    found = [int(one.target.rsplit(".", 1)[1]) for one in log.read(AuditQuery())]
    assert found == list(range(found[0], 60))
    assert 0 < found[0] < 55


def test_a_log_that_cannot_be_written_to_does_not_stop_the_node(path: Path, caplog: pytest.LogCaptureFixture):
    path.mkdir()
    AuditLog(path).note(entry())
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
