"""What becomes of the links of the namespace that we are in, as the kernel tells it. Reads a netlink socket.

Decoded by hand, and no more than the name: every start and end of a machine is told here several times over.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import struct
from collections.abc import Callable, Iterator

from atoll.system.failures import failing

_GROUP_LINK = 1
_NEW, _GONE = 16, 17
_HEADER = struct.Struct("=IHHII")
_INFO = struct.Struct("=BxHiII")
_ATTRIBUTE = struct.Struct("=HH")
_NAME = 3
_BUFFER_BYTES = 1 << 18

OnLink = Callable[[str | None, bool], None]
"""Told the name of a link, and whether it is there or has gone; None when some of it was missed."""


def watch(on_link: OnLink) -> Callable[[], None]:
    """Call back, from the running loop, for every link that comes, changes or goes. Returns how to end that."""
    loop = asyncio.get_running_loop()
    with failing("watching links"):
        kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        events = socket.socket(socket.AF_NETLINK, kind, socket.NETLINK_ROUTE)
        events.bind((0, _GROUP_LINK))

    def read() -> None:
        try:
            told = list(decode(events.recv(_BUFFER_BYTES)))
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno != errno.ENOBUFS:
                raise
            on_link(None, False)
            return
        for name, there in told:
            on_link(name, there)

    def end() -> None:
        loop.remove_reader(events)
        events.close()

    loop.add_reader(events, read)
    return end


def decode(data: bytes) -> Iterator[tuple[str, bool]]:
    """The names in messages of the kernel, and whether their links are there. Pure."""
    while len(data) >= _HEADER.size:
        length, kind, *_ = _HEADER.unpack_from(data)
        message, data = data[_HEADER.size : length], data[max(_aligned(length), _HEADER.size) :]
        if kind not in (_NEW, _GONE) or len(message) < _INFO.size:
            continue
        family, *_ = _INFO.unpack_from(message)
        # That of a bridge tells of its ports, which may have left it and be there all the same.
        if family == socket.AF_UNSPEC:
            yield from ((name, kind == _NEW) for name in _names(message[_INFO.size :]))


def _names(attributes: bytes) -> Iterator[str]:
    while len(attributes) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(attributes)
        if kind == _NAME:
            yield attributes[_ATTRIBUTE.size : length].rstrip(b"\0").decode(errors="replace")
        attributes = attributes[max(_aligned(length), _ATTRIBUTE.size) :]


def _aligned(length: int) -> int:
    return (length + 3) & ~3
