from __future__ import annotations

from typing import Any

import pytest

from atoll.drivers.machine.base import Exit
from atoll.drivers.machine.qemu.monitor import (
    end_of_migration,
    exit_of_event,
    exit_of_status,
    is_out_of_room,
    stall_of_event,
)


def event(name: str, **data: Any) -> dict[str, Any]:
    return {"event": name, "data": data, "timestamp": {"seconds": 1, "microseconds": 2}}


@pytest.mark.parametrize(
    ("heard", "reason"),
    [
        (event("SHUTDOWN", guest=True, reason="guest-shutdown"), Exit.POWERED_OFF),
        (event("SHUTDOWN", guest=True, reason="guest-panic"), Exit.CRASHED),
        (event("GUEST_PANICKED", action="pause"), Exit.CRASHED),
        (event("SHUTDOWN", guest=True, reason="guest-reset"), None),
        (event("SHUTDOWN", guest=False, reason="host-qmp-quit"), None),
        (event("RESET", guest=True, reason="guest-reset"), None),
        (event("POWERDOWN"), None),
    ],
)
def test_only_the_end_of_the_guest_is_an_exit(heard: dict[str, Any], reason: Exit | None) -> None:
    assert exit_of_event(heard) is reason


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ("shutdown", Exit.POWERED_OFF),
        ("guest-panicked", Exit.CRASHED),
        ("internal-error", Exit.CRASHED),
        ("running", None),
        ("paused", None),
        ("prelaunch", None),
    ],
)
def test_a_status_tells_why_a_machine_that_was_not_watched_ended(status: str, reason: Exit | None) -> None:
    assert exit_of_status(status) is reason


@pytest.mark.parametrize(
    ("heard", "done"),
    [
        (event("MIGRATION", status="completed"), True),
        (event("MIGRATION", status="failed"), False),
        (event("MIGRATION", status="active"), None),
        (event("RESUME"), None),
    ],
)
def test_the_end_of_a_migration_is_told_with_how_it_went(heard: dict[str, Any], done: bool | None) -> None:
    assert end_of_migration(heard) is done


@pytest.mark.parametrize(
    ("heard", "stalled"),
    [
        ({"event": "BLOCK_IO_ERROR", "data": {"action": "stop", "nospace": True}}, True),
        ({"event": "BLOCK_IO_ERROR", "data": {"action": "report", "nospace": False}}, None),
        ({"event": "RESUME"}, False),
        ({"event": "STOP"}, None),
    ],
)
def test_a_machine_is_paused_for_want_of_room_until_it_goes_on(
    heard: dict[str, object], stalled: bool | None
) -> None:
    assert stall_of_event(heard) is stalled


@pytest.mark.parametrize(
    "data", [None, "stop", [], {}, {"reason": [], "action": {}, "status": None}, {"reason": 7}]
)
@pytest.mark.parametrize("name", ["SHUTDOWN", "BLOCK_IO_ERROR", "MIGRATION", ["SHUTDOWN"]])
def test_an_event_that_says_something_else_than_qemu_would_says_nothing(name: object, data: object) -> None:
    for heard in ({"event": name, "data": data}, {"event": name}):
        assert (exit_of_event(heard), stall_of_event(heard), end_of_migration(heard)) == (None, None, None)


def test_the_status_tells_a_want_of_room_from_other_pauses() -> None:
    assert is_out_of_room("io-error")
    assert not any(map(is_out_of_room, ("running", "paused", "prelaunch", "shutdown")))
