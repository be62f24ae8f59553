from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from atoll.model.audit import AuditEntry
from atoll.serving import folding
from atoll.serving.folding import Deed, Folding, together

NOW = datetime(2024, 1, 1, tzinfo=UTC)
LATER = datetime(2024, 1, 2, tzinfo=UTC)


def entry(**changes: Any) -> AuditEntry:
    known = {"at": NOW, "user": "ann", "method": "vm.stop", "result": "ok", "target": "10.0.0.1"}
    return AuditEntry(**known | changes)


def deed(changed: bool = False, user: str = "ann", **more: Any) -> Deed:
    limited = more.pop("limited", True)
    return Deed(entry(user=user, **more), changed, user, limited)


def test_repeats_of_what_changes_nothing_are_one_line_a_minute():
    folds = Folding()
    assert [folds.is_line(deed(), second) for second in range(60)] == [True, *[False] * 59]
    assert folds.due(59) == []
    assert [line.count for line in folds.due(60)] == [59]
    assert not folds.is_line(deed(), 61)
    assert [line.count for line in folds.due(121)] == [1]
    assert folds.due(200) == []
    assert folds.is_line(deed(), 200)


def test_other_kinds_and_other_users_are_not_counted_with_them():
    folds = Folding()
    others = [deed(), deed(user="bob"), deed(method="vm.start"), deed(result="denied")]
    assert all(folds.is_line(one, 0) for one in others)
    assert not any(folds.is_line(one, 1) for one in others)
    assert len(folds.all()) == 4
    assert folds.all() == []


def test_what_changes_something_has_a_line_of_its_own():
    folds = Folding()
    assert all(folds.is_line(deed(changed=True), second) for second in range(100))


def test_nobody_writes_more_lines_than_the_log_can_take_and_nothing_is_lost_from_the_count():
    folds = Folding()
    lines, counted = 0, 0
    for second in range(3600):
        for _ in range(3):
            lines += folds.is_line(deed(changed=True), second)
        due = folds.due(second)
        lines, counted = lines + len(due), counted + sum(line.count for line in due)
    counted += sum(line.count for line in folds.all())
    assert lines <= folding.LINES_AT_ONCE + folding.LINES_PER_S * 3600 + 1
    assert folds.is_line(deed(changed=True, user="bob"), 3600)
    assert lines - 60 <= 3 * 3600 - counted <= lines


def test_operators_are_not_limited():
    folds = Folding()
    many = range(2 * folding.LINES_AT_ONCE)
    assert all(folds.is_line(deed(changed=True, limited=False), 0) for _ in many)


@given(st.lists(st.sampled_from(["a", "b"]), min_size=2, max_size=9))
def test_several_are_told_as_their_last_with_what_they_have_in_common(targets: list[str]):
    entries = [
        entry(target=target, name=target, at=NOW if not at else LATER) for at, target in enumerate(targets)
    ]
    one = entries[0]
    for then in entries[1:]:
        one = together(one, then)
    assert (one.count, one.since, one.at) == (len(targets), NOW, LATER)
    if len(set(targets)) == 1:
        assert one.target == targets[0]
