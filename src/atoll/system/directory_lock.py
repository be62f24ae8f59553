"""A directory that one process at a time works in: the directory itself is the lock. Makes it where it is missing.

Only its owner can open it, so nobody else can hold it: a lock that others can open is a lock that others can keep.
Unlike a lock file it need not be left behind: whoever holds it may remove the directory.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from atoll.errors import HostFailure, TimedOut
from atoll.system import files
from atoll.system.failures import failing

_POLL_S = 0.02


@contextlib.contextmanager
def alone_in(directory: Path, timeout_s: float | None = None) -> Iterator[int]:
    """`with alone_in(path):` waits for whoever is in it, then keeps others out. Gives a descriptor of it.

    TimedOut when somebody has been in it for so long; without a limit it waits for ever.
    """
    until = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        files.make_dirs(directory.parent)
        with failing(f"locking {directory}"):
            try:
                _make(directory)
                descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except FileNotFoundError:
                continue  # whoever was in it has just removed it
        try:
            _check_closed(descriptor, directory)
            if not _lock(descriptor, until):
                raise TimedOut(f"waiting for {directory}: somebody has been in it for {timeout_s:g} s")
            if _is_at(descriptor, directory):
                yield descriptor
                return
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def mutex(directory: Path, timeout_s: float = 30.0) -> Iterator[None]:
    """As `alone_in`, for a directory that is nothing but a lock: it goes when the block ends."""
    with alone_in(directory, timeout_s):
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                directory.rmdir()


def _make(directory: Path) -> None:
    with contextlib.suppress(FileExistsError):
        directory.mkdir(0o700)
        files.sync_dir(directory.parent)


def _lock(descriptor: int, until: float | None) -> bool:
    if until is None:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        return True
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > until:
                return False
            time.sleep(_POLL_S)


def _check_closed(descriptor: int, directory: Path) -> None:
    status = os.fstat(descriptor)
    if status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise HostFailure(
            f"locking {directory}: others can open it, and keep it locked",
            hint=f"see who did that; then: chown root {directory}; chmod 700 {directory}",
        )


def _is_at(descriptor: int, directory: Path) -> bool:
    """The directory that is locked is still the one of that name."""
    try:
        return os.path.samestat(os.fstat(descriptor), directory.stat())
    except FileNotFoundError:
        return False
