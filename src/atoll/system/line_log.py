"""A log of lines in a file: whole lines only, in parts of bounded size and age. Appends to files, removes old ones.

One writer at a time. A line is on disk when `append` returns; what a crash or a full disk cut short is taken away
again, so that a line is there whole or not at all.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct

from atoll.errors import HostFailure
from atoll.system import clock, files
from atoll.system.failures import failing

_BLOCK = 64 << 10


class Ages(Struct, frozen=True):
    """How old parts become."""

    turn_over_s: float
    """A part that was begun so long ago is turned over, however small it is."""
    keep_s: float
    """A part whose last line is older goes."""
    moment_of: Callable[[bytes], float | None]
    """When a line was written, in seconds since 1970, if it tells."""


class LineLog:
    """`kept` parts at most stay beside the one that is written to: <path>.1 is the newest of them."""

    def __init__(self, path: Path, limit_bytes: int, kept: int, ages: Ages | None = None) -> None:
        self.path = path
        self._limit_bytes = limit_bytes
        self._kept = kept
        self._ages = ages
        self._began_s: float | None = None
        """When the part was begun that is written to; None: not known yet."""

    @property
    def parts(self) -> list[Path]:
        """All that there can be, the oldest first."""
        older = [self.path.with_name(f"{self.path.name}.{number}") for number in range(1, self._kept + 1)]
        return [*reversed(older), self.path]

    def append(self, lines: Sequence[bytes]) -> list[HostFailure | None]:
        """What became of each. They are given without their ends, and have none inside."""
        failure = self._attempt(lines)
        if failure is None or len(lines) == 1:
            return [failure] * len(lines)
        # Where not all of them fit, some may.
        return [self._attempt([line]) for line in lines]

    def _attempt(self, lines: Sequence[bytes]) -> HostFailure | None:
        try:
            with failing(f"writing {self.path}"):
                self._append(b"".join(line + b"\n" for line in lines))
        except HostFailure as failure:
            return failure
        return None

    def _append(self, data: bytes) -> None:
        self._turn_over()
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(self.path, flags, 0o600)
        try:
            end = _mend(descriptor)
            try:
                files.write_whole(descriptor, data)
                os.fdatasync(descriptor)
            except BaseException:
                os.ftruncate(descriptor, end)
                raise
        finally:
            os.close(descriptor)
        if end == 0:
            files.sync_dir(self.path.parent)

    def _turn_over(self) -> None:
        try:
            if self.path.stat().st_size < self._limit_bytes and not self._is_old():
                return
        except FileNotFoundError:
            return
        self._began_s = None
        # Only as far as there are parts: one that is not there makes room.
        parts = self.parts
        gap = next((at for at in range(len(parts) - 1, -1, -1) if not parts[at].exists()), 0)
        for older, newer in itertools.pairwise(parts[gap:]):
            newer.replace(older)
        if self._ages is not None:
            self._drop_older_than(clock.now_ns() / 1e9 - self._ages.keep_s)

    def _is_old(self) -> bool:
        if self._ages is None:
            return False
        now_s = clock.now_ns() / 1e9
        if self._began_s is None:
            with self.path.open("rb") as file:
                self._began_s = self._ages.moment_of(file.readline(_BLOCK)) or now_s
        return now_s - self._began_s > self._ages.turn_over_s

    def _drop_older_than(self, moment_s: float) -> None:
        for part in self.parts[:-1]:
            with contextlib.suppress(FileNotFoundError):
                if part.stat().st_mtime < moment_s:
                    part.unlink()


def _mend(descriptor: int) -> int:
    """Cut off what is behind the last whole line; the length then."""
    end = size = os.fstat(descriptor).st_size
    while end:
        start = max(0, end - _BLOCK)
        if end == size and os.pread(descriptor, 1, size - 1) == b"\n":
            return size
        found = os.pread(descriptor, end - start, start).rfind(b"\n")
        if found >= 0:
            end = start + found + 1
            break
        end = start
    if end < size:
        os.ftruncate(descriptor, end)
    return end
