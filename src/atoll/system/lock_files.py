"""Files that one process at a time holds a lock on, which does not survive it. Effects: makes the file, locks it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from atoll.errors import Conflict
from atoll.system.failures import failing

_ORPHANED_S = 5.0
_POLL_S = 0.02


class Lock:
    """A lock on a file, held until the block or the process ends. The file stays: removing it would race.

    A process that is killed while it starts another leaves it the lock, until that has become a program of its own.
    Nobody who runs has it then, so it is waited for.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def __enter__(self) -> Self:
        with failing(f"opening lock {self.path}"):
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            _lock_or_wait(descriptor)
            with contextlib.suppress(OSError):  # who holds it is told if the disk has room for it
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        except BlockingIOError:
            holder = _holder(descriptor) or "unknown"
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


def _lock_or_wait(descriptor: int) -> None:
    """BlockingIOError when a process that runs has it."""
    until = time.monotonic() + _ORPHANED_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > until or not _has_ended(_holder(descriptor)):
                raise
            time.sleep(_POLL_S)


def _holder(descriptor: int) -> str:
    return os.pread(descriptor, 20, 0).decode(errors="replace").strip()


def _has_ended(pid: str) -> bool:
    """Also when nobody has asked for its status yet."""
    try:
        process = os.pidfd_open(int(pid))
    except ProcessLookupError:
        return True
    except (OSError, ValueError):
        return False
    try:
        return bool(select.select([process], [], [], 0)[0])
    finally:
        os.close(process)


def exclusive(path: Path) -> Lock:
    """`with exclusive(path):` runs in one process at a time; Conflict, at once, in the others."""
    return Lock(path)
