"""A terminal of a width, and looking at it until something is there."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import termios


def opened(columns: int) -> tuple[int, int]:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    return master, slave


def until(master: int, text: bytes, seen: bytes = b"") -> bytes:
    while text not in seen:
        assert select.select([master], [], [], 30)[0], f"{text!r} never came: {seen!r}"
        seen += os.read(master, 4096)
    return seen
