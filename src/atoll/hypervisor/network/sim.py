"""A network without a host: what is plugged gets its lease and reads its metadata at once. No effects."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence

from atoll.drivers.machine.base import Nic
from atoll.hypervisor.network.base import Reached
from atoll.model.network import Subnet
from atoll.model.vm import VM
from atoll.plan import firewall


class SimNetwork:
    """For services under test: real decisions, no namespaces."""

    def __init__(self, reached: Reached) -> None:
        self._reached = reached
        self.plugged: set[str] = set()

    def nic(self, vm: VM, subnet: Subnet) -> Nic:
        return Nic(link=firewall.link_for(vm.ip), bridge="sim", mac=vm.mac, mtu=subnet.mtu)

    async def serve(self, subnets: Sequence[Subnet]) -> None:
        return

    async def plug(self, vm: VM, subnet: Subnet) -> None:
        self.plugged.add(vm.ip)
        loop = asyncio.get_running_loop()
        for stage in ("dhcp", "metadata"):
            loop.call_later(0.001, self._reached, vm.ip, stage)

    async def unplug(self, vm: VM, subnet: Subnet) -> None:
        self.plugged.discard(vm.ip)

    async def sweep(self, held: Collection[str], macs: Mapping[str, str]) -> None:
        self.plugged &= set(held)

    async def close(self) -> None:
        return
