"""Files that survive a power cut, Unix sockets at any depth.

Touches the file system. Reading lets `OSError` through, since only the caller knows what a missing file
means; writing turns it into `HostFailure`.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import secrets
import socket
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from msgspec import Struct

from atoll.errors import Conflict, HostFailure, TooLarge
from atoll.system import steps
from atoll.system.failures import failing, ignoring
from atoll.system.lock_files import exclusive as exclusive
from atoll.system.removal import remove_tree as remove_tree
from atoll.system.spares import Spares

if TYPE_CHECKING:
    import asyncio

_TEMPORARY = ".tmp"
_MIB = 1024 * 1024
_BLOCK = 4096


class Write(Struct, frozen=True):
    """A file that is to be replaced."""

    path: Path
    data: bytes
    mode: int = 0o600


def write_durably(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Replace the file at once and for good: readers see the old content or the new, also after a crash."""
    (failure,) = write_together([Write(path, data, mode)])
    if failure is not None:
        raise failure


def write_once(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Make a file that is whole and for good, or not there. One that is there already stays as it is."""
    (failure,) = _replace([_Replacement(Write(path, data, mode), _link_unless_there)])
    if failure is not None:
        raise failure


def write_together(writes: Sequence[Write], spares: Spares | None = None) -> list[HostFailure | None]:
    """Replace many files, each as `write_durably` does, with little more waiting for the disk than for one.

    They are replaced in the order given. What became of each: a failure of one is no failure of another. With
    `spares`, which are on the same file system, what is there already can be replaced on a full disk too.
    """
    return _replace([_Replacement(write, spares=spares) for write in writes])


def _replace(under_way: Sequence[_Replacement]) -> list[HostFailure | None]:
    try:
        for one in under_way:
            one.attempt(one.write)
        for one in under_way:
            one.attempt(one.sync)
        for one in under_way:
            one.attempt(one.rename)
        replaced = [one for one in under_way if one.failure is None]
        for directory in dict.fromkeys(one.path.parent for one in replaced):
            _sync_names(directory, [one for one in replaced if one.path.parent == directory])
        for one in under_way:
            one.attempt(one.finish)
    finally:
        for one in under_way:
            one.clean_up()
    return [one.failure for one in under_way]


def append_lines(path: Path, lines: bytes, mode: int = 0o600) -> None:
    """Add whole lines to a file for good, at a cost that does not depend on its size.

    Half a line at the end was cut short by a crash, and nobody was told of it: it goes. Callers take turns.
    """
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    with failing(f"writing {path}"):
        descriptor = os.open(path, flags, mode)
        try:
            end = _end_of_lines(descriptor)
            try:
                os.ftruncate(descriptor, end)
                write_whole(descriptor, lines)
                os.fsync(descriptor)
            except BaseException:
                os.ftruncate(descriptor, end)
                raise
        finally:
            os.close(descriptor)
        if end == 0:
            sync_dir(path.parent)


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
                directory.mkdir(mode)  # never wider than that, also not for a moment
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


def unix_pair(path: Path) -> tuple[socket.socket, socket.socket]:
    """A listening socket, and a connection to it that waits to be taken, for those who insist to listen. They meet at
    `path`, and nothing is left there."""
    listener = listen_unix(path)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with failing(f"connecting to {path}"), _short_address(path) as address:
            connection.connect(address)
            path.unlink()
    except BaseException:
        listener.close()
        connection.close()
        raise
    return listener, connection


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


async def connect_unix(
    path: Path, limit: int = 64 << 10
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Streams to the socket at `path`, however long that is. OSError when nobody listens there.

    `limit`: half of the bytes that are kept here for whoever reads.
    """
    import asyncio

    connection = await unix_socket(path)
    try:
        return await asyncio.open_unix_connection(sock=connection, limit=limit)
    except BaseException:
        connection.close()
        raise


class _Replacement:
    """One file on its way: written beside its place, on disk, in its place, its name on disk."""

    def __init__(
        self, write: Write, put: Callable[[Path, Path], object] = Path.replace, spares: Spares | None = None
    ) -> None:
        """`put` gives what was written beside its place its name there."""
        self.path = write.path
        self._put = put
        self._spares = spares
        self.failure: HostFailure | None = None
        self._content = write
        self._temporary = write.path.with_name(f".{write.path.name}.{secrets.token_hex(6)}{_TEMPORARY}")
        self._descriptor = -1
        self._made = False

    def attempt(self, act: Callable[[], None]) -> None:
        """Unless it has failed before."""
        if self.failure is None:
            try:
                with failing(f"writing {self.path}"):
                    act()
            except HostFailure as failure:
                self.failure = failure

    def write(self) -> None:
        try:
            steps.step("write.begin")
            self._fill(os.O_CREAT | os.O_EXCL)
        except OSError as error:
            spare = self._spare_for(error)
            if spare is None:
                raise
            self.clean_up()
            self._temporary = spare
            self._fill(0)
            os.ftruncate(self._descriptor, len(self._content.data))
            steps.step("write.spared")
        _begin_to_sync(self._descriptor)

    def _fill(self, flags: int) -> None:
        self._descriptor = os.open(self._temporary, flags | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._made = True
        os.fchmod(self._descriptor, self._content.mode)
        write_whole(self._descriptor, self._content.data)

    def _spare_for(self, error: OSError) -> Path | None:
        """Of use where there is no room, and where the name is on disk already."""
        if self._spares is None or error.errno not in (errno.ENOSPC, errno.EDQUOT) or not self.path.exists():
            return None
        return self._spares.take(len(self._content.data))

    def sync(self) -> None:
        os.fsync(self._descriptor)
        self._close()

    def rename(self) -> None:
        steps.step("write.written")
        self._put(self._temporary, self.path)
        self._made = False

    def finish(self) -> None:
        steps.step("write.renamed")

    def clean_up(self) -> None:
        self._close()
        if self._made:
            with contextlib.suppress(OSError):
                self._temporary.unlink(missing_ok=True)

    def _close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _link_unless_there(temporary: Path, path: Path) -> None:
    # Unlike a rename, a link replaces nothing.
    with ignoring(errno.EEXIST):
        path.hardlink_to(temporary)
    temporary.unlink()


def _end_of_lines(descriptor: int) -> int:
    """Where the last whole line ends."""
    end = os.fstat(descriptor).st_size
    while end > 0:
        start = max(0, end - _BLOCK)
        newline = os.pread(descriptor, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


def write_whole(descriptor: int, data: bytes) -> None:
    """All of it: a disk that becomes full in between takes a part without a word."""
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def _sync_names(directory: Path, replaced: list[_Replacement]) -> None:
    try:
        sync_dir(directory)
    except OSError as error:
        for one in replaced:
            one.attempt(functools.partial(_fail, error))


def _fail(error: OSError) -> None:
    raise error


def _begin_to_sync(descriptor: int) -> None:
    # Files that are on their way to the disk together need one commit of its journal, not one each. The kernel begins
    # to write what it is told to forget. Nothing hangs on it: fsync comes after it.
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


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
