"""Folders of the host for guests: opened without following any link, and known again by what they are. Opens and
makes directories.

A path is looked up once, by one call of the kernel that refuses symbolic links anywhere in it. What was opened counts
from there on: whoever moves things about afterwards changes nothing.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
from collections.abc import Collection, Iterator
from pathlib import Path, PurePosixPath

from msgspec import Struct

from atoll.errors import Conflict
from atoll.system import libc
from atoll.system.failures import failing

_OPENAT2 = 437
_RESOLVE_NO_MAGICLINKS = 0x02
_RESOLVE_NO_SYMLINKS = 0x04
_RESOLVE_BENEATH = 0x08
_PLAIN = _RESOLVE_NO_MAGICLINKS | _RESOLVE_NO_SYMLINKS | _RESOLVE_BENEATH
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_DEEPEST = 256

Node = tuple[int, int]
"""A device and an inode on it: what a directory is, whatever it is called."""


class Folder(Struct, frozen=True):
    """A directory of the host as it was when it was looked at."""

    path: Path
    node: Node
    uid: int
    gid: int


def look(path: Path, forbidden: Collection[Path] = ()) -> Folder:
    """The folder at a path. Conflict when there is none, when a link leads there, or when it is one of those that are
    forbidden, in one of them or around one, by whatever mounts it is reached."""
    with opened(path) as descriptor:
        _check_apart(path, descriptor, forbidden)
        status = os.fstat(descriptor)
        return Folder(path, (status.st_dev, status.st_ino), status.st_uid, status.st_gid)


@contextlib.contextmanager
def opened(path: Path, node: Node | None = None) -> Iterator[int]:
    """A descriptor of the folder at a path. `node`: what it must be, or Conflict."""
    with contextlib.ExitStack() as stack:
        with failing(f"opening {path}"):
            root = os.open("/", _DIRECTORY)
            stack.callback(os.close, root)
            try:
                descriptor = open_beneath(root, PurePosixPath(path).relative_to("/"))
            except FileNotFoundError:
                raise Conflict(
                    f"folder {path} is gone", hint=f"bring it back, or make one: mkdir {path}"
                ) from None
            except NotADirectoryError:
                raise Conflict(f"{path} is no folder", hint="share the folder that it is in") from None
            except OSError as error:
                if error.errno != errno.ELOOP:
                    raise
                raise Conflict(
                    f"a symbolic link is in the way to {path}", hint=f"name the folder itself: {_real(path)}"
                ) from None
            stack.callback(os.close, descriptor)
        if node is not None and _node(descriptor) != node:
            raise Conflict(f"folder {path} was replaced by another one just now", hint="try again")
        yield descriptor


def open_beneath(directory: int, path: PurePosixPath) -> int:
    """A directory below another one, without links and without a way out. The caller closes it."""
    how = struct.pack("QQQ", _DIRECTORY, 0, _PLAIN)
    return libc.syscall(_OPENAT2, directory, os.fsencode(str(path)), how, len(how))


@contextlib.contextmanager
def made_beneath(root: Path, path: PurePosixPath, owner: int) -> Iterator[int]:
    """A descriptor of the directory at `path` in a tree that is somebody else's, where what lacks of it is made for
    this user and group. Conflict when something else is there."""
    with contextlib.ExitStack() as stack:

        def keep(descriptor: int) -> int:
            stack.callback(os.close, descriptor)
            return descriptor

        try:
            directory = keep(os.open(root, _DIRECTORY))
            for part in path.relative_to("/").parts:
                try:
                    directory = keep(open_beneath(directory, PurePosixPath(part)))
                except FileNotFoundError:
                    os.mkdir(part, 0o755, dir_fd=directory)
                    os.chown(part, owner, owner, dir_fd=directory, follow_symlinks=False)
                    directory = keep(open_beneath(directory, PurePosixPath(part)))
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                raise
            what = "a symbolic link" if error.errno == errno.ELOOP else "no directory"
            raise Conflict(
                f"{path} is {what} in the guest", hint="choose another place for the folder"
            ) from None
        yield directory


def _check_apart(path: Path, descriptor: int, forbidden: Collection[Path]) -> None:
    own = {node: str(place) for place in forbidden if (node := _node_at(place)) is not None}
    around = {
        node: str(place) for place in forbidden for up in place.parents if (node := _node_at(up)) is not None
    }
    found = _node(descriptor)
    inside = next((own[node] for node in _upwards(descriptor) if node in own), "")
    if inside or found in around:
        raise Conflict(
            f"folder {path} is, holds or is in {inside or around[found]}, which is the host's own",
            hint="share a folder that was made for it, such as /srv/data",
        )


def _upwards(descriptor: int) -> Iterator[Node]:
    """The directory, the one that it is in, and so on, but for the root."""
    with contextlib.ExitStack() as stack:
        for _ in range(_DEEPEST):
            node = _node(descriptor)
            above = os.open("..", _DIRECTORY, dir_fd=descriptor)
            stack.callback(os.close, above)
            if _node(above) == node:
                return
            yield node
            descriptor = above


def _node(descriptor: int) -> Node:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def _node_at(path: Path) -> Node | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _real(path: Path) -> Path:
    try:
        return path.resolve(strict=True)
    except OSError:
        return path
