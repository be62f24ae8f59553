"""Where files from a guest are put: below one directory, and nowhere else, whatever the archive says. Effects: files.

Every directory on the way to an entry is opened from the one above it, and never through a link: not one that was
there before, not one that the archive itself has made. Files are made anew; what is in the way of one is removed, but
no directory. Devices are not made; bits that give rights are left out unless they are asked for.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator

from atoll.cli.tar_stream import DIRECTORY, FILE, HARD_LINK, SYMLINK, Entry
from atoll.errors import AtollError, Malformed

MOST_DEPTH = 256
_WALK = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Limits:
    """What was announced, and a little more for what grows meanwhile."""

    def __init__(self, count: int, size: int) -> None:
        self.count = count + count // 10 + 100
        self.size = size + size // 10 + (16 << 20)

    def check(self, count: int, size: int) -> None:
        if count > self.count or size > self.size:
            raise Malformed(
                "vm cp: the guest sends more than it announced",
                hint="does something in it grow just now? stop that, and copy again",
            )


class Landing:
    """One tree that comes, below an open directory. To be closed."""

    def __init__(self, root: int, limits: Limits, *, keep_setid: bool = False) -> None:
        self._root = root
        self._limits = limits
        self._bits = 0o7777 if keep_setid else 0o777
        self._file: int | None = None
        self._entry: Entry | None = None
        self._left = 0
        self._made: set[tuple[bytes, ...]] = set()
        """The files of this archive."""
        self._directories: dict[tuple[bytes, ...], Entry] = {}
        self.count = 0
        self.size = 0
        self.skipped: list[str] = []
        """What was left out: devices and the like, the first few."""

    def take(self, piece: Entry | bytes) -> None:
        """An entry, or content of the file that came last."""
        if isinstance(piece, bytes):
            self._write(piece)
            return
        self._finish()
        self.count += 1
        self.size += piece.size
        self._limits.check(self.count, self.size)
        way = parts_of(piece.name)
        make = {
            DIRECTORY: self._make_directory,
            FILE: self._make_file,
            SYMLINK: self._make_symlink,
            HARD_LINK: self._make_hard_link,
        }.get(piece.kind)
        if make is not None:
            make(way, piece)
        elif len(self.skipped) < 10:
            self.skipped.append(f"{piece.name.decode(errors='replace')} ({piece.kind})")

    def finish(self) -> None:
        """All has come: directories get their modes and times, the innermost first."""
        self._finish()
        for way in sorted(self._directories, key=len, reverse=True):
            entry = self._directories[way]
            with _opened(self._walk(way, make=False)) as descriptor:
                os.fchmod(descriptor, entry.mode & self._bits)
                os.utime(descriptor, (entry.mtime, entry.mtime))

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _write(self, data: bytes) -> None:
        # Of an entry that was left out there is content too.
        if self._file is None:
            return
        self._left -= len(data)
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._file, rest) :]

    def _finish(self) -> None:
        if self._file is None:
            return
        assert self._entry is not None
        if self._left:
            raise Malformed("the archive ends within a file")
        os.fchmod(self._file, self._entry.mode & self._bits)
        os.utime(self._file, (self._entry.mtime, self._entry.mtime))
        os.close(self._file)
        self._file = None

    def _make_directory(self, way: tuple[bytes, ...], entry: Entry) -> None:
        os.close(self._walk(way, make=True))
        self._directories[way] = entry

    def _make_file(self, way: tuple[bytes, ...], entry: Entry) -> None:
        with self._place(way) as (directory, name):
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            self._file = os.open(name, flags, 0o600, dir_fd=directory)
        self._entry, self._left = entry, entry.size
        self._made.add(way)

    def _make_symlink(self, way: tuple[bytes, ...], entry: Entry) -> None:
        if not entry.target or b"\0" in entry.target:
            raise Malformed("the archive has a link to nothing")
        with self._place(way) as (directory, name):
            os.symlink(entry.target, name, dir_fd=directory)
            os.utime(name, (entry.mtime, entry.mtime), dir_fd=directory, follow_symlinks=False)

    def _make_hard_link(self, way: tuple[bytes, ...], entry: Entry) -> None:
        source = parts_of(entry.target)
        if source not in self._made:
            raise Malformed("the archive has a hard link to what is no file of its own")
        with self._place(way) as (directory, name), _opened(self._walk(source[:-1], make=False)) as above:
            os.link(source[-1], name, src_dir_fd=above, dst_dir_fd=directory, follow_symlinks=False)
        self._made.add(way)

    @contextlib.contextmanager
    def _place(self, way: tuple[bytes, ...]) -> Iterator[tuple[int, bytes]]:
        """The directory of an entry and its name there, with nothing in the way."""
        if not way:
            raise Malformed("the archive has a file without a name")
        with _opened(self._walk(way[:-1], make=True)) as directory:
            name = way[-1]
            self._made.discard(way)
            with contextlib.suppress(FileNotFoundError):
                if stat.S_ISDIR(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
                    raise Malformed(
                        f"vm cp: {name.decode(errors='replace')} is a directory here, and none there"
                    )
                os.unlink(name, dir_fd=directory)
            yield directory, name

    def _walk(self, way: tuple[bytes, ...], *, make: bool) -> int:
        """That directory, opened."""
        directory = os.dup(self._root)
        for name in way:
            above = directory
            try:
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(name, 0o700, dir_fd=above)
                directory = os.open(name, _WALK, dir_fd=above)
            except OSError as error:
                raise AtollError(
                    f"vm cp: {name.decode(errors='replace')}: {os.strerror(error.errno or 0).lower()}",
                    hint="nothing is written through links: is one in the way?",
                ) from None
            finally:
                os.close(above)
        return directory


@contextlib.contextmanager
def _opened(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def parts_of(name: bytes) -> tuple[bytes, ...]:
    """The way to an entry; Malformed for one that could lead out. Pure."""
    if name.startswith(b"/") or b"\0" in name:
        raise Malformed("the archive has a name that begins at the root")
    parts = tuple(part for part in name.split(b"/") if part not in (b"", b"."))
    if b".." in parts or len(parts) > MOST_DEPTH or any(len(part) > 255 for part in parts):
        raise Malformed("the archive has a name that leads out of it")
    return parts
