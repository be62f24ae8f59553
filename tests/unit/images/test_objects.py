from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.errors import HostFailure, Invalid, NotFound
from atoll.images.objects import BATCH_OBJECTS, Damaged, Intake, Objects, hashed, id_of, open_objects
from atoll.images.shelves.directory import DirectoryShelf
from atoll.images.shelves.remote import RemoteShelf, check_url
from atoll.model.tree import PIECE_BYTES, Piece
from atoll.system import steps

DATA = b"some bytes"
ID = id_of(DATA)


@pytest.fixture(params=["directory", "memory"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Objects]:
    opened = open_objects(tmp_path / "objects" if request.param == "directory" else "memory:///")
    yield opened
    opened.close()


@pytest.fixture
def on_disk(tmp_path: Path) -> Iterator[Objects]:
    opened = open_objects(tmp_path / "objects")
    yield opened
    opened.close()


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    steps.arm("")


def file_of(objects: Objects, object_id: str) -> Path:
    return Path(objects.name) / object_id[:2] / object_id


def files_in(objects: Objects) -> list[Path]:
    return [path for path in Path(objects.name).rglob("*") if path.is_file()]


def test_an_object_is_called_by_the_hash_of_its_bytes():
    assert id_of(b"") == "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"
    assert hashed(DATA) == Piece(ID, len(DATA))


def test_what_was_put_is_got_listed_and_not_missing(objects: Objects):
    objects.put([(ID, DATA)])
    assert objects.get(ID) == DATA
    assert [(kept.id, kept.size) for kept in objects.list()] == [(ID, len(DATA))]
    (kept,) = objects.list()
    assert abs(kept.changed_at - time.time()) < 60
    assert objects.missing([ID, "0" * 64, ID, "0" * 64]) == ["0" * 64]


def test_what_is_not_there_is_not_found_and_removing_it_is_fine(objects: Objects):
    with pytest.raises(NotFound, match=ID):
        objects.get(ID)
    assert objects.remove([ID]) == 0
    assert list(objects.list()) == []


def test_many_objects_come_back_in_the_order_that_was_asked_for(objects: Objects):
    many = {id_of(data): data for data in (os.urandom(100) for _ in range(100))}
    objects.put(list(many.items()))
    wanted = [*reversed(many), *many]
    assert list(objects.get_many(wanted)) == [many[one] for one in wanted]


def test_one_that_lacks_among_many_is_told(objects: Objects):
    objects.put([(ID, DATA)])
    with pytest.raises(NotFound, match="0" * 64):
        list(objects.get_many([ID, "0" * 64, ID]))


def test_a_name_that_is_not_that_of_the_bytes_is_refused_and_nothing_is_kept(objects: Objects):
    with pytest.raises(Invalid, match="is not the hash of the bytes"):
        objects.put([(ID, DATA), ("0" * 64, DATA)])
    assert list(objects.list()) == []


@pytest.mark.parametrize("name", ["", "..", "../../etc/passwd", "A" * 64, "0" * 63, "0" * 64 + "\n"])
def test_a_name_is_a_hash_and_nothing_else(objects: Objects, name: str):
    for call in (objects.get, lambda one: objects.missing([one]), lambda one: objects.remove([one])):
        with pytest.raises(Invalid, match="object"):
            call(name)
    with pytest.raises(Invalid, match="object"):
        objects.put([(name, DATA)])


def test_an_object_has_a_size_at_most(objects: Objects):
    whole = os.urandom(PIECE_BYTES)
    objects.put([(id_of(whole), whole)])
    assert objects.get(id_of(whole)) == whole
    for data in (b"", whole + b"x"):
        with pytest.raises(Invalid, match="must have"):
            objects.put([(id_of(data), data)])


@pytest.mark.parametrize("at", [0, 5, len(DATA) - 1])
def test_a_flipped_bit_is_noticed_and_told_by_the_name_of_the_object(on_disk: Objects, at: int):
    on_disk.put([(ID, DATA)])
    path = file_of(on_disk, ID)
    flipped = bytearray(DATA)
    flipped[at] ^= 1
    path.write_bytes(flipped)
    with pytest.raises(Damaged, match=ID):
        on_disk.get(ID)
    with pytest.raises(Damaged, match=ID):
        list(on_disk.get_many([ID]))
    assert list(on_disk.damaged([ID, "0" * 64])) == [ID]
    assert on_disk.remove([ID]) == 1
    on_disk.put([(ID, DATA)])
    assert on_disk.get(ID) == DATA


@pytest.mark.parametrize("content", [b"", DATA[:-1], DATA + b"x", bytes(PIECE_BYTES + 5)])
def test_an_object_that_is_cut_short_or_has_grown_is_noticed_and_put_right_by_the_next_put(
    on_disk: Objects, content: bytes
):
    on_disk.put([(ID, DATA)])
    file_of(on_disk, ID).write_bytes(content)
    with pytest.raises(Damaged):
        on_disk.get(ID)
    on_disk.put([(ID, DATA)])
    assert on_disk.get(ID) == DATA


def test_putting_again_writes_nothing_and_makes_it_young(on_disk: Objects):
    on_disk.put([(ID, DATA)])
    path = file_of(on_disk, ID)
    os.utime(path, (1, 1))
    before = path.stat()
    on_disk.put([(ID, DATA)])
    assert path.stat().st_ino == before.st_ino
    (kept,) = on_disk.list()
    assert kept.changed_at > 1


def test_what_came_since_it_was_decided_upon_stays(objects: Objects):
    objects.put([(ID, DATA)])
    (kept,) = objects.list()
    assert objects.remove([ID], unchanged_since=kept.changed_at - 1) == 0
    assert objects.get(ID) == DATA
    assert objects.remove([ID], unchanged_since=kept.changed_at) == 1
    assert list(objects.list()) == []


class SlowShelf(DirectoryShelf):
    """Waits before it writes."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.asked, self.may = threading.Event(), threading.Event()

    def put(self, objects: object) -> None:
        self.asked.set()
        assert self.may.wait(10)
        super().put(objects)


def test_what_is_coming_in_is_not_removed(tmp_path: Path):
    shelf = SlowShelf(tmp_path)
    objects = Objects(shelf)
    shelf.may.set()
    objects.put([(ID, DATA)])
    shelf.asked.clear()
    shelf.may.clear()
    bringing = threading.Thread(target=objects.put, args=([(ID, DATA)],))
    bringing.start()
    assert shelf.asked.wait(10)
    assert objects.remove([ID]) == 0
    shelf.may.set()
    bringing.join()
    assert objects.get(ID) == DATA
    assert objects.remove([ID]) == 1
    objects.close()


@pytest.mark.parametrize("step", ["bulk.begun", "bulk.written", "bulk.synced"])
@pytest.mark.parametrize("many", [1, 20])
def test_a_put_that_fails_leaves_nothing(on_disk: Objects, step: str, many: int):
    batch = [(id_of(data), data) for data in (bytes([number]) * 50 for number in range(many))]
    steps.arm(f"{step}:1:ENOSPC")
    with pytest.raises(HostFailure, match="No space left"):
        on_disk.put(batch)
    assert files_in(on_disk) == []
    on_disk.put(batch)
    assert on_disk.missing([one for one, _ in batch]) == []


def test_a_put_that_fails_half_way_leaves_whole_objects_only(on_disk: Objects):
    batch = [(id_of(data), data) for data in (bytes([number]) * 50 for number in range(20))]
    steps.arm("bulk.named:7:ENOSPC")
    with pytest.raises(HostFailure):
        on_disk.put(batch)
    there = [kept.id for kept in on_disk.list()]
    assert len(there) == 7
    assert list(on_disk.damaged(there)) == []
    assert len(files_in(on_disk)) == 7


def test_what_a_killed_writer_left_goes_with_the_next_one_that_is_alone(tmp_path: Path):
    first = open_objects(tmp_path)
    left = tmp_path / ".incoming" / "0123"
    left.write_bytes(b"half")
    second = open_objects(tmp_path)
    assert left.exists()
    first.close()
    second.close()
    open_objects(tmp_path).close()
    assert not left.exists()


def test_what_others_put_there_is_none_of_ours(on_disk: Objects):
    on_disk.put([(ID, DATA)])
    (file_of(on_disk, ID).parent / "README").write_text("hello")
    assert [kept.id for kept in on_disk.list()] == [ID]


def test_an_intake_puts_all_that_it_was_given_each_once(objects: Objects):
    given_ = [os.urandom(20) for _ in range(BATCH_OBJECTS + 10)]
    with Intake(objects) as intake:
        pieces = [intake.take(data) for data in (*given_, *given_)]
    assert [piece.id for piece in pieces[: len(given_)]] == [id_of(data) for data in given_]
    assert objects.missing(piece.id for piece in pieces) == []
    assert len(list(objects.list())) == len(given_)


def test_an_intake_that_cannot_write_fails(on_disk: Objects):
    steps.arm("bulk.written:1:ENOSPC")
    with pytest.raises(HostFailure, match="No space left"), Intake(on_disk) as intake:
        for number in range(BATCH_OBJECTS * 3):
            intake.take(number.to_bytes(8, "big"))
    assert files_in(on_disk) == []


@settings(max_examples=30)
@given(st.lists(st.tuples(st.sampled_from(["put", "remove"]), st.integers(0, 5)), max_size=15))
def test_a_store_is_what_was_put_and_not_removed(story: list[tuple[str, int]]):
    objects = Objects(RemoteShelf("memory:///"))
    expected: dict[str, bytes] = {}
    for word, number in story:
        data = bytes([number]) * 10
        if word == "put":
            objects.put([(id_of(data), data)])
            expected[id_of(data)] = data
        else:
            assert objects.remove([id_of(data)]) == (expected.pop(id_of(data), None) is not None)
    assert {kept.id: objects.get(kept.id) for kept in objects.list()} == expected
    objects.close()


@pytest.mark.parametrize(
    "url", ["http://host/x", "ftp://x", "s3://key:secret@bucket/x", "s3://bucket/x?token=secret"]
)
def test_a_store_is_named_by_a_url_without_secrets(url: str):
    with pytest.raises(Invalid, match="store") as refused:
        check_url(url)
    assert "secret" not in str(refused.value)
