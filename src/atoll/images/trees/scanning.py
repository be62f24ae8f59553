"""A directory as entries and objects. Reads files, through descriptors, and follows no link.

Somebody may be at work in the directory: a file that changes while it is read, or a directory that does, is an error
that names it, and so is something mounted in the tree. Sockets are left out: they are of the process that made them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from atoll.errors import Conflict, Invalid
from atoll.images.cutting import Take, cut
from atoll.model.tree import (
    DEEPEST,
    LARGEST_TREE,
    MOST_ENTRIES,
    PIECE_BYTES,
    ROOT,
    BlockDevice,
    CharacterDevice,
    Content,
    Directory,
    Entry,
    Facts,
    Fifo,
    File,
    HardLink,
    Symlink,
    check_tree_path,
    is_kept_xattr,
    weight_of,
)
from atoll.system import sparse
from atoll.system.failures import failing

_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_DIRECTORY = _FLAGS | os.O_DIRECTORY


def scan(root: Path, take: Take) -> tuple[Entry, ...]:
    """All that is in a directory, as the tree of a manifest; `take` gets the bytes of every piece."""
    return _Scan(root, take).run()


def scan_file(path: Path, take: Take) -> Content:
    """The content of one file, such as a kernel or a disk."""
    with failing(f"reading {path}"):
        descriptor = os.open(path, _FLAGS & ~os.O_NOFOLLOW)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise Conflict(f"reading {path}: it is no file")
            return _content(str(path), descriptor, status, take)
        finally:
            os.close(descriptor)


class _Scan:
    def __init__(self, root: Path, take: Take) -> None:
        self._root = root
        self._take = take
        self._entries: list[Entry] = []
        self._first: dict[tuple[int, int], str] = {}
        """Where files that have several names were met first."""
        self._device = -1
        self._weight = 0
        # The times at which files were read are nobody's business, and a write for each. Only owners may ask for it.
        self._quiet = os.O_NOATIME if os.geteuid() == 0 else 0

    def run(self) -> tuple[Entry, ...]:
        with failing(f"scanning {self._root}"):
            descriptor = os.open(self._root, _DIRECTORY)
            try:
                self._device = os.fstat(descriptor).st_dev
                self._directory(descriptor, ROOT, 0)
            finally:
                os.close(descriptor)
        return tuple(self._entries)

    def _directory(self, descriptor: int, path: str, depth: int) -> None:
        if depth > DEEPEST:
            raise Invalid("path", path, f"is more than {DEEPEST} levels deep")
        before = os.fstat(descriptor)
        if before.st_dev != self._device:
            raise Conflict(
                f"scanning {self._root}: something is mounted at {path!r}",
                hint="unmount it, or scan elsewhere",
            )
        self._add(Directory(path=path, xattrs=_xattrs(descriptor), **_facts(before)))
        for name in self._names(descriptor):
            inner = name if path == ROOT else f"{path}/{name}"
            check_tree_path(inner)
            try:
                self._one(descriptor, name, inner, depth)
            except FileNotFoundError:
                raise _changed(self._root, inner) from None
            except OSError as error:
                if error.errno not in (errno.ELOOP, errno.ENOTDIR, errno.ENXIO):
                    raise type(error)(error.errno, f"{inner!r}: {error.strerror}") from error
                raise _changed(self._root, inner) from None  # it was something else when we looked
        if _differs(before, os.fstat(descriptor)):
            raise _changed(self._root, path)

    def _names(self, descriptor: int) -> list[str]:
        # Somebody may have made more of them than we would ever keep: they are not all read first.
        with os.scandir(descriptor) as found:
            names = sorted(entry.name for entry in islice(found, MOST_ENTRIES))
        if len(self._entries) + len(names) > MOST_ENTRIES:
            raise Invalid("tree", str(self._root), f"has more than {MOST_ENTRIES} entries")
        return names

    def _one(self, parent: int, name: str, path: str, depth: int) -> None:
        status = os.stat(name, dir_fd=parent, follow_symlinks=False)
        kind = stat.S_IFMT(status.st_mode)
        if kind == stat.S_IFSOCK:
            return
        if kind == stat.S_IFDIR:
            with self._opened(parent, name, path, status, os.O_DIRECTORY) as descriptor:
                self._directory(descriptor, path, depth + 1)
            return
        if status.st_nlink > 1:
            node = (status.st_dev, status.st_ino)
            if node in self._first:
                self._add(HardLink(path=path, to=self._first[node]))
                return
            self._first[node] = path
        facts = _facts(status)
        if kind == stat.S_IFREG:
            with self._opened(parent, name, path, status, 0) as descriptor:
                content = _content(path, descriptor, status, self._take)
                self._add(File(path=path, content=content, xattrs=_xattrs(descriptor), **facts))
        elif kind == stat.S_IFLNK:
            target = os.readlink(name, dir_fd=parent)
            self._add(Symlink(path=path, target=target, **facts))
        elif kind == stat.S_IFIFO:
            self._add(Fifo(path=path, **facts))
        else:
            major, minor = os.major(status.st_rdev), os.minor(status.st_rdev)
            device = CharacterDevice if kind == stat.S_IFCHR else BlockDevice
            self._add(device(path=path, major=major, minor=minor, **facts))

    @contextlib.contextmanager
    def _opened(self, parent: int, name: str, path: str, status: os.stat_result, more: int) -> Iterator[int]:
        descriptor = os.open(name, _FLAGS | more | self._quiet, dir_fd=parent)
        try:
            if _differs(status, os.fstat(descriptor)):
                raise _changed(self._root, path)
            yield descriptor
        finally:
            os.close(descriptor)

    def _add(self, entry: Entry) -> None:
        self._weight += weight_of(entry)
        if self._weight > LARGEST_TREE:
            raise Invalid(
                "tree", str(self._root), f"has names and attributes of more than {LARGEST_TREE} bytes"
            )
        self._entries.append(entry)


def _content(path: str, descriptor: int, status: os.stat_result, take: Take) -> Content:
    """What is in a file; Conflict if it was changed meanwhile."""
    size = status.st_size
    try:
        content = cut(size, _windows(path, descriptor, size), take)
    except EOFError:
        raise _changed(Path(), path) from None
    if _differs(status, os.fstat(descriptor)):
        raise _changed(Path(), path)
    return content


def _windows(path: str, descriptor: int, size: int) -> Iterator[bytes | int]:
    at = 0
    while at < size:
        if size > PIECE_BYTES:
            data = sparse.first_kept(descriptor, at)
            empty = (min(data, size) - at) // PIECE_BYTES * PIECE_BYTES
            if data >= size:
                empty = size - at
            if empty:
                yield empty
                at += empty
                continue
        window = os.pread(descriptor, min(PIECE_BYTES, size - at), at)
        while len(window) < min(PIECE_BYTES, size - at):
            more = os.pread(descriptor, min(PIECE_BYTES, size - at) - len(window), at + len(window))
            if not more:
                raise EOFError(path)
            window += more
        yield window
        at += len(window)


def _facts(status: os.stat_result) -> Facts:
    return Facts(
        mode=stat.S_IMODE(status.st_mode),
        uid=status.st_uid,
        gid=status.st_gid,
        mtime_ns=status.st_mtime_ns,
    )


def _xattrs(descriptor: int) -> dict[str, bytes]:
    try:
        names = os.listxattr(descriptor)
    except OSError as error:
        if error.errno == errno.ENOTSUP:
            return {}
        raise
    return {name: os.getxattr(descriptor, name) for name in names if is_kept_xattr(name)}


def _differs(before: os.stat_result, after: os.stat_result) -> bool:
    return _identity(before) != _identity(after)


def _identity(status: os.stat_result) -> tuple[int, ...]:
    times = (status.st_mtime_ns, status.st_ctime_ns)
    return (status.st_dev, status.st_ino, status.st_mode, status.st_size, *times)


def _changed(root: Path, path: str) -> Conflict:
    return Conflict(
        f"scanning {root / path}: it changed while it was read",
        hint="stop whoever writes there, or scan a snapshot",
    )
