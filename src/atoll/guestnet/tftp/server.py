"""The TFTP server on the wire: port 69 of a service namespace, and a socket for each transfer.

Effects: opens sockets in a namespace, reads files, serves in the loop. A caller is known by the address that
it calls from, which anti-spoofing vouches for where the caller is a VM. No caller can have more than its
share of transfers, and a transfer that nobody acknowledges ends.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections import Counter
from collections.abc import Callable
from typing import cast

from msgspec import Struct

from atoll.errors import HostFailure
from atoll.guestnet.netboot.library import Content, Missing
from atoll.guestnet.tftp import codec, transfer
from atoll.guestnet.tftp.codec import Error, Fault, Mode, Request
from atoll.system import clock, namespaces

PORT = 69
BATCH = 64
PER_CLIENT_PER_S = 50
TRANSFERS = 512
TRANSFERS_PER_CLIENT = 8
LARGEST_TEXT = 1 << 20
"""Netascii is made anew from the file, in memory. Nobody boots from a text of this size."""

_IP_PKTINFO = 8
_IP_UDP_TFTP_BYTES = 32
_WRAP = 1 << 16
_DESTINATION = struct.Struct("=I4s4s")

Open = Callable[[str, str], Content | Missing]
Endpoint = tuple[str, int]

log = logging.getLogger(__name__)


class Counters(Struct):
    """What became of the packets to port 69: received is the sum of all but the last two."""

    received: int = 0
    started: int = 0
    refused: int = 0
    strangers: int = 0
    malformed: int = 0
    excess: int = 0
    repeated: int = 0
    done: int = 0
    unfinished: int = 0


class TftpServer:
    """Serves files to the machines behind one namespace. `open_` finds the file of a name for an IP."""

    def __init__(self, namespace: str, open_: Open, mtu: int = 1500) -> None:
        self._namespace = namespace
        self._open = open_
        self._block_limit = mtu - _IP_UDP_TFTP_BYTES
        self._port: socket.socket | None = None
        self._transfers: dict[Endpoint, Sender] = {}
        self._pace: Counter[str] = Counter()
        self._second = 0
        self.counters = Counters()

    async def start(self) -> None:
        """Begin to serve. Started already is fine."""
        if self._port is not None:
            return
        try:
            self._port = namespaces.inside(self._namespace, _listen)
        except OSError as error:
            raise HostFailure(
                f"starting TFTP in namespace {self._namespace}: {error.strerror or error}",
                hint="the agent makes the namespace when it starts; is another TFTP server in it?",
            ) from error
        asyncio.get_running_loop().add_reader(self._port.fileno(), self._readable, self._port)

    async def close(self) -> None:
        """Stop serving. Closed already is fine."""
        for sender in list(self._transfers.values()):
            sender.abandon()
        if self._port is not None:
            asyncio.get_running_loop().remove_reader(self._port.fileno())
            self._port.close()
            self._port = None

    def _readable(self, port: socket.socket) -> None:
        second = int(clock.monotonic())
        if second != self._second:
            self._second = second
            self._pace.clear()
        for _ in range(BATCH):
            try:
                data, ancillary, _, peer = port.recvmsg(codec.LARGEST_REQUEST + 1, 64)
            except BlockingIOError:
                return
            except OSError as error:
                # An ICMP error about an earlier refusal.
                log.debug("TFTP in %s: %s", self._namespace, error)
                continue
            self.counters.received += 1
            self._pace[peer[0]] += 1
            if self._pace[peer[0]] > PER_CLIENT_PER_S:
                self.counters.excess += 1
            else:
                self._serve(port, data, peer, _asked_at(ancillary))

    def _serve(self, port: socket.socket, data: bytes, peer: Endpoint, server_ip: str) -> None:
        if peer in self._transfers:
            self.counters.repeated += 1
            return
        try:
            request = codec.parse(data)
        except codec.BadPacket as error:
            self.counters.malformed += 1
            self._refuse(port, peer, server_ip, Error(Fault.ILLEGAL, str(error)))
            return
        if not isinstance(request, Request):
            self.counters.malformed += 1
            return
        if request.write:
            self.counters.refused += 1
            self._refuse(port, peer, server_ip, Error(Fault.DENIED, "nothing can be written here"))
            return
        self._read(port, request, peer, server_ip)

    def _read(self, port: socket.socket, request: Request, peer: Endpoint, server_ip: str) -> None:
        mine = sum(1 for ip, _ in self._transfers if ip == peer[0])
        if mine >= TRANSFERS_PER_CLIENT or len(self._transfers) >= TRANSFERS:
            self.counters.excess += 1  # it asks again
            return
        content = self._open(peer[0], request.name)
        if isinstance(content, Content) and request.mode is Mode.NETASCII:
            content = _as_text(content)
        if isinstance(content, Missing):
            self._count_missing(content)
            fault = Fault.NOT_FOUND if content is Missing.NOT_THERE else Fault.DENIED
            self._refuse(port, peer, server_ip, Error(fault, content))
            return
        self._begin(request, content, peer, server_ip)

    def _begin(self, request: Request, content: Content, peer: Endpoint, server_ip: str) -> None:
        terms = transfer.negotiate(request.options, content.size, self._block_limit)
        try:
            wire = namespaces.inside(self._namespace, lambda: _connect(server_ip, peer))
        except OSError as error:
            log.warning("TFTP in %s: a socket for %s: %s", self._namespace, peer[0], error)
            content.close()
            self.counters.excess += 1
            return
        self.counters.started += 1
        self._transfers[peer] = Sender(wire, content, terms, lambda outcome: self._ended(peer, outcome))
        self._transfers[peer].begin()

    def _ended(self, peer: Endpoint, outcome: transfer.Outcome) -> None:
        self._transfers.pop(peer, None)
        if outcome is transfer.Outcome.DONE:
            self.counters.done += 1
        else:
            self.counters.unfinished += 1

    def _count_missing(self, missing: Missing) -> None:
        if missing is Missing.STRANGER:
            self.counters.strangers += 1
        else:
            self.counters.refused += 1

    def _refuse(self, port: socket.socket, peer: Endpoint, server_ip: str, error: Error) -> None:
        source = _DESTINATION.pack(0, socket.inet_aton(server_ip), bytes(4))
        try:
            port.sendmsg([codec.build(error)], [(socket.IPPROTO_IP, _IP_PKTINFO, source)], 0, peer)
        except OSError as failure:
            log.debug("TFTP in %s: refusal not sent: %s", self._namespace, failure)


class Sender:
    """One transfer: carries out what the state machine says."""

    def __init__(
        self,
        wire: socket.socket,
        content: Content,
        terms: transfer.Terms,
        ended: Callable[[transfer.Outcome], None],
    ) -> None:
        self._wire = wire
        self._content = content
        self._terms = terms
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._state: transfer.State

    def begin(self) -> None:
        self._loop.add_reader(self._wire.fileno(), self._readable)
        self._take(*transfer.begin(self._content.size, self._terms, clock.monotonic()))

    def abandon(self) -> None:
        self._end(transfer.Outcome.ABANDONED)

    def _readable(self) -> None:
        for _ in range(BATCH):
            try:
                data = self._wire.recv(codec.LARGEST_REQUEST)
            except BlockingIOError:
                return
            except OSError:
                self._end(transfer.Outcome.REFUSED)  # nobody is at its port any more
                return
            try:
                packet = codec.parse(data)
            except codec.BadPacket:
                continue
            self._take(*transfer.heard(self._state, packet, clock.monotonic()))
            if self._wire.fileno() < 0:
                return

    def _take(self, state: transfer.State, step: transfer.Step) -> None:
        self._state = state
        if state.outcome is not None:
            self._end(state.outcome)
            return
        if step.options:
            self._send(codec.build(codec.Options(self._terms.agreed)))
        for block in step.blocks:
            start, size = state.extent(block)
            payload = self._content.read(start, size)
            if len(payload) != size:
                self._send(codec.build(Error(Fault.OTHER, "the file changed while it was read")))
                self._end(transfer.Outcome.REFUSED)
                return
            self._send(codec.build(codec.Data(block % _WRAP, payload)))
        if self._timer is None:
            self._wait()

    def _wait(self) -> None:
        # One timer at a time, set anew when it fires: not with every block.
        delay_s = max(0.0, self._state.wake_at - clock.monotonic())
        self._timer = self._loop.call_later(delay_s, self._woke)

    def _woke(self) -> None:
        self._timer = None
        self._take(*transfer.woke(self._state, clock.monotonic()))

    def _send(self, data: bytes) -> None:
        try:
            self._wire.send(data)
        except OSError as error:
            log.debug("TFTP: packet not sent: %s", error)  # as good as lost on the way

    def _end(self, outcome: transfer.Outcome) -> None:
        """Once: the socket is closed, and nothing more comes."""
        if self._timer is not None:
            self._timer.cancel()
        self._loop.remove_reader(self._wire.fileno())
        self._wire.close()
        self._content.close()
        self._ended(outcome)


def _as_text(content: Content) -> Content | Missing:
    if content.size > LARGEST_TEXT:
        content.close()
        return Missing.BAD_NAME
    text = Content(codec.netascii(content.read(0, content.size)))
    content.close()
    return text


def _listen() -> socket.socket:
    port = _udp_socket()
    try:
        port.setsockopt(socket.IPPROTO_IP, _IP_PKTINFO, 1)
        port.bind(("0.0.0.0", PORT))
    except BaseException:
        port.close()
        raise
    return port


def _connect(server_ip: str, peer: Endpoint) -> socket.socket:
    """A socket for one transfer: from the address that was asked, and deaf to everybody else."""
    wire = _udp_socket()
    try:
        wire.bind((server_ip, 0))
        wire.connect(peer)
    except BaseException:
        wire.close()
        raise
    return wire


def _udp_socket() -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.setblocking(False)
    return made


def _asked_at(ancillary: list[tuple[int, int, bytes]]) -> str:
    """The address of ours that a packet was sent to."""
    for level, kind, data in ancillary:
        if level == socket.IPPROTO_IP and kind == _IP_PKTINFO:
            return socket.inet_ntoa(cast(bytes, _DESTINATION.unpack(data[: _DESTINATION.size])[1]))
    return "0.0.0.0"
