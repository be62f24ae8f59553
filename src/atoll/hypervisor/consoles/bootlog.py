"""Boot logs: what each guest wrote to its serial console, kept by the machine itself, kept small by us.

The machine appends. What is too old is given back to the file system from the front, and nothing moves: a byte has
one place, counted from the first that the guest ever wrote, for good. Whoever reads on from a place misses none and
sees none twice, or learns how many are gone.

    console.log       what is kept, as a sparse file
    console.offset    how many bytes came before it, where a front cannot be given back and it had to be rewritten;
                      below 0 where its file begins with a hole that was never written (see drivers/machine/console_log)

Between two looks, and while no agent runs, the kernel holds the log to `console_log.MOST`.

Effects: reads and trims `console.log` in VM directories, in threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from pathlib import Path
from typing import IO

from atoll.api.route import Part
from atoll.drivers.machine.console_log import KEPT, note_place_before, place_before
from atoll.system import aside, clock, sparse

log = logging.getLogger(__name__)

CHUNK = 64 << 10
LARGEST = 4 << 20
FURTHEST = 8 << 40
"""A sparse file cannot grow for ever either: 16 TiB are the end of one on ext4."""
EVERY_S = 0.25
FLOODED_EVERY_S = 0.05
FLOODED_FOR_S = 5.0
"""A log that had to be trimmed is looked at more often for a while: what a guest writes meanwhile is on the disk."""


class BootLogs:
    """`on_trim` is called, in a thread, with the IP of a VM whose log has room again."""

    def __init__(
        self, directory: Callable[[str], Path], on_trim: Callable[[str], None] = lambda _ip: None
    ) -> None:
        self._directory = directory
        self._on_trim = on_trim

    async def read(
        self, ip: str, offset: int | None = None, check: Callable[[], object] = lambda: None
    ) -> Part:
        """The log as it is now, from a place on; nothing when the machine has not written yet. `check` as for tails."""
        tail = await aside.run(Tail, self._path(ip), offset=offset)
        with contextlib.ExitStack() as failed:
            failed.enter_context(tail)
            check()
            failed.pop_all()
        return Part(tail.at, _history(tail))

    def tail(self, ip: str, check: Callable[[], object] = lambda: None, *, history: bool = True) -> Tail:
        """`check` raises when the log that was just opened at this address may be another VM's."""
        return Tail(self._path(ip), history=history, check=check)

    async def keep_small(self, ips: Callable[[], Iterable[str]]) -> None:
        """For ever: a guest that writes without end must not fill the node's disk."""
        flooded: dict[str, float] = {}
        all_at = clock.monotonic()
        while True:
            now = clock.monotonic()
            trimmed = await aside.run(self._trim, tuple(ips()) if now >= all_at else tuple(flooded))
            if now >= all_at:
                all_at = now + EVERY_S
            flooded = {ip: until for ip, until in flooded.items() if until > now}
            flooded |= dict.fromkeys(trimmed, now + FLOODED_FOR_S)
            await asyncio.sleep(FLOODED_EVERY_S if flooded else EVERY_S)

    def _trim(self, ips: Iterable[str]) -> set[str]:
        """Those that were too large."""
        trimmed = set()
        for ip in ips:
            try:
                if trim(self._path(ip)):
                    trimmed.add(ip)
                    self._on_trim(ip)
            except OSError as error:
                log.warning("keeping the boot log of VM %s small: %s", ip, error)
        return trimmed

    def _path(self, ip: str) -> Path:
        return self._directory(ip) / "console.log"


async def _history(tail: Tail) -> AsyncGenerator[bytes, None]:
    with tail:
        pieces = tail.history()
        while piece := await aside.run(next, pieces, b""):
            yield piece


class Tail:
    """One reader of a log: what is there when it comes, or of that what is behind a place; then what is added."""

    def __init__(
        self,
        path: Path,
        *,
        history: bool = True,
        offset: int | None = None,
        check: Callable[[], object] = lambda: None,
    ) -> None:
        self._path = path
        self._check = check
        self._file: IO[bytes] | None = None
        self.at = 0
        """The place of what is read next."""
        self._joined_at = 0
        if self._opened() is not None:
            base, size = self._extent()
            self._joined_at = base + size
            if offset is not None:
                self.at = max(base, 0, min(offset, self._joined_at))
                self._skip_what_is_gone(base)
            else:
                first = max(base, 0)
                self.at = max(first, self._joined_at - LARGEST) if history else self._joined_at
                self._skip_what_is_gone(base, cut=self.at > first and history)

    def __enter__(self) -> Tail:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def history(self) -> Iterator[bytes]:
        """What was there before we came."""
        while self.at < self._joined_at and (data := self._next(self._joined_at)):
            yield data

    def read(self) -> bytes:
        """The next piece; empty when there is none just now."""
        return b"" if self._opened() is None else self._next(None)

    def _next(self, end: int | None) -> bytes:
        assert self._file is not None
        descriptor = self._file.fileno()
        while True:
            base, size = self._extent()
            # Shorter than what we have seen: somebody cut it.
            self.at = max(base, 0, min(self.at, base + size))
            self._skip_what_is_gone(base)
            place = self.at - base
            most = (base + size if end is None else end) - self.at
            data = os.pread(descriptor, max(0, min(CHUNK, most)), place)
            # What is given back while it is read reads as zeros.
            if sparse.first_kept(descriptor, place) == place:
                self.at += len(data)
                return data

    def _skip_what_is_gone(self, base: int, *, cut: bool = False) -> None:
        """Go on with the first line that is whole."""
        assert self._file is not None
        place = self.at - base
        kept = sparse.first_kept(self._file.fileno(), place)
        if kept > place or cut:
            line = os.pread(self._file.fileno(), CHUNK, kept).find(b"\n")
            self.at = base + kept + line + 1

    def _extent(self) -> tuple[int, int]:
        """The place at which the file begins, and its length."""
        assert self._file is not None
        return place_before(self._path), os.fstat(self._file.fileno()).st_size

    def _opened(self) -> IO[bytes] | None:
        if self._file is None:
            try:
                file = _open(self._path, os.O_RDONLY)
            except FileNotFoundError:
                return None
            try:
                self._check()
            except BaseException:
                file.close()
                raise
            self._file = file
        return self._file


def trim(path: Path) -> bool:
    """Of a log that grew too large only the end stays; whether it had. The machine goes on behind it meanwhile."""
    try:
        if path.lstat().st_blocks * 512 <= LARGEST:
            return False
        console = _open(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    with console:
        size = os.fstat(console.fileno()).st_size
        if size - sparse.first_kept(console.fileno()) <= LARGEST:
            return False
        old = (size - KEPT) // sparse.BLOCK * sparse.BLOCK
        if size > FURTHEST or not sparse.release(console.fileno(), old):
            _rewrite(path, console, size)
    return True


def _rewrite(path: Path, console: IO[bytes], size: int) -> None:
    """Without holes, what is written meanwhile can be lost; the disk matters more."""
    console.seek(size - KEPT)
    end = console.read(KEPT)
    with contextlib.suppress(OSError):  # on a full disk, places are counted anew
        note_place_before(path, place_before(path) + size - KEPT)
    console.truncate(0)
    console.seek(0)
    console.write(end)


def _open(path: Path, flags: int) -> IO[bytes]:
    # Never through a link: the machine's own process writes this file, and must not choose what we read.
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC)
    return os.fdopen(descriptor, "rb" if flags == os.O_RDONLY else "r+b")
