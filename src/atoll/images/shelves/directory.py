"""Objects in a directory. Reads, writes and removes files, through atoll.system.

    <root>/ab/ab01…    an object, in one of 256 directories by the first two digits of its name
    <root>/.incoming   what is being written

Not through obstore: its local store puts nothing on disk before it says that it is there.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from atoll.model.tree import PIECE_BYTES
from atoll.plan.collection import Kept
from atoll.system import files
from atoll.system.bulk import Bulk
from atoll.system.failures import failing

_SHARD_DIGITS = 2


class DirectoryShelf:
    """One directory, ours alone."""

    together = 1

    def __init__(self, root: Path) -> None:
        self.name = str(root)
        self._root = root
        files.make_dirs(root)
        self._bulk = Bulk(root)

    def put(self, objects: Sequence[tuple[str, bytes]]) -> None:
        new = [
            (_place(object_id), data) for object_id, data in objects if not self._touch(object_id, len(data))
        ]
        self._bulk.write(new)

    def _touch(self, object_id: str, size: int) -> bool:
        """Whether it is there already; then it is as if it had come just now."""
        path = self._path(object_id)
        with failing(f"looking for object {object_id}"):
            try:
                if os.stat(path).st_size != size:  # noqa: PTH116, many thousand times a second
                    return False
                os.utime(path)
            except FileNotFoundError:
                return False
        return True

    def read(self, object_id: str) -> bytes | None:
        with failing(f"reading object {object_id}"):
            try:
                descriptor = os.open(self._path(object_id), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            except FileNotFoundError:
                return None
            try:
                return _read(descriptor)
            finally:
                os.close(descriptor)

    def there(self, object_ids: Sequence[str]) -> dict[str, Kept]:
        found = {}
        with failing(f"looking for objects in {self._root}"):
            for object_id in object_ids:
                with contextlib.suppress(FileNotFoundError):
                    found[object_id] = _kept(object_id, os.stat(self._path(object_id)))  # noqa: PTH116
        return found

    def list(self) -> Iterator[Kept]:
        with failing(f"listing {self._root}"):
            shards = sorted(
                entry.name for entry in os.scandir(self._root) if len(entry.name) == _SHARD_DIGITS
            )
        for shard in shards:
            with failing(f"listing {self._root / shard}"), os.scandir(self._root / shard) as entries:
                for entry in entries:
                    with contextlib.suppress(FileNotFoundError):
                        yield _kept(entry.name, entry.stat(follow_symlinks=False))

    def remove(self, object_ids: Sequence[str]) -> None:
        with failing(f"removing objects from {self._root}"):
            for object_id in object_ids:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._path(object_id))  # noqa: PTH108

    def close(self) -> None:
        self._bulk.close()

    def _path(self, object_id: str) -> str:
        return f"{self.name}/{_place(object_id)}"


def _place(object_id: str) -> str:
    return f"{object_id[:_SHARD_DIGITS]}/{object_id}"


def _kept(object_id: str, status: os.stat_result) -> Kept:
    return Kept(object_id, status.st_size, status.st_mtime)


def _read(descriptor: int) -> bytes:
    size = min(os.fstat(descriptor).st_size, PIECE_BYTES)
    # One byte more than there can be: a file that has grown is not what its name says.
    data = os.read(descriptor, size + 1)
    while len(data) < size and (more := os.read(descriptor, size + 1 - len(data))):
        data += more
    return data
