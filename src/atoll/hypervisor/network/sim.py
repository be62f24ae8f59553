"""A network without a host: what is plugged gets its lease and reads its metadata at once. No effects."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence

from atoll.drivers.machine.base import Nic
from atoll.hypervisor.network.base import Reached
from atoll.model.network import Subnet
from atoll.model.vm import VmNic
from atoll.plan import firewall


class SimNetwork:
    """For services under test: real decisions, no namespaces."""

    def __init__(self, reached: Reached) -> None:
        self._reached = reached
        self.plugged: set[str] = set()

    def nic(self, nic: VmNic, subnet: Subnet, *, is_default_route: bool) -> Nic:
        return Nic(link=firewall.link_for(nic.ip), bridge="sim", mac=nic.mac, mtu=subnet.mtu)

    async def serve(self, subnets: Sequence[Subnet]) -> None:
        return

    async def plug(self, nic: VmNic, subnet: Subnet) -> None:
        self.plugged.add(nic.ip)
        loop = asyncio.get_running_loop()
        for stage in ("dhcp", "metadata"):
            loop.call_later(0.001, self._reached, nic.ip, stage)

    async def plug_all(self, nics: Sequence[tuple[VmNic, Subnet]]) -> None:
        for nic, subnet in nics:
            await self.plug(nic, subnet)

    async def unplug(self, nic: VmNic, subnet: Subnet) -> None:
        self.plugged.discard(nic.ip)

    async def sweep(self, held: Collection[str], macs: Mapping[str, str]) -> None:
        self.plugged &= set(held)

    async def close(self) -> None:
        return
