"""Objects: bytes by their hash, checked whenever they come in or go out. Reads and writes a shelf; blocks.

No object is longer than PIECE_BYTES, so each fits into memory, and is handed on only when all of it was found to be
what its name says. Services call this beside their event loop (`system/aside.py`).
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import TypeVar

from blake3 import blake3

from atoll.errors import HostFailure, Invalid, NotFound
from atoll.images.shelves.base import Shelf
from atoll.images.shelves.directory import DirectoryShelf
from atoll.model.tree import PIECE_BYTES, Piece, check_object_id
from atoll.plan.collection import Kept
from atoll.system import steps

BATCH_OBJECTS = 2048
BATCH_BYTES = 16 << 20
"""What is put at a time: so much is in memory, and waits for the disk once."""
_REMOVED_TOGETHER = 64

T = TypeVar("T")


class Damaged(HostFailure):
    """An object is not what its name says: its disk or its store has changed it."""


def id_of(data: bytes) -> str:
    """What an object of these bytes is called."""
    return blake3(data).hexdigest()


def open_objects(place: str | Path) -> Objects:
    """The store at a place: a directory, or a URL such as s3://bucket/folder."""
    text = str(place)
    if "://" in text and not text.startswith("file://"):
        from atoll.images.shelves.remote import RemoteShelf  # most nodes have no use for what it loads

        return Objects(RemoteShelf(text))
    return Objects(DirectoryShelf(Path(text.removeprefix("file://")).absolute()))


class Objects:
    """A store of objects. Every method may be called again, and from several threads."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._coming: Counter[str] = Counter()
        self._turn = threading.Lock()
        """Nothing is removed while it comes in."""

    @property
    def name(self) -> str:
        """Where it is."""
        return self._shelf.name

    def put(self, objects: Sequence[tuple[str, bytes]]) -> None:
        """These bytes are there under these names, for good, when it returns. Invalid where a name is not theirs.

        All of them are in memory: give BATCH_OBJECTS and BATCH_BYTES at most.
        """
        for object_id, data in objects:
            check_object(object_id, data)
        ids = [object_id for object_id, _ in objects]
        with self._turn:
            self._coming.update(ids)
        try:
            self._shelf.put(list(dict(objects).items()))
        finally:
            with self._turn:
                self._coming.subtract(ids)
                self._coming += Counter()  # forgets those that nobody brings any more

    def get(self, object_id: str) -> bytes:
        """The bytes of an object. NotFound when there is none, Damaged when they are not what they were."""
        check_object_id(object_id)
        data = self._shelf.read(object_id)
        if data is None:
            raise NotFound(
                f"object {object_id}: it is not in {self.name}", hint="fetch or upload its image again"
            )
        if id_of(data) != object_id:
            raise Damaged(
                f"object {object_id} in {self.name} is damaged: its {len(data)} bytes are not those of its name",
                hint="remove it and bring it again; then look after the disk",
            )
        return data

    def get_many(self, object_ids: Iterable[str]) -> Iterator[bytes]:
        """The bytes of each, in order; those that come next are on their way already where that helps."""
        if self._shelf.together == 1:
            yield from map(self.get, object_ids)
            return
        with ThreadPoolExecutor(self._shelf.together, "objects-get") as pool:
            under_way: deque[Future[bytes]] = deque()
            try:
                for object_id in object_ids:
                    under_way.append(pool.submit(self.get, object_id))
                    if len(under_way) == self._shelf.together:
                        yield under_way.popleft().result()
                while under_way:
                    yield under_way.popleft().result()
            finally:
                for one in under_way:
                    one.cancel()

    def missing(self, object_ids: Iterable[str]) -> list[str]:
        """Those that are not there, in order, each once."""
        wanted = list(dict.fromkeys(object_ids))
        lacking = []
        for some in _batches(wanted, BATCH_OBJECTS):
            there = self._shelf.there([check_object_id(object_id) for object_id in some])
            lacking += [object_id for object_id in some if object_id not in there]
        return lacking

    def damaged(self, object_ids: Iterable[str]) -> Iterator[str]:
        """Those that are there and are not what their names say. Reads all of them."""
        for object_id in object_ids:
            try:
                self.get(object_id)
            except Damaged:
                yield object_id
            except NotFound:
                continue

    def list(self) -> Iterator[Kept]:
        """All that there are. What others have put there is none of ours, and left out."""
        for kept in self._shelf.list():
            try:
                check_object_id(kept.id)
            except Invalid:
                continue
            yield kept

    def remove(self, object_ids: Iterable[str], unchanged_since: float | None = None) -> int:
        """How many are gone now. One that comes in just now stays, and so does one that came after this time.

        So whoever decided that they may go can do so without holding up those who bring them again meanwhile.
        """
        gone = 0
        for some in _batches(object_ids, _REMOVED_TOGETHER):
            with self._turn:
                ids = [check_object_id(one) for one in some if one not in self._coming]
                there = self._shelf.there(ids)
                old = [
                    one
                    for one, kept in there.items()
                    if unchanged_since is None or kept.changed_at <= unchanged_since
                ]
                self._shelf.remove(old)
                gone += len(old)
            steps.step("object.removed")
        return gone

    def close(self) -> None:
        self._shelf.close()


class Intake:
    """Takes bytes in, one object after the other, and puts them into a store in batches.

    One batch is written while the next one gathers. What was taken is there for good once the block has ended well.
    """

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._seen: set[str] = set()
        self._batch: list[tuple[str, bytes]] = []
        self._bytes = 0
        self._writer = ThreadPoolExecutor(1, "intake")
        self._writing: Future[None] | None = None

    def __enter__(self) -> Intake:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                self._write()
                self._wait()
        finally:
            self._writer.shutdown()

    def take(self, data: bytes) -> Piece:
        """The piece that these bytes are."""
        object_id = id_of(data)
        if object_id not in self._seen:
            self._seen.add(object_id)
            self._batch.append((object_id, data))
            self._bytes += len(data)
            if self._bytes >= BATCH_BYTES or len(self._batch) >= BATCH_OBJECTS:
                self._write()
        return Piece(object_id, len(data))

    def _write(self) -> None:
        self._wait()
        if self._batch:
            self._writing = self._writer.submit(self._objects.put, self._batch)
            self._batch, self._bytes = [], 0

    def _wait(self) -> None:
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()


def hashed(data: bytes) -> Piece:
    """The piece that some bytes are, for those who want to know and not to keep."""
    return Piece(id_of(data), len(data))


def check_object(object_id: str, data: bytes) -> None:
    """Invalid unless the bytes are what the name says."""
    check_object_id(object_id)
    if not 1 <= len(data) <= PIECE_BYTES:
        raise Invalid("object", object_id, f"must have 1 to {PIECE_BYTES} bytes, not {len(data)}")
    if id_of(data) != object_id:
        raise Invalid(
            "object", object_id, "is not the hash of the bytes that came with it", hint="send it again"
        )


def _batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch
