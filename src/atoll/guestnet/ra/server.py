"""Router advertisements on the wire: to each guest that asks, and to each of them now and then.

Each gets its own, since to some interfaces of a VM the router is a way out, and to the others it is not.

Effects: a packet socket in the service namespace of a bridge, served by the loop.
"""

from __future__ import annotations

import asyncio

from atoll.guestnet.dhcp.answer import Lease
from atoll.guestnet.dhcp.leases import Leases
from atoll.guestnet.frames.errors import BadPacket
from atoll.guestnet.frames.ipv6 import (
    ALL_NODES,
    ETHERTYPE_IPV6,
    UNSPECIFIED,
    icmp_filter,
)
from atoll.guestnet.frames.wire import Counters, Wire
from atoll.guestnet.ra.codec import SOLICITATION, advertisement, parse_solicitation
from atoll.model.network import Subnet

EVERY_S = 300.0
PER_GUEST_PER_S = 10


class RaServer:
    """Speaks for a subnet's router, which answers at `router_mac`."""

    def __init__(
        self,
        namespace: str,
        link: str,
        subnet: Subnet,
        router_mac: str,
        leases: Leases,
    ) -> None:
        self._subnet = subnet
        self._router_mac = router_mac
        self._leases = leases
        program = icmp_filter(SOLICITATION)
        self._wire = Wire(
            "router advertisements",
            namespace,
            link,
            ETHERTYPE_IPV6,
            program,
            self._receive,
            per_guest_per_s=PER_GUEST_PER_S,
        )
        self._timer: asyncio.TimerHandle | None = None

    @property
    def counters(self) -> Counters:
        return self._wire.counters

    async def start(self) -> None:
        """Begin to advertise. Started already is fine."""
        self._wire.open()
        if self._timer is None:
            self._tell_each()

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._wire.close()

    def _tell_each(self) -> None:
        for lease in self._leases.leases(self._subnet.id):
            self._send(lease, ALL_NODES)
        self._timer = asyncio.get_running_loop().call_later(EVERY_S, self._tell_each)

    def _receive(self, frame: bytes) -> None:
        counters = self._wire.counters
        try:
            packet = parse_solicitation(frame)
        except BadPacket:
            counters.malformed += 1
            return
        lease = self._leases.lease(packet.source_mac)
        if lease is None:
            counters.silent += 1
            return
        # One that has no address yet listens to what is for all.
        if self._send(lease, ALL_NODES if packet.source_ip == UNSPECIFIED else packet.source_ip):
            counters.answered += 1
        else:
            counters.unsent += 1

    def _send(self, lease: Lease, ip: str) -> bool:
        """Always to the guest's own MAC, whatever the address."""
        target = (lease.mac, ip)
        frame = advertisement(
            self._subnet, self._router_mac, self._wire.mac, target, is_default_route=lease.is_default_route
        )
        return self._wire.send(frame)
