from __future__ import annotations

from datetime import UTC, datetime

import pytest

from atoll.api.hypervisor import Since
from atoll.cli.event import parse_since, rows_of
from atoll.errors import Invalid
from atoll.model.event import Event, EventKind

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
