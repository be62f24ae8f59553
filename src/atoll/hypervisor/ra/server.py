"""Router advertisements on the wire: to each guest that asks, and to all of them now and then.

Effects: a packet socket in the service namespace of a bridge, served by the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from atoll.hypervisor.network.packets6 import (
    ALL_NODES,
    ETHERTYPE_IPV6,
    UNSPECIFIED,
    BadPacket,
    icmp_filter,
    multicast_mac,
)
from atoll.hypervisor.network.wire import Counters, Wire
from atoll.hypervisor.ra.codec import SOLICITATION, advertisement, parse_solicitation
from atoll.model.network import Subnet

EVERY_S = 300.0
PER_GUEST_PER_S = 10


class RaServer:
    """Speaks for a subnet's router, which answers at `router_mac`. `knows` tells whose MAC has a lease."""

    def __init__(
        self, namespace: str, link: str, subnet: Subnet, router_mac: str, knows: Callable[[str], bool]
    ) -> None:
        self._subnet = subnet
        self._router_mac = router_mac
        self._knows = knows
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
            self._tell_all()

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._wire.close()

    def _tell_all(self) -> None:
        self._send((multicast_mac(ALL_NODES), ALL_NODES))
        self._timer = asyncio.get_running_loop().call_later(EVERY_S, self._tell_all)

    def _receive(self, frame: bytes) -> None:
        counters = self._wire.counters
        try:
            packet = parse_solicitation(frame)
        except BadPacket:
            counters.malformed += 1
            return
        if not self._knows(packet.source_mac):
            counters.silent += 1
            return
        # Always to the guest's own MAC; one that has no address yet listens to what is for all.
        ip = ALL_NODES if packet.source_ip == UNSPECIFIED else packet.source_ip
        if self._send((packet.source_mac, ip)):
            counters.answered += 1
        else:
            counters.unsent += 1

    def _send(self, target: tuple[str, str]) -> bool:
        return self._wire.send(advertisement(self._subnet, self._router_mac, self._wire.mac, target))
