from __future__ import annotations

from typing import Any

import pytest

from atoll.drivers.machine.base import Exit
from atoll.drivers.machine.qemu.monitor import end_of_migration, exit_of_event, exit_of_status


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
