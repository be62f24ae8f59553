from __future__ import annotations

from datetime import UTC, datetime

import pytest
from tests.shared.samples import a_vm

from atoll.model.event import EventKind
from atoll.model.history import MAX_VALUE, FieldChange, changes_of, entry_of
from atoll.model.publishing import Publication
from atoll.model.vm import VmState
from atoll.model.volume import Volume, VolumeFormat

AT = datetime(2024, 5, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("fields", "change"),
    [
        ({"state": VmState.STOPPED}, FieldChange("state", "running", "stopped")),
        ({"memory_mib": 256}, FieldChange("memory_mib", "128", "256")),
        ({"tags": {"a": "1", "b": "2"}}, FieldChange("tags", "-", "a=1, b=2")),
        ({"owner_users": ("bob", "ann")}, FieldChange("owner_users", "ann", "bob, ann")),
        ({"protected": True}, FieldChange("protected", "no", "yes")),
        (
            {"volumes": (Volume(VolumeFormat.RAW, 64, "data", attached=False),)},
            FieldChange("volumes", "-", "data 64 MiB (detached)"),
        ),
        (
            {"published": (Publication(8080, 80, "0.0.0.0"), Publication(443, 8443, "::"))},
            FieldChange("published", "-", "0.0.0.0:8080 -> 80, [::]:443 -> 8443"),
        ),
    ],
)
def test_a_change_has_what_was_and_what_is(fields, change):
    assert changes_of(a_vm(), a_vm(**fields)) == (change,)


@pytest.mark.parametrize(
    "fields",
    [
        {"user_data_sha256": "secret"},
        {"ssh_keys": ("secret",)},
        {"kernel_options": "secret"},
        {"request_id": "secret"},
    ],
)
def test_what_is_its_owners_alone_is_named_and_not_told(fields):
    (change,) = changes_of(a_vm(), a_vm(**fields))
    assert change == FieldChange(next(iter(fields)))


def test_how_far_a_start_has_come_is_no_news():
    assert entry_of(EventKind.CHANGED, a_vm(), a_vm(ready={"dhcp": 1.0}), AT) is None


def test_what_comes_and_goes_is_news_without_changes():
    for kind in (EventKind.CREATED, EventKind.DESTROYED):
        entry = entry_of(kind, a_vm(), a_vm(reason="it expired"), AT)
        assert entry is not None
        assert (entry.kind, entry.reason, entry.changes) == (kind, "it expired", ())


def test_no_value_is_longer_than_it_may_be():
    (change,) = changes_of(a_vm(), a_vm(tags={str(number): "x" * 250 for number in range(64)}))
    assert len(change.new) == MAX_VALUE
