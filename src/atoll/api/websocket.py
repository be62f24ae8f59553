"""The client's side of WebSockets (RFC 6455) for those who cannot wait for an import. Pure: bytes in, frames out."""

from __future__ import annotations

import base64
import hashlib
import os

from msgspec import Struct

from atoll.errors import Unreachable

TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
MOST_MESSAGE = 1 << 20
_CONTINUED = 0
_NO_MASK = bytes(4)
_GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class Message(Struct, frozen=True):
    kind: int
    data: bytes


class Reader:
    """Messages of a service, out of bytes in pieces of any size. Unreachable for what is no WebSocket."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._parts = bytearray()
        self._kind = 0

    def feed(self, data: bytes) -> list[Message]:
        self._bytes += data
        found: list[Message] = []
        while (frame := self._frame()) is not None:
            final, kind, payload = frame
            if kind >= CLOSE:
                if not final:
                    raise _broken("a control frame in parts")
                found.append(Message(kind, payload))
                continue
            if (kind == _CONTINUED) != bool(self._kind):
                raise _broken("parts of messages in disorder")
            if final and kind != _CONTINUED:
                found.append(Message(kind, payload))
                continue
            self._kind = kind or self._kind
            self._parts += payload
            if len(self._parts) > MOST_MESSAGE:
                raise _broken("a message that is too long")
            if final:
                found.append(Message(self._kind, bytes(self._parts)))
                self._kind, self._parts = 0, bytearray()
        return found

    def _frame(self) -> tuple[bool, int, bytes] | None:
        have = self._bytes
        if len(have) < 2:
            return None
        first, second = have[0], have[1]
        if first & 0x70 or second & 0x80 or first & 0x0F not in (_CONTINUED, TEXT, BINARY, CLOSE, PING, PONG):
            raise _broken("a frame of no known kind")
        size, at = second, 2
        if size >= 126:
            at = 4 if size == 126 else 10
            if len(have) < at:
                return None
            size = int.from_bytes(have[2:at], "big")
        if size > MOST_MESSAGE:
            raise _broken("a frame that is too long")
        if len(have) < at + size:
            return None
        with memoryview(have) as all_of_it:
            payload = bytes(all_of_it[at : at + size])
        del have[: at + size]
        return bool(first & 0x80), first & 0x0F, payload


def masked(kind: int, data: bytes, mask: bytes | None = None) -> bytes:
    """A message as one frame of a client."""
    mask = mask or os.urandom(4)
    size = len(data)
    key = int.from_bytes((mask * (size // 4 + 1))[:size], "little")
    return _head(kind, size) + mask + (int.from_bytes(data, "little") ^ key).to_bytes(size, "little")


def bulk(*parts: bytes) -> bytes:
    """A binary message of these parts as one frame of a client, for TLS only: its mask is zero, which costs nothing.

    A mask is there for scripts in browsers, which shall not choose the bytes that a proxy sees. TLS sees to that.
    """
    return b"".join((_head(BINARY, sum(map(len, parts))), _NO_MASK, *parts))


def _head(kind: int, size: int) -> bytes:
    if size < 126:
        return bytes((0x80 | kind, 0x80 | size))
    if size < 1 << 16:
        return bytes((0x80 | kind, 0x80 | 126)) + size.to_bytes(2, "big")
    return bytes((0x80 | kind, 0x80 | 127)) + size.to_bytes(8, "big")


def handshake(host: str, target: str) -> tuple[bytes, str]:
    """A request to upgrade, and what the service has to accept it with."""
    key = base64.b64encode(os.urandom(16)).decode()
    request = (
        f"GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n"
    )
    accept = base64.b64encode(hashlib.sha1((key + _GUID).encode(), usedforsecurity=False).digest()).decode()
    return request.encode(), accept


def _broken(why: str) -> Unreachable:
    return Unreachable(f"the service sent {why}", hint="is it a Hypervisor? see: atoll status")
