"""The terminal of the user, as programs elsewhere need it. Light: the standard library only. Effects: its modes."""

from __future__ import annotations

import contextlib
import errno
import os
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


def write_all(fd: int, data: bytes) -> None:
    try:
        while data:
            data = data[os.write(fd, data) :]
    except OSError as error:
        if error.errno == errno.EIO:
            raise BrokenPipeError(errno.EPIPE, "the terminal has gone") from None
        raise
