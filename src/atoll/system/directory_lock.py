"""A directory that one process at a time works in: the directory itself is the lock. Makes it where it is missing.

Unlike a lock file this leaves nothing behind, and whoever holds it may remove the directory.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from atoll.system import files
from atoll.system.failures import failing


@contextlib.contextmanager
def alone_in(directory: Path, mode: int = 0o700) -> Iterator[int]:
    """`with alone_in(path):` waits for whoever is in it, then keeps others out. Gives a descriptor of it."""
    while True:
        files.make_dirs(directory, mode)
        with failing(f"locking {directory}"):
            try:
                descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except FileNotFoundError:
                continue  # whoever was in it has just removed it
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if _is_at(descriptor, directory):
                yield descriptor
                return
        finally:
            os.close(descriptor)


def _is_at(descriptor: int, directory: Path) -> bool:
    """The directory that is locked is still the one of that name."""
    try:
        return os.path.samestat(os.fstat(descriptor), directory.stat())
    except FileNotFoundError:
        return False
