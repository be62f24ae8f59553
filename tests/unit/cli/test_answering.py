from __future__ import annotations

from pathlib import Path

from atoll.cli.answering import MAX_SERVICES, in_order, note

A, B, C = ("a", 1), ("b", 1), ("fd00::1", 1)


def test_what_answered_last_is_first_for_that_service_and_no_other(tmp_path: Path):
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    assert in_order((A, B, C), environment) == (A, B, C)
    note((A, B, C), C, environment)
    assert in_order((A, B, C), environment) == (C, A, B)
    assert in_order((B, C, A), environment) == (C, B, A)
    assert in_order((A, B), environment) == (A, B)
    note((C, A, B), A, environment)
    assert in_order((A, B, C), environment) == (A, B, C)


def test_there_is_nothing_to_note_when_the_first_answered(tmp_path: Path):
    note((A, B), A, {"HOME": str(tmp_path)})
    note((A,), A, {"HOME": str(tmp_path)})
    note((A, B), B, {})
    assert list(tmp_path.iterdir()) == []


def test_services_that_were_not_asked_for_long_are_forgotten(tmp_path: Path):
    environment = {"HOME": str(tmp_path)}
    for number in range(MAX_SERVICES + 1):
        note((A, (f"n{number}", 1)), (f"n{number}", 1), environment)
    assert in_order((A, ("n0", 1)), environment) == (A, ("n0", 1))
    assert in_order((A, ("n1", 1)), environment) == (("n1", 1), A)
    assert in_order((A, (f"n{MAX_SERVICES}", 1)), environment)[0] == (f"n{MAX_SERVICES}", 1)
