"""The DHCPv6 server on the wire: a packet socket in the service namespace of a bridge, served by the loop.

Effects: opens the socket, reads and writes frames.
"""

from __future__ import annotations

from atoll.guestnet.dhcp.leases import Leases
from atoll.guestnet.dhcp6 import codec
from atoll.guestnet.dhcp6.answer import Silence, answer, server_id
from atoll.guestnet.frames import ipv6 as packets6
from atoll.guestnet.frames.errors import BadPacket
from atoll.guestnet.frames.ipv6 import ETHERTYPE_IPV6, UDP, Datagram, Packet, udp_filter
from atoll.guestnet.frames.wire import Counters, Wire
from atoll.model.network import link_local

SERVER_PORT, CLIENT_PORT = 547, 546
PER_GUEST_PER_S = 20


class Dhcp6Server:
    """Answers the guests behind one link of a namespace."""

    def __init__(
        self,
        namespace: str,
        link: str,
        leases: Leases,
        *,
        per_guest_per_s: int = PER_GUEST_PER_S,
    ) -> None:
        self._leases = leases
        self._wire = Wire(
            "DHCPv6",
            namespace,
            link,
            ETHERTYPE_IPV6,
            udp_filter(SERVER_PORT),
            self._receive,
            per_guest_per_s=per_guest_per_s,
        )

    @property
    def counters(self) -> Counters:
        return self._wire.counters

    async def start(self) -> None:
        """Begin to answer. Started already is fine."""
        self._wire.open()

    async def close(self) -> None:
        self._wire.close()

    def _receive(self, frame: bytes) -> None:
        counters = self._wire.counters
        try:
            packet = packets6.parse(frame)
            message = codec.parse(packets6.parse_udp(packet).payload)
        except BadPacket:
            counters.malformed += 1
            return
        reply = answer(message, packet.source_mac, self._leases.lease, server_id(self._wire.mac))
        if isinstance(reply, Silence) or packet.source_ip != link_local(packet.source_mac):
            counters.silent += 1
        elif self._wire.send(self._frame(reply, packet)):
            counters.answered += 1
        else:
            counters.unsent += 1

    def _frame(self, reply: codec.Message, packet: Packet) -> bytes:
        """To the guest's own MAC, so that no other VM sees it."""
        mine = link_local(self._wire.mac)
        datagram = Datagram(SERVER_PORT, CLIENT_PORT, codec.build(reply))
        payload = packets6.udp(mine, packet.source_ip, datagram)
        return packets6.build(
            Packet(self._wire.mac, packet.source_mac, mine, packet.source_ip, UDP, payload, 64)
        )
