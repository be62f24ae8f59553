"""Removal of trees that others have filled: of any depth, with any names, links and modes in them. Removes files.

Everything is done through open directories, so no path is too long and no link is followed. Directories deeper than
`_LEVELS` are moved to the top of the tree first: few are open at a time, and nothing recurses without limit. What
is mounted in the tree is not entered. Files that were made immutable are made mutable first. What cannot be removed is
left, the rest goes, and the first failure is told.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import stat
import struct
from collections.abc import Callable
from pathlib import Path

from atoll.errors import HostFailure
from atoll.system.failures import failing

_LEVELS = 16
_PASSES = 100
"""How often a directory is gone through while somebody still puts things into it."""
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LONG = struct.calcsize("l")
_GET_FLAGS = 0x80006601 | _LONG << 16
_SET_FLAGS = 0x40006602 | _LONG << 16
_PROTECTED = 0x10 | 0x20
"""Immutable, append-only (FS_IMMUTABLE_FL, FS_APPEND_FL)."""
_HINTS = {
    errno.EPERM: "it may be immutable or append-only: chattr -i -a on it and on its directory, then try again",
    errno.EBUSY: "unmount it first; what is mounted there was left alone",
}


class Stopped(Exception):
    """The removal was told to stop. What is left can be removed by another one."""


def remove_tree(path: Path, stopped: Callable[[], bool] = lambda: False) -> None:
    """Remove a directory with all that is in it, or a file. Gone is fine; a link is removed, not followed.

    `stopped` is asked before each entry; Stopped is raised when it says so.
    """
    path = path.absolute()
    try:
        parent = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    except OSError as error:
        raise HostFailure(f"removing {path}: {error.strerror}") from error
    try:
        _Removal(stopped).remove(parent, path)
        with failing(f"removing {path}"):
            os.fsync(parent)
    finally:
        os.close(parent)


class _Removal:
    """One tree. Directories are open descriptors; `depth` counts from the tree's own, which is 0."""

    def __init__(self, stopped: Callable[[], bool]) -> None:
        self._stopped = stopped
        self._top = -1
        self._hoisted = 0
        self._failure: HostFailure | None = None

    def remove(self, parent: int, path: Path) -> None:
        with failing(f"removing {path}"):
            try:
                is_directory = _is_directory(parent, path.name)
            except FileNotFoundError:
                return
            self._remove(parent, path.name, is_directory, 0)
        if self._failure is not None:
            raise self._failure

    def _remove(self, parent: int, name: str, is_directory: bool, depth: int) -> bool:
        """Whether it is out of its directory."""
        if self._stopped():
            raise Stopped
        try:
            # Before it is entered: refused for what is mounted on, and all that an empty directory needs.
            (os.rmdir if is_directory else os.unlink)(name, dir_fd=parent)
        except FileNotFoundError:
            return True
        except (IsADirectoryError, NotADirectoryError):
            return True  # it has become something else; the next pass over its directory finds it
        except OSError as error:
            if is_directory and error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                return self._remove_full(parent, name, depth)
            if error.errno == errno.EPERM and _make_mutable(parent, name):
                return self._remove(parent, name, is_directory, depth)
            return self._failed(parent, name, error)
        return True

    def _remove_full(self, parent: int, name: str, depth: int) -> bool:
        """A directory that is not empty."""
        try:
            if depth > _LEVELS:
                os.rename(name, f".{secrets.token_hex(16)}", src_dir_fd=parent, dst_dir_fd=self._top)
                self._hoisted += 1
                return True
            directory = _open(parent, name)
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError as error:
            if error.errno == errno.EPERM and (_make_mutable(parent, name) or _clear_flags(self._top)):
                return self._remove_full(parent, name, depth)
            return self._failed(parent, name, error)
        try:
            if depth == 0:
                self._top = directory
            return self._empty_and_remove(parent, name, directory, depth)
        finally:
            os.close(directory)

    def _empty_and_remove(self, parent: int, name: str, directory: int, depth: int) -> bool:
        passes = 0
        while passes < _PASSES:
            hoisted = self._hoisted
            emptied = self._empty(directory, depth)
            if depth == 0 and self._hoisted > hoisted:
                continue  # what came up from below is in it now
            if not emptied:
                return False
            try:
                os.rmdir(name, dir_fd=parent)
            except FileNotFoundError:
                return True
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    return self._failed(parent, name, error)
                passes += 1
            else:
                return True
        return self._failed(parent, name, OSError(errno.ENOTEMPTY, "something keeps being put into it"))

    def _empty(self, directory: int, depth: int) -> bool:
        """One pass over what is in it: whether all of that is out of it."""
        emptied = True
        try:
            with os.scandir(directory) as entries:
                for entry in entries:
                    is_directory = entry.is_dir(follow_symlinks=False)
                    emptied = self._remove(directory, entry.name, is_directory, depth + 1) and emptied
        except OSError as error:
            return self._failed(directory, "", error)
        return emptied

    def _failed(self, parent: int, name: str, error: OSError) -> bool:
        if self._failure is None:
            path = _shown(str(Path(f"/proc/self/fd/{parent}").readlink() / name))
            self._failure = HostFailure(
                f"removing {path}: {error.strerror}", hint=_HINTS.get(error.errno or 0, "")
            )
            self._failure.__cause__ = error
        return False


def _make_mutable(parent: int, name: str) -> bool:
    """Take away what protects an entry, and its directory, from change; only root can. Whether there was anything."""
    changed = _clear_flags(parent)
    try:
        kind = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
        if not stat.S_ISREG(kind) and not stat.S_ISDIR(kind):
            return changed  # no other can be immutable, and opening it may do more than that
        handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
    except OSError:
        return changed
    try:
        return _clear_flags(handle) or changed
    finally:
        os.close(handle)


def _clear_flags(handle: int) -> bool:
    try:
        (flags,) = struct.unpack("l", fcntl.ioctl(handle, _GET_FLAGS, bytes(_LONG)))
        if flags & _PROTECTED:
            fcntl.ioctl(handle, _SET_FLAGS, struct.pack("l", flags & ~_PROTECTED))
            return True
    except OSError:  # a file system without such flags, or without the right to change them
        pass
    return False


def _is_directory(parent: int, name: str) -> bool:
    handle = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        return os.fstat(handle).st_mode & 0o170000 == 0o040000
    finally:
        os.close(handle)


def _open(parent: int, name: str) -> int:
    """A directory that can be read and changed, whatever modes its owner gave it."""
    if os.geteuid() != 0:
        handle = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        try:
            Path(f"/proc/self/fd/{handle}").chmod(0o700)
        finally:
            os.close(handle)
    return os.open(name, _OPEN, dir_fd=parent)


def _shown(path: str) -> str:
    """As it can be printed and sent: names may have any bytes in them."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in path)
