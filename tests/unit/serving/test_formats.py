from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct, structs

from atoll.errors import HostFailure
from atoll.serving.formats import Format


class Disk(Struct, frozen=True):
    name: str
    size: int = 0


class Guest(Struct, frozen=True):
    name: str
    disks: tuple[Disk, ...] = ()


class Kept(Struct, frozen=True):
    guest: Guest
    moving: Guest | None = None
    count: int = 0


class NewDisk(Disk, frozen=True):
    bus: str = "virtio"


class NewGuest(Struct, frozen=True):
    name: str
    disks: tuple[NewDisk, ...] = ()
    zone: str = ""


class NewKept(Struct, frozen=True):
    guest: NewGuest
    moving: NewGuest | None = None
    count: int = 0
    policy: dict[str, Any] = {}


OLD = Format(Kept, number=1, needs=1)
NEW = Format(NewKept, number=2, needs=1)

names = st.text("abc", min_size=1, max_size=3)
new_disks = st.lists(
    st.builds(NewDisk, names, st.integers(0, 9), names), max_size=3, unique_by=lambda d: d.name
)
new_guests = st.builds(NewGuest, names, new_disks.map(tuple), names)
news = st.builds(
    NewKept, new_guests, st.none() | new_guests, st.integers(0, 9), st.dictionaries(names, st.integers(0, 9))
)


@given(news)
def test_a_newer_programs_file_goes_through_an_older_one_and_back_unharmed(value: NewKept):
    seen, unknown = OLD.decode(NEW.encode(value, {}))
    back, left = NEW.decode(OLD.encode(seen, unknown))
    assert (back, left) == (value, {})


@given(news, st.integers(10, 19))
def test_what_the_older_program_changes_is_changed_and_the_rest_kept(value: NewKept, count: int):
    seen, unknown = OLD.decode(NEW.encode(value, {}))
    disks = tuple(structs.replace(disk, size=count) for disk in seen.guest.disks)
    changed = structs.replace(seen, count=count, guest=structs.replace(seen.guest, disks=disks))
    back, _ = NEW.decode(OLD.encode(changed, unknown))
    assert back.count == count
    assert [disk.size for disk in back.guest.disks] == [count] * len(disks)
    assert [disk.bus for disk in back.guest.disks] == [disk.bus for disk in value.guest.disks]
    assert (back.guest.zone, back.policy) == (value.guest.zone, value.policy)


def test_an_older_programs_file_is_read_with_defaults():
    back, unknown = NEW.decode(OLD.encode(Kept(Guest("web")), {}))
    assert back == NewKept(NewGuest("web"))
    assert unknown == {}


def test_a_file_of_before_there_were_formats_is_read():
    assert OLD.decode(b'{"guest":{"name":"web"}}')[0] == Kept(Guest("web"))


def test_a_file_that_needs_a_newer_program_is_refused_by_an_older_one():
    with pytest.raises(
        HostFailure, match="needs an agent that knows format 2, and this one knows 1"
    ) as caught:
        OLD.decode(Format(NewKept, number=3, needs=2).encode(NewKept(NewGuest("web")), {}))
    assert "install the version that wrote it" in caught.value.hint


def test_what_a_newer_program_asks_of_readers_still_counts_after_an_older_one_wrote():
    newest = Format(NewKept, number=3, needs=2).encode(NewKept(NewGuest("web")), {})
    middle = Format(Kept, number=2, needs=1)
    again = middle.encode(*middle.decode(newest))
    assert msgspec.json.decode(again)["needs_format"] == 2


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"null", b'{"guest":7}'])
def test_what_is_no_such_file_is_refused(data: bytes):
    with pytest.raises(msgspec.MsgspecError):
        OLD.decode(data)
