from __future__ import annotations

from datetime import UTC, datetime

import pytest

from atoll.api.hypervisor import Since
from atoll.cli.event import parse_since, rows_of, what_changed
from atoll.errors import Invalid
from atoll.model.event import Event, EventKind
from atoll.model.history import FieldChange, HistoryEntry

AT = datetime(2024, 5, 1, tzinfo=UTC)


def test_a_stream_begins_with_the_state_or_after_an_event():
    assert parse_since(None, follow=False) == Since(follow=False)
    assert parse_since("e-1:42", follow=True) == Since(epoch="e-1", sequence=42, follow=True)


@pytest.mark.parametrize("text", ["", "e", ":1", "e:", "e:-1", "e:x", "e&x=1:1", "e:1:2"])
def test_no_other_place_is_understood(text):
    with pytest.raises(Invalid, match="since"):
        parse_since(text, follow=True)


@pytest.mark.parametrize("kind", [EventKind.STATE, EventKind.NODE])
def test_an_event_without_vms_is_one_row(kind):
    event = Event(kind, "e", 1, AT)
    assert [(row.event, row.vm) for row in rows_of(event)] == [(event, None)]


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        ({"kind": EventKind.CREATED}, "state running"),
        ({"kind": EventKind.DESTROYED, "reason": "it expired"}, "it expired"),
        ({"kind": EventKind.DESTROYED}, "-"),
        (
            {
                "changes": (
                    FieldChange("memory_mib", "128", "2048"),
                    FieldChange("milli_cpus", "250", "1500"),
                    FieldChange("user_data_sha256"),
                    FieldChange("owner_users", "ann", "bob"),
                )
            },
            "memory 128 MiB → 2 GiB; cpus 0.25 → 1.5; user-data changed; owner-users ann → bob",
        ),
        (
            {
                "changes": (FieldChange("state", "running", "crashed"), FieldChange("reason", "-", "exit 1")),
                "reason": "exit 1",
            },
            "state running → crashed; exit 1",
        ),
    ],
)
def test_what_changed_is_old_and_new_in_the_commands_words(entry, text):
    known = {"at": AT, "kind": EventKind.CHANGED, "ip": "10.1.0.5", "name": "web", "state": "running"}
    assert what_changed(HistoryEntry(**(known | entry))) == text
