"""The screen of a simulated machine: an RFB server that greets, agrees, tells its size and shows nothing.

No effects: what it is told and what it says are bytes in memory.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable

VERSION = b"RFB 003.008\n"
WIDTH, HEIGHT = 640, 480
_NO_SECURITY = 1
# 32 bits a pixel, 24 of them of use, true colour, 8 bits each of red, green and blue.
_PIXELS = struct.pack("!BBBBHHHBBB3x", 32, 24, 0, 1, 255, 255, 255, 16, 8, 0)


class SimScreen:
    """A connection to it."""

    def __init__(self, name: str) -> None:
        self._name = name.encode()
        self._unread: asyncio.Queue[bytes] = asyncio.Queue()
        self._heard = b""
        self._steps: list[tuple[int, Callable[[bytes], bytes]]] = [
            (len(VERSION), lambda _: bytes([1, _NO_SECURITY])),
            (1, lambda chosen: struct.pack("!I", chosen != bytes([_NO_SECURITY]))),
            (1, lambda _: self._size()),
        ]
        self.closed = False
        self._unread.put_nowait(VERSION)

    async def read(self) -> bytes:
        if self.closed and self._unread.empty():
            return b""
        return await self._unread.get()

    async def write(self, data: bytes) -> None:
        if self.closed:
            raise ConnectionResetError("the screen is closed")
        self._heard += data
        while self._steps and len(self._heard) >= self._steps[0][0]:
            length, answer = self._steps.pop(0)
            self._unread.put_nowait(answer(self._heard[:length]))
            self._heard = self._heard[length:]

    async def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._unread.put_nowait(b"")

    def _size(self) -> bytes:
        return struct.pack("!HH", WIDTH, HEIGHT) + _PIXELS + struct.pack("!I", len(self._name)) + self._name
