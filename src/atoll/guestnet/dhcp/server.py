"""The DHCP server on the wire: a packet socket in the service namespace of a bridge, served by the loop.

Effects: opens sockets in a namespace, answers frames.
"""

from __future__ import annotations

import socket

from atoll.errors import HostFailure
from atoll.guestnet.dhcp import codec
from atoll.guestnet.dhcp.answer import Answer, Silence, answer
from atoll.guestnet.dhcp.leases import Leases
from atoll.guestnet.frames import filters
from atoll.guestnet.frames import ipv4 as frames
from atoll.guestnet.frames.errors import BadPacket
from atoll.guestnet.frames.wire import Counters, Wire, attach_filter
from atoll.model.lease import LeaseState
from atoll.system import namespaces

SERVER_PORT, CLIENT_PORT = 67, 68
PER_GUEST_PER_S = 50
"""A guest needs two for a lease. What goes beyond is dropped before it is even looked at."""

_USES = {Silence.DECLINED: LeaseState.DECLINED, Silence.RELEASED: LeaseState.RELEASED}


class DhcpServer:
    """Answers the guests behind one link of a namespace."""

    def __init__(
        self,
        namespace: str,
        link: str,
        leases: Leases,
        *,
        per_guest_per_s: int = PER_GUEST_PER_S,
    ) -> None:
        self._namespace = namespace
        self._link = link
        self._leases = leases
        self._wire = Wire(
            "DHCP",
            namespace,
            link,
            frames.ETHERTYPE_IPV4,
            frames.udp_filter(SERVER_PORT),
            self._receive,
            per_guest_per_s=per_guest_per_s,
        )
        self._port: socket.socket | None = None

    @property
    def counters(self) -> Counters:
        return self._wire.counters

    async def start(self) -> None:
        """Begin to answer. Started already is fine."""
        self._wire.open()
        try:
            self._port = self._port or self._hold_port()
        except BaseException:
            self._wire.close()
            raise

    async def close(self) -> None:
        """Stop answering. Closed already is fine."""
        self._wire.close()
        if self._port is not None:
            self._port.close()
            self._port = None

    def _hold_port(self) -> socket.socket:
        """A socket that takes nothing: without it the kernel tells renewing guests that nobody is here."""
        try:
            return namespaces.inside(self._namespace, _deaf_socket)
        except OSError as error:
            raise HostFailure(
                f"starting DHCP on {self._link} in namespace {self._namespace}: {error.strerror or error}",
                hint="the agent makes it when it starts; is another DHCP server in that namespace?",
            ) from error

    def _receive(self, frame: bytes) -> None:
        counters = self._wire.counters
        try:
            datagram = frames.parse(frame)
            message = codec.parse(datagram.payload)
        except BadPacket:
            counters.malformed += 1
            return
        reply = answer(message, datagram.source_mac, self._leases.lease)
        if isinstance(reply, Answer):
            self._send(reply)
        elif reply is Silence.STRANGER:
            counters.strangers += 1
        else:
            counters.silent += 1
            if reply in _USES:
                self._leases.used(datagram.source_mac, _USES[reply])

    def _send(self, reply: Answer) -> None:
        mac, ip = reply.destination
        frame = frames.build(
            frames.Datagram(
                source_mac=self._wire.mac,
                target_mac=mac,
                source_ip=reply.source,
                target_ip=ip,
                source_port=SERVER_PORT,
                target_port=CLIENT_PORT,
                payload=codec.build(reply.reply, reply.limit),
            )
        )
        if not self._wire.send(frame):
            self._wire.counters.unsent += 1
            return
        self._wire.counters.answered += 1
        if reply.acknowledged:
            self._leases.used(mac, LeaseState.BOUND)


def _deaf_socket() -> socket.socket:
    holder = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        attach_filter(holder, filters.DROP_ALL)
        holder.bind(("0.0.0.0", SERVER_PORT))
    except BaseException:
        holder.close()
        raise
    return holder
