"""Initial file systems as cpio archives ("newc", what Linux unpacks). Pure.

The same entries give the same bytes: names are sorted, times are zero, inodes count up, root owns all.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable
from pathlib import PurePosixPath

from msgspec import Struct

from atoll.errors import Invalid

TRAILER = "TRAILER!!!"
BLOCK = 512


class Entry(Struct, frozen=True):
    """One name in the archive. `mode` holds the type of file too, as in `st_mode`."""

    path: str
    mode: int
    data: bytes = b""


def directory(path: str, permissions: int = 0o755) -> Entry:
    return Entry(path, stat.S_IFDIR | permissions)


def regular_file(path: str, data: bytes, permissions: int = 0o644) -> Entry:
    return Entry(path, stat.S_IFREG | permissions, data)


def symlink(path: str, target: str) -> Entry:
    return Entry(path, stat.S_IFLNK | 0o777, target.encode())


def archive(entries: Iterable[Entry]) -> bytes:
    """The whole archive. Directories that hold an entry and are not given are added."""
    parts = [_record(inode, entry) for inode, entry in enumerate(ordered(entries), start=1)]
    parts.append(_record(0, Entry(TRAILER, 0)))
    data = b"".join(parts)
    return data + bytes(-len(data) % BLOCK)


def ordered(entries: Iterable[Entry]) -> list[Entry]:
    """The entries by name, each below its directory; directories that are not given are added."""
    by_path: dict[str, Entry] = {}
    for entry in entries:
        _check_path(entry.path)
        if entry.path in by_path:
            raise Invalid("path", entry.path, "is in the archive twice")
        by_path[entry.path] = entry
    for path in list(by_path):
        for parent in PurePosixPath(path).parents:
            if str(parent) != ".":
                by_path.setdefault(str(parent), directory(str(parent)))
    return [by_path[path] for path in sorted(by_path, key=_parents_first)]


def _parents_first(path: str) -> tuple[str, ...]:
    return PurePosixPath(path).parts


def _check_path(path: str) -> None:
    parts = PurePosixPath(path).parts
    if not parts or path != "/".join(parts) or path.startswith("/") or ".." in parts or "\0" in path:
        raise Invalid("path", path, "must be relative and plain, such as bin/sh")
    if path == TRAILER:
        raise Invalid("path", path, "is what ends an archive")


def _record(inode: int, entry: Entry) -> bytes:
    if len(entry.data) > 0xFFFFFFFF:
        raise Invalid("data", f"{len(entry.data)} bytes", f"{entry.path} is too large for a cpio archive")
    name = entry.path.encode() + b"\0"
    links = 2 if stat.S_ISDIR(entry.mode) else 1
    fields = (inode, entry.mode, 0, 0, links, 0, len(entry.data), 0, 0, 0, 0, len(name), 0)
    head = b"070701" + b"".join(b"%08X" % field for field in fields) + name
    return _padded(head) + _padded(entry.data)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)
