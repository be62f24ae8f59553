"""The terminal of the user, as programs elsewhere need it. Light: the standard library only. Effects: its modes."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import termios
import tty
from collections.abc import Iterator


@contextlib.contextmanager
def raw_terminal(fd: int) -> Iterator[None]:
    """Every key as it is pressed, nothing echoed; as it was before, however this ends."""
    before = termios.tcgetattr(fd)
    try:
        tty.setraw(fd)
        yield
    finally:
        try:
            termios.tcsetattr(fd, termios.TCSADRAIN, before)
        except termios.error as error:
            if error.args[0] != errno.EIO:  # the terminal itself has gone
                raise


def ask_unseen(fd: int, question: str) -> str:
    """A line that is typed there, and not echoed. Only what is typed after the question counts."""
    before = termios.tcgetattr(fd)
    silent = list(before)
    silent[3] &= ~(termios.ECHO | termios.ECHONL)
    try:
        termios.tcsetattr(fd, termios.TCSAFLUSH, silent)
        sys.stderr.write(question)
        sys.stderr.flush()
        # The terminal itself gives out one line at a time, of 4096 bytes at most.
        return os.read(fd, 4096).decode("utf-8", "replace")
    finally:
        termios.tcsetattr(fd, termios.TCSAFLUSH, before)
        sys.stderr.write("\n")


def write_all(fd: int, data: bytes) -> None:
    try:
        while data:
            data = data[os.write(fd, data) :]
    except OSError as error:
        if error.errno == errno.EIO:
            raise BrokenPipeError(errno.EPIPE, "the terminal has gone") from None
        raise
