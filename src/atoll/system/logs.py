"""The log of a process that writes to standard error, kept small whoever makes it write. Renames that file.

Where standard error is a file, it becomes <file>.1 when it has grown to LIMIT, and a new one is begun: both
together are all that a log ever takes. A journal or a terminal looks after itself.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
from pathlib import Path

LIMIT = 8 * 1024 * 1024
FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

_STDOUT, _STDERR = 1, 2


class BoundedHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to standard error, and begins a new file where that one is full."""

    def emit(self, record: logging.LogRecord) -> None:
        super().emit(record)
        # A disk that is full must not end who logs about it.
        with contextlib.suppress(OSError):
            if is_full(_STDERR):
                begin_anew(Path(f"/proc/self/fd/{_STDERR}").readlink())


def start() -> None:
    """Log to standard error from now on."""
    logging.basicConfig(level=logging.INFO, format=FORMAT, handlers=[BoundedHandler()])


def is_full(descriptor: int) -> bool:
    seen = os.fstat(descriptor)
    return stat.S_ISREG(seen.st_mode) and seen.st_size >= LIMIT


def begin_anew(path: Path) -> None:
    """Standard error, and output if it goes there too, to a new file at `path`; the old one is kept beside it."""
    try:
        old = os.fstat(_STDERR)
        both = os.path.samestat(old, os.fstat(_STDOUT))
        if not os.path.samestat(old, path.stat()):
            raise FileNotFoundError(path)
        descriptor = rotate(path)
    except FileNotFoundError:
        # Somebody has removed the file: what nobody can read need not be kept.
        os.ftruncate(_STDERR, 0)
        return
    for target in (_STDERR, _STDOUT) if both else (_STDERR,):
        os.dup2(descriptor, target)
    os.close(descriptor)


def rotate(path: Path) -> int:
    """Move a log out of the way; a descriptor of a new one, to append to."""
    path.replace(path.with_name(f"{path.name}.1"))
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def append(path: Path, line: str) -> None:
    """One line for a log that a process which has ended wrote to."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    with contextlib.suppress(OSError):
        descriptor = os.open(path, flags, 0o600)
        if is_full(descriptor):
            os.close(descriptor)
            descriptor = rotate(path)
        try:
            os.write(descriptor, f"{line}\n".encode(errors="replace"))
        finally:
            os.close(descriptor)
