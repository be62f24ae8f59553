"""Frames of one link: a packet socket in a namespace, served by the loop, with a limit for each sender.

Effects: opens the socket, reads and writes frames.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import socket
import struct
from collections.abc import Callable

from msgspec import Struct

from atoll.errors import HostFailure
from atoll.system import clock, namespaces

BATCH = 64
"""Frames taken per turn of the loop, so that a flood leaves it time for everything else."""

_LARGEST_FRAME = 4096
_RECEIVE_BUFFER_BYTES = 1 << 20
_SO_ATTACH_FILTER = 26
_SO_RCVBUFFORCE = 33

log = logging.getLogger(__name__)


class Counters(Struct):
    """What became of the frames: received is the sum of all the others."""

    received: int = 0
    answered: int = 0
    silent: int = 0
    strangers: int = 0
    malformed: int = 0
    excess: int = 0
    unsent: int = 0


class Wire:
    """`receive` is given each frame that passes the filter, up to so many a second from each MAC."""

    def __init__(
        self,
        name: str,
        namespace: str,
        link: str,
        ethertype: int,
        program: bytes,
        receive: Callable[[bytes], None],
        *,
        per_guest_per_s: int,
    ) -> None:
        self._name = name
        self._namespace = namespace
        self._link = link
        self._ethertype = ethertype
        self._program = program
        self._receive = receive
        self._per_guest_per_s = per_guest_per_s
        self._buffer = bytearray(_LARGEST_FRAME)
        self._seen: dict[bytes, int] = {}
        self._second = 0
        self._socket: socket.socket | None = None
        self.mac = ""
        self.counters = Counters()

    def open(self) -> None:
        """Begin to receive. Open already is fine."""
        if self._socket is not None:
            return
        try:
            self._socket = namespaces.inside(self._namespace, self._make)
        except OSError as error:
            where = f"{self._link} in namespace {self._namespace}"
            raise HostFailure(
                f"starting {self._name} on {where}: {error.strerror or error}",
                hint="the agent makes both when it starts",
            ) from error
        self.mac = self._socket.getsockname()[4].hex(":")
        self._watch(self._socket)

    def close(self) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None

    def send(self, frame: bytes) -> bool:
        """Whether it went out. A full queue or a link that just went: the guest asks again."""
        try:
            if self._socket is not None:
                self._socket.send(frame)
                return True
        except OSError as error:
            log.debug("%s on %s in %s: not sent: %s", self._name, self._link, self._namespace, error)
        return False

    def _make(self) -> socket.socket:
        # Protocol 0 receives nothing until bind() names one: no frame slips in before the filter is there.
        made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        try:
            made.setblocking(False)
            made.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _RECEIVE_BUFFER_BYTES)
            attach_filter(made, self._program)
            made.bind((self._link, self._ethertype))
        except BaseException:
            made.close()
            raise
        return made

    def _watch(self, wire: socket.socket) -> None:
        # Removed first: uvloop stops watching a socket that had an error, and adding it again does nothing.
        loop = asyncio.get_running_loop()
        loop.remove_reader(wire.fileno())
        loop.add_reader(wire.fileno(), self._readable, wire)

    def _readable(self, wire: socket.socket) -> None:
        second = int(clock.monotonic())
        if second != self._second:
            self._second = second
            self._seen.clear()
        for _ in range(BATCH):
            try:
                size = wire.recv_into(self._buffer)
            except BlockingIOError:
                return
            except OSError as error:
                # The link went down. Frames come again when it does.
                log.warning("%s on %s in %s: %s", self._name, self._link, self._namespace, error)
                self._watch(wire)
                return
            self.counters.received += 1
            source = bytes(self._buffer[6:12])
            seen = self._seen[source] = self._seen.get(source, 0) + 1
            if seen > self._per_guest_per_s:
                self.counters.excess += 1
            else:
                self._receive(bytes(self._buffer[:size]))


def attach_filter(target: socket.socket, program: bytes) -> None:
    """Let the socket have only what the filter passes."""
    code = ctypes.create_string_buffer(program, len(program))
    target.setsockopt(
        socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HL", len(program) // 8, ctypes.addressof(code))
    )
