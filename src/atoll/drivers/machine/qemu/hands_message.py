"""What host and guest say on the port over which commands are run: images/guest/hands_message.h has it in words. Pure.

The guest is not trusted: what it says is bounded, and anything that is no frame ends the connection.
"""

from __future__ import annotations

import struct
from enum import IntEnum

from msgspec import Struct

from atoll.errors import HostFailure
from atoll.model.command import Command

HEAD = 8
MOST = 32 << 10
"""Bytes after the head."""
WINDOW = 32 << 10
"""Of input that the guest has not taken yet."""
CREDIT = 128 << 10
"""Of output that nobody here has read yet."""
NONCE = 16
MOST_BEFORE_HELLO = 1 << 20
"""Bytes that an earlier connection may have left on the way."""


class Kind(IntEnum):
    HELLO = 1
    START = 2
    INPUT = 3
    END_INPUT = 4
    RESIZE = 5
    SIGNAL = 6
    CREDIT = 7
    HANG_UP = 8
    OUTPUT = 16
    ERRORS = 17
    TAKEN = 18
    EXIT = 19


class Frame(Struct, frozen=True):
    kind: int
    session: int
    data: bytes

    @property
    def number(self) -> int:
        return int.from_bytes(self.data, "big") if len(self.data) == 4 else 0


_FROM_GUEST = frozenset({Kind.HELLO, Kind.OUTPUT, Kind.ERRORS, Kind.TAKEN, Kind.EXIT})


def frame(kind: Kind, session: int, data: bytes = b"") -> bytes:
    return struct.pack("!BBHI", kind, 0, session, len(data)) + data


def hello(nonce: bytes) -> bytes:
    """What a new connection begins with: whatever was half said before ends with it."""
    return b"\0" * (HEAD + MOST) + frame(Kind.HELLO, 0, nonce)


def start(session: int, command: Command) -> bytes:
    size = command.terminal
    fixed = struct.pack(
        "!5H",
        size.rows if size else 0,
        size.columns if size else 0,
        1 if command.input else 0,
        len(command.argv),
        len(command.env),
    )
    texts = (command.user, command.cwd, *command.argv, *(f"{k}={v}" for k, v in command.env.items()))
    return frame(Kind.START, session, fixed + b"".join(text.encode() + b"\0" for text in texts))


class Reader:
    """Frames of a guest, from its answer to a greeting on. HostFailure for what is none."""

    def __init__(self, nonce: bytes) -> None:
        self._greeting = frame(Kind.HELLO, 0, nonce)
        self._bytes = bytearray()
        self._dropped = 0
        self.greeted = False

    def feed(self, data: bytes) -> list[Frame]:
        self._bytes += data
        if not self.greeted and not self._find_greeting():
            return []
        found: list[Frame] = []
        while len(self._bytes) >= HEAD:
            kind, zero, session, size = struct.unpack_from("!BBHI", self._bytes)
            if kind not in _FROM_GUEST or zero or size > MOST:
                raise HostFailure("its guest agent says what is no frame")
            if len(self._bytes) < HEAD + size:
                break
            found.append(Frame(kind, session, bytes(self._bytes[HEAD : HEAD + size])))
            del self._bytes[: HEAD + size]
        return found

    def _find_greeting(self) -> bool:
        at = self._bytes.find(self._greeting)
        if at >= 0:
            self.greeted = True
            del self._bytes[: at + len(self._greeting)]
            return True
        keep = len(self._greeting) - 1
        self._dropped += max(0, len(self._bytes) - keep)
        del self._bytes[:-keep]
        if self._dropped > MOST_BEFORE_HELLO:
            raise HostFailure("its guest agent does not answer, and says much else")
        return False
