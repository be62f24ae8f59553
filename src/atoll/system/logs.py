"""The log of a process that writes to standard error, kept small whoever makes it write. Renames that file.

Where standard error is a file, it becomes <file>.1 when it has grown to LIMIT, and a new one is begun: both
together are all that a log ever takes. A journal or a terminal looks after itself. Wherever it goes, lines that are
alike are folded, no line is long, and what stands in one cannot look like another: callers choose some of the words.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import time
from pathlib import Path

from atoll.system.folding import Folding

LIMIT = 8 * 1024 * 1024
FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
MOST_ALIKE = 50
"""Records of one place in the code within ALIKE_S; the rest is a number."""
ALIKE_S = 10.0
KINDS = 256
MAX_MESSAGE = 2000
MAX_TRACEBACK = 8000

_STDOUT, _STDERR = 1, 2


def one_line(text: str, most: int = MAX_MESSAGE) -> str:
    """Text that others chose, for a log: without control characters, and not long. Pure."""
    shown = "".join(char if char.isprintable() else repr(char)[1:-1] for char in text[: most + 1])
    return shown if len(shown) <= most else f"{shown[:most]}… ({len(text)} characters)"


class PlainFormatter(logging.Formatter):
    """One record, one line; the lines of a traceback are indented, so that none looks like a record."""

    def format(self, record: logging.LogRecord) -> str:
        record.message = one_line(record.getMessage())
        record.asctime = self.formatTime(record)
        lines = [self.formatMessage(record)]
        if record.exc_info:
            lines.append(_indented(self.formatException(record.exc_info)))
        if record.stack_info:
            lines.append(_indented(record.stack_info))
        return "\n".join(lines)


def _indented(text: str) -> str:
    # The end of it tells most.
    return "\n".join(f"  {one_line(line)}" for line in text[-MAX_TRACEBACK:].split("\n"))


class BoundedHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to standard error, folds what is alike, and begins a new file where that one is full."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(PlainFormatter(FORMAT))
        self._folding = Folding(MOST_ALIKE, ALIKE_S, KINDS)

    def emit(self, record: logging.LogRecord) -> None:
        now = time.monotonic()
        for kind, count in self._folding.over(now):
            self._write(_told("%s: and %d more like it", kind, count))
        if self._folding.tell(_kind_of(record), now) is not None:
            self._write(record)

    def _write(self, record: logging.LogRecord) -> None:
        super().emit(record)
        # A disk that is full must not end who logs about it.
        with contextlib.suppress(OSError):
            if is_full(_STDERR):
                begin_anew(Path(f"/proc/self/fd/{_STDERR}").readlink())


def _kind_of(record: logging.LogRecord) -> str:
    """Records of one place in the code are alike, whatever they are about."""
    error = record.exc_info[0].__name__ if record.exc_info and record.exc_info[0] else ""
    return f"{record.name} {str(record.msg)[:80]} {error}".rstrip()


def _told(text: str, *words: object) -> logging.LogRecord:
    return logging.LogRecord(__name__, logging.WARNING, __file__, 0, text, words, None)


def start() -> None:
    """Log to standard error from now on."""
    logging.basicConfig(level=logging.INFO, handlers=[BoundedHandler()])


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
