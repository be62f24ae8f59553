"""Files that survive a power cut, locks that do not survive their holder, Unix sockets at any depth.

Touches the file system. Reading lets `OSError` through, since only the caller knows what a missing file
means; writing turns it into `HostFailure`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO, Self

from atoll.errors import Conflict, TooLarge
from atoll.system import steps
from atoll.system.failures import failing, ignoring

if TYPE_CHECKING:
    import asyncio

_TEMPORARY = ".tmp"
_MIB = 1024 * 1024


def write_durably(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Replace the file at once and for good: readers see the old content or the new, also after a crash."""
    _write_beside(path, data, mode, Path.replace)


def write_once(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Make a file that is whole and for good, or not there. One that is there already stays as it is."""
    _write_beside(path, data, mode, _link_unless_there)


def remove_leftovers(directory: Path) -> None:
    """Remove what a `write_durably` that was killed half-way left in a directory."""
    with failing(f"tidying {directory}"):
        for leftover in directory.glob(f".*{_TEMPORARY}"):
            leftover.unlink(missing_ok=True)


def make_dirs(path: Path, mode: int = 0o700) -> None:
    """Make a directory and its missing parents, all with this mode. One that exists stays as it is."""
    with failing(f"making directory {path}"):
        missing = [directory for directory in (path, *path.parents) if not directory.is_dir()]
        for directory in reversed(missing):
            with contextlib.suppress(FileExistsError):
                directory.mkdir()
                directory.chmod(mode)  # the umask must not take anything away
                sync_dir(directory.parent)
        if not path.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))


def read_limited(path: Path, limit: int) -> bytes:
    """The whole file, or TooLarge when it is longer than `limit` bytes."""
    with path.open("rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise TooLarge(f"reading {path}: longer than {limit} bytes", hint="give a smaller file")
    return data


def remove_tree(path: Path) -> None:
    """Remove a directory with all that is in it, or a file. Gone is fine; a link is removed, not followed."""
    with failing(f"removing {path}"):
        try:
            kind = path.lstat().st_mode
        except FileNotFoundError:
            return
        if stat.S_ISDIR(kind):
            shutil.rmtree(path, onerror=_unless_gone)
        else:
            path.unlink(missing_ok=True)
        sync_dir(path.parent)


def new_file(path: Path) -> BinaryIO:
    """A file that was not there before, open for writing, for us alone."""
    with failing(f"making {path}"):
        return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb")


def sync(path: Path) -> None:
    """Put the content of a file on disk."""
    with failing(f"writing {path}"), path.open("rb") as file:
        os.fsync(file.fileno())


def sync_dir(path: Path) -> None:
    """Put the names in a directory on disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def free_mib(path: Path) -> int:
    """Space that is left on the file system of `path` for those who are not root."""
    space = os.statvfs(path)
    return space.f_bavail * space.f_frsize // _MIB


def used_mib(path: Path) -> int:
    """What the files directly in a directory take. Gone is nothing."""
    try:
        with os.scandir(path) as entries:
            return sum(entry.stat(follow_symlinks=False).st_blocks for entry in entries) * 512 // _MIB
    except FileNotFoundError:
        return 0


def total_mib(path: Path) -> int:
    """Size of the file system of `path`."""
    space = os.statvfs(path)
    return space.f_blocks * space.f_frsize // _MIB


class Lock:
    """A lock on a file, held until the block or the process ends. The file stays: removing it would race."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def __enter__(self) -> Self:
        with failing(f"opening lock {self.path}"):
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with contextlib.suppress(OSError):  # who holds it is told if the disk has room for it
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        except BlockingIOError:
            holder = os.pread(descriptor, 20, 0).decode(errors="replace").strip() or "unknown"
            os.close(descriptor)
            raise Conflict(
                f"locking {self.path}: held by process {holder}",
                hint="only one may run at a time; wait for it, or end it",
            ) from None
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def exclusive(path: Path) -> Lock:
    """`with exclusive(path):` runs in one process at a time; Conflict, at once, in the others."""
    return Lock(path)


def listen_unix(path: Path, mode: int = 0o600) -> socket.socket:
    """A listening socket at `path`, however long that is. Replaces a dead one; Conflict if it is alive."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with failing(f"listening on {path}"), _short_address(path) as address:
            _clear_dead_socket(path, address)
            listener.bind(address)
            # Nobody can connect between bind and listen, so the mode is never wider than asked for.
            path.chmod(mode)
            listener.listen(128)
    except BaseException:
        listener.close()
        raise
    return listener


async def unix_socket(path: Path) -> socket.socket:
    """A socket connected to `path`, however long that is. OSError when nobody listens there."""
    import asyncio  # the command line uses this module too, and must not pay for a loop it does not run

    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.setblocking(False)
        with _short_address(path) as address:
            await asyncio.get_running_loop().sock_connect(connection, address)
    except BaseException:
        connection.close()
        raise
    return connection


async def connect_unix(path: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Streams to the socket at `path`, however long that is. OSError when nobody listens there."""
    import asyncio

    connection = await unix_socket(path)
    try:
        return await asyncio.open_unix_connection(sock=connection)
    except BaseException:
        connection.close()
        raise


def _write_beside(path: Path, data: bytes, mode: int, put: Callable[[Path, Path], object]) -> None:
    """Write a file beside the one that is meant; `put` gives it that name."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}{_TEMPORARY}")
    with failing(f"writing {path}"):
        try:
            steps.step("write.begin")
            _write_new(temporary, data, mode)
            steps.step("write.written")
            put(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_dir(path.parent)
        steps.step("write.renamed")


def _link_unless_there(temporary: Path, path: Path) -> None:
    # Unlike a rename, a link replaces nothing.
    with ignoring(errno.EEXIST):
        path.hardlink_to(temporary)
    temporary.unlink()


def _write_new(path: Path, data: bytes, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, mode)
        file.write(data)
        file.flush()
        os.fsync(descriptor)


def _unless_gone(
    function: object, path: str, failure: tuple[type[BaseException], BaseException, object]
) -> None:
    if not isinstance(failure[1], FileNotFoundError):
        raise failure[1]


def _clear_dead_socket(path: Path, address: str) -> None:
    try:
        kind = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(kind):
        raise Conflict(f"listening on {path}: something that is not a socket is there", hint="move it away")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        # Refused means dead. A full backlog (EAGAIN) means alive.
        if probe.connect_ex(address) != errno.ECONNREFUSED:
            raise Conflict(f"listening on {path}: somebody listens there already", hint="end that process")
    path.unlink(missing_ok=True)


@contextlib.contextmanager
def _short_address(path: Path) -> Iterator[str]:
    # A socket address holds 108 bytes; a path through an open directory stays short at any depth.
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)
