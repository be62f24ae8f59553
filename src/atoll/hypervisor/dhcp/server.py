"""The DHCP server on the wire: a packet socket in the service namespace of a bridge, served by the loop.

Effects: opens sockets in a namespace, reads and writes frames.
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
from atoll.hypervisor.dhcp import codec, frames
from atoll.hypervisor.dhcp.answer import Answer, Lease, Silence, answer
from atoll.system import clock, namespaces

SERVER_PORT, CLIENT_PORT = 67, 68
BATCH = 64
"""Frames taken per turn of the loop, so that a flood leaves it time for everything else."""
PER_GUEST_PER_S = 50
"""A guest needs two for a lease. What goes beyond is dropped before it is even looked at."""

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


class DhcpServer:
    """Answers the guests behind one link of a namespace."""

    def __init__(
        self,
        namespace: str,
        link: str,
        find: Callable[[str], Lease | None],
        on_ack: Callable[[str], None],
        on_decline: Callable[[str], None] | None = None,
        on_release: Callable[[str], None] | None = None,
        *,
        per_guest_per_s: int = PER_GUEST_PER_S,
    ) -> None:
        """`find` gives the lease of a MAC; the others are told the IP."""
        self._namespace = namespace
        self._link = link
        self._find = find
        self._on_ack = on_ack
        self._on_decline = on_decline
        self._on_release = on_release
        self._per_guest_per_s = per_guest_per_s
        self._buffer = bytearray(_LARGEST_FRAME)
        self._seen: dict[bytes, int] = {}
        self._second = 0
        self._mac = ""
        self._wire: socket.socket | None = None
        self._port: socket.socket | None = None
        self.counters = Counters()

    async def start(self) -> None:
        """Begin to answer. Started already is fine."""
        if self._wire is not None:
            return
        try:
            self._wire, self._port = namespaces.inside(self._namespace, self._open)
        except OSError as error:
            raise HostFailure(
                f"starting DHCP on {self._link} in namespace {self._namespace}: {error.strerror or error}",
                hint="the agent makes both when it starts; is another DHCP server in that namespace?",
            ) from error
        self._mac = self._wire.getsockname()[4].hex(":")
        self._watch(self._wire)

    async def close(self) -> None:
        """Stop answering. Closed already is fine."""
        if self._wire is not None:
            asyncio.get_running_loop().remove_reader(self._wire.fileno())
            self._wire.close()
            self._wire = None
        if self._port is not None:
            self._port.close()
            self._port = None

    def _open(self) -> tuple[socket.socket, socket.socket]:
        # Protocol 0 receives nothing until bind() names one: no frame slips in before the filter is there.
        wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        try:
            wire.setblocking(False)
            wire.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _RECEIVE_BUFFER_BYTES)
            _attach_filter(wire, frames.udp_filter(SERVER_PORT))
            wire.bind((self._link, frames.ETHERTYPE_IPV4))
            return wire, _hold_port()
        except BaseException:
            wire.close()
            raise

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
        buffer = self._buffer
        for _ in range(BATCH):
            try:
                size = wire.recv_into(buffer)
            except BlockingIOError:
                return
            except OSError as error:
                # The link went down. Frames come again when it does.
                log.warning("DHCP on %s in %s: %s", self._link, self._namespace, error)
                self._watch(wire)
                return
            self.counters.received += 1
            source = bytes(buffer[6:12])
            seen = self._seen[source] = self._seen.get(source, 0) + 1
            if seen > self._per_guest_per_s:
                self.counters.excess += 1
            else:
                self._serve(wire, bytes(buffer[:size]))

    def _serve(self, wire: socket.socket, frame: bytes) -> None:
        counters = self.counters
        try:
            datagram = frames.parse(frame)
            message = codec.parse(datagram.payload)
        except codec.BadPacket:
            counters.malformed += 1
            return
        reply = answer(message, datagram.source_mac, self._find)
        if isinstance(reply, Answer):
            self._send(wire, reply)
        elif reply is Silence.STRANGER:
            counters.strangers += 1
        else:
            counters.silent += 1
            if reply is Silence.DECLINED and self._on_decline is not None and message.requested_ip:
                self._on_decline(message.requested_ip)
            elif reply is Silence.RELEASED and self._on_release is not None:
                self._on_release(message.ciaddr)

    def _send(self, wire: socket.socket, reply: Answer) -> None:
        mac, ip = reply.destination
        frame = frames.build(
            frames.Datagram(
                source_mac=self._mac,
                target_mac=mac,
                source_ip=reply.source,
                target_ip=ip,
                source_port=SERVER_PORT,
                target_port=CLIENT_PORT,
                payload=codec.build(reply.reply, reply.limit),
            )
        )
        try:
            wire.send(frame)
        except OSError as error:
            # A full queue or a link that just went: the guest asks again.
            log.debug("DHCP on %s in %s: reply not sent: %s", self._link, self._namespace, error)
            self.counters.unsent += 1
            return
        self.counters.answered += 1
        if reply.acknowledged:
            self._on_ack(reply.reply.yiaddr)


def _hold_port() -> socket.socket:
    """A socket that takes nothing: without it the kernel tells renewing guests that nobody is here."""
    holder = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        _attach_filter(holder, frames.DROP_ALL)
        holder.bind(("0.0.0.0", SERVER_PORT))
    except BaseException:
        holder.close()
        raise
    return holder


def _attach_filter(target: socket.socket, program: bytes) -> None:
    code = ctypes.create_string_buffer(program, len(program))
    target.setsockopt(
        socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HL", len(program) // 8, ctypes.addressof(code))
    )
