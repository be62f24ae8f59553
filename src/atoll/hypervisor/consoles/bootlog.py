"""Boot logs: what each guest wrote to its serial console, kept by the machine itself, kept small by us.

The machine appends. What is too old is given back to the file system from the front, and nothing moves: a
byte has one place in the log for good, and whoever reads on from a place misses none and sees none twice.

Effects: reads `console.log` in VM directories, and gives back what it takes of the disk.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from pathlib import Path
from typing import IO

from atoll.system import sparse

log = logging.getLogger(__name__)

CHUNK = 64 << 10
LARGEST = 4 << 20
KEPT = 1 << 20
EVERY_S = 20.0


class BootLogs:
    def __init__(self, directory: Callable[[str], Path]) -> None:
        self._directory = directory

    async def read(self, ip: str) -> AsyncGenerator[bytes, None]:
        """The log as it is now; nothing when the machine has not written yet."""
        with self.tail(ip) as tail:
            for chunk in tail.history():
                yield chunk

    def tail(self, ip: str, *, history: bool = True) -> Tail:
        return Tail(self._directory(ip) / "console.log", history=history)

    async def keep_small(self, ips: Callable[[], Iterable[str]]) -> None:
        """For ever: a guest that writes without end must not fill the node's disk."""
        while True:
            await asyncio.sleep(EVERY_S)
            for ip in ips():
                try:
                    trim(self._directory(ip) / "console.log")
                except OSError as error:
                    log.warning("keeping the boot log of VM %s small: %s", ip, error)


class Tail:
    """One reader of a log: what is there when it comes, unless it wants no history, then what is added."""

    def __init__(self, path: Path, *, history: bool = True) -> None:
        self._path = path
        self._file: IO[bytes] | None = None
        self._at = 0
        self._joined_at = 0
        if self._opened() is not None:
            self._joined_at = self._size()
            self._at = max(0, self._joined_at - LARGEST) if history else self._joined_at
            self._skip_what_is_gone(cut=self._at > 0 and history)

    def __enter__(self) -> Tail:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def history(self) -> Iterator[bytes]:
        """What was there before we came."""
        while self._at < self._joined_at and (data := self._next(self._joined_at)):
            yield data

    def read(self) -> bytes:
        """The next piece; empty when there is none just now."""
        return b"" if self._opened() is None else self._next(self._size())

    def _next(self, end: int) -> bytes:
        assert self._file is not None
        # Shorter than what we have seen: it was cut, as file systems that cannot give back a front need it.
        self._at = min(self._at, self._size())
        self._skip_what_is_gone()
        data = os.pread(self._file.fileno(), max(0, min(CHUNK, end - self._at)), self._at)
        self._at += len(data)
        return data

    def _skip_what_is_gone(self, *, cut: bool = False) -> None:
        """Go on with the first line that is whole."""
        assert self._file is not None
        kept = sparse.first_kept(self._file.fileno(), self._at)
        if kept > self._at or cut:
            line = os.pread(self._file.fileno(), CHUNK, kept).find(b"\n")
            self._at = kept + line + 1

    def _size(self) -> int:
        assert self._file is not None
        return os.fstat(self._file.fileno()).st_size

    def _opened(self) -> IO[bytes] | None:
        if self._file is None:
            try:
                self._file = _open(self._path, os.O_RDONLY)
            except FileNotFoundError:
                return None
        return self._file


def trim(path: Path) -> None:
    """Of a log that grew too large only the end stays. The machine goes on behind it, whatever we do."""
    try:
        console = _open(path, os.O_RDWR)
    except FileNotFoundError:
        return
    with console:
        size = os.fstat(console.fileno()).st_size
        if size - sparse.first_kept(console.fileno()) > LARGEST:
            old = (size - KEPT) // sparse.BLOCK * sparse.BLOCK
            if not sparse.release(console.fileno(), old):
                _rewrite(console, size)


def _rewrite(console: IO[bytes], size: int) -> None:
    """Without holes, what is written meanwhile can be lost; the disk matters more."""
    console.seek(size - KEPT)
    end = console.read(KEPT)
    console.truncate(0)
    console.seek(0)
    console.write(end)


def _open(path: Path, flags: int) -> IO[bytes]:
    # Never through a link: the machine's own process writes this file, and must not choose what we read.
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC)
    return os.fdopen(descriptor, "rb" if flags == os.O_RDONLY else "r+b")
