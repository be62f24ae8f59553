"""Entries and objects as a directory. Makes files, through descriptors of directories, and follows no link.

The tree is made beside its place, in a directory that only we can enter, and gets its name when all of it is on disk:
what has the name is whole. The same entries make the same tree: owners, modes, times, links, devices, attributes; of
its files only the space that they take may differ, where zeros become holes.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import TypeAlias

from atoll.errors import AtollError, Conflict, HostFailure
from atoll.model.tree import (
    ROOT,
    BlockDevice,
    CharacterDevice,
    Content,
    Directory,
    Entry,
    Fifo,
    File,
    HardLink,
    Inode,
    Piece,
    Symlink,
    check_tree,
    parent_of,
    pieces_of,
)
from atoll.system import files, libc, steps
from atoll.system.failures import failing
from atoll.system.folders import open_beneath

Fetch: TypeAlias = Callable[[Iterable[str]], Iterator[bytes]]
"""Gives the bytes of objects in the order that is asked for, each checked: `Objects.get_many`."""

_PART = ".part"
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def unpack(entries: Sequence[Entry], fetch: Fetch, target: Path) -> None:
    """Make the tree at a place where nothing is yet. Conflict when something is there; nothing is left if it fails."""
    check_tree(entries)
    if not entries:
        raise Conflict(f"unpacking to {target}: there is nothing to unpack")
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}{_PART}")
    with failing(f"unpacking to {target}"):
        if os.path.lexists(target):
            raise Conflict(
                f"unpacking to {target}: something is there already",
                hint="remove it, or choose another place",
            )
        part.mkdir(0o700)
        try:
            steps.step("tree.begun")
            with _opened(str(part), None) as root:
                _Unpacking(root, fetch(piece.id for piece in pieces_of(entries))).run(entries)
                steps.step("tree.filled")
                libc.syncfs(root)
            steps.step("tree.synced")
            part.rename(target)
            files.sync_dir(target.parent)
            steps.step("tree.named")
        except BaseException:
            with contextlib.suppress(AtollError):
                files.remove_tree(part)
            raise


def remove_parts(directory: Path) -> None:
    """Remove what was being unpacked in a directory when its maker was killed. Only for who unpacks there alone."""
    for part in directory.glob(f".*{_PART}"):
        files.remove_tree(part)


def write_content(descriptor: int, content: Content, data: Iterator[bytes]) -> None:
    """A content into an empty file; holes stay holes. `data` gives the bytes of its pieces."""
    at = 0
    for part in content.parts:
        if isinstance(part, Piece):
            found = next(data)
            if len(found) != part.size:
                raise HostFailure(f"object {part.id} has {len(found)} bytes, and its image says {part.size}")
            if at:
                os.lseek(descriptor, at, os.SEEK_SET)
            files.write_whole(descriptor, found)
        at += part.size
    if content.parts and not isinstance(content.parts[-1], Piece):
        os.ftruncate(descriptor, content.size)


class _Unpacking:
    """Goes through the tree in its order. Open are the directories from the root to where it is."""

    def __init__(self, root: int, data: Iterator[bytes]) -> None:
        self._root = root
        self._data = data
        self._open: list[tuple[Directory, int]] = []
        self._owned_by = (os.geteuid(), os.getegid())

    def run(self, entries: Sequence[Entry]) -> None:
        try:
            for entry in entries:
                if isinstance(entry, Directory) and entry.path == ROOT:
                    # Neither group nor list of access of the directory around it goes on in the tree.
                    os.fchown(self._root, *self._owned_by)
                    os.fchmod(self._root, 0o700)
                    for name in os.listxattr(self._root):
                        with contextlib.suppress(OSError):
                            os.removexattr(self._root, name)
                    self._open.append((entry, os.dup(self._root)))
                    continue
                parent = parent_of(entry.path)
                while self._open[-1][0].path != parent:
                    self._leave()
                try:
                    self._make(entry, self._open[-1][1], entry.path.rpartition("/")[2])
                except OSError as error:
                    raise type(error)(error.errno, f"{entry.path!r}: {error.strerror}") from error
                steps.step("tree.entry")
            while self._open:
                self._leave()
        finally:
            for _, descriptor in self._open:
                os.close(descriptor)

    def _make(self, entry: Entry, parent: int, name: str) -> None:
        match entry:
            case File():
                descriptor = os.open(name, _NEW, 0o600, dir_fd=parent)
                try:
                    write_content(descriptor, entry.content, self._data)
                    self._finish(entry, descriptor)
                finally:
                    os.close(descriptor)
            case Directory():
                os.mkdir(name, 0o700, dir_fd=parent)
                self._open.append((entry, os.open(name, _DIRECTORY, dir_fd=parent)))
            case HardLink():
                above, _, last = entry.to.rpartition("/")
                directory = open_beneath(self._root, PurePosixPath(above or ROOT))
                try:
                    os.link(last, name, src_dir_fd=directory, dst_dir_fd=parent, follow_symlinks=False)
                finally:
                    os.close(directory)
            case Symlink():
                os.symlink(entry.target, name, dir_fd=parent)
                self._own(entry, name, parent)
            case CharacterDevice() | BlockDevice():
                kind = stat.S_IFCHR if isinstance(entry, CharacterDevice) else stat.S_IFBLK
                os.mknod(name, kind | 0o600, os.makedev(entry.major, entry.minor), dir_fd=parent)
                self._own(entry, name, parent)
            case Fifo():
                os.mkfifo(name, 0o600, dir_fd=parent)
                self._own(entry, name, parent)

    def _leave(self) -> None:
        """What is in a directory changes its time, so that is set last."""
        entry, descriptor = self._open.pop()
        try:
            self._finish(entry, descriptor)
        finally:
            os.close(descriptor)

    def _finish(self, entry: Inode, descriptor: int) -> None:
        if (entry.uid, entry.gid) != self._owned_by:
            os.chown(descriptor, entry.uid, entry.gid)
        # After the owner: a new one takes the rights of programs away.
        os.chmod(descriptor, entry.mode)
        for name, value in entry.xattrs.items():
            os.setxattr(descriptor, name, value)
        os.utime(descriptor, ns=(entry.mtime_ns, entry.mtime_ns))

    def _own(self, entry: Inode, name: str, parent: int) -> None:
        """As `_finish`, for what cannot be opened without doing something to it."""
        if (entry.uid, entry.gid) != self._owned_by:
            os.chown(name, entry.uid, entry.gid, dir_fd=parent, follow_symlinks=False)
        if not isinstance(entry, Symlink):
            os.chmod(name, entry.mode, dir_fd=parent)
        for attribute, value in entry.xattrs.items():
            os.setxattr(f"/proc/self/fd/{parent}/{name}", attribute, value, follow_symlinks=False)
        os.utime(name, ns=(entry.mtime_ns, entry.mtime_ns), dir_fd=parent, follow_symlinks=False)


@contextlib.contextmanager
def _opened(name: str, parent: int | None) -> Iterator[int]:
    descriptor = os.open(name, _DIRECTORY, dir_fd=parent)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
