"""The contract of a node's network."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from atoll.drivers.machine.base import Nic
from atoll.model.network import Subnet
from atoll.model.vm import VM

FindVm = Callable[[str], VM | None]
Reached = Callable[[str, str], None]
"""Told the IP of a VM and the stage that it reached: dhcp or metadata."""


class Network(Protocol):
    """Every method may be called again with the same arguments."""

    def nic(self, vm: VM, subnet: Subnet) -> Nic:
        """Where the VM's link goes, before it is there."""
        ...

    async def serve(self, subnets: Sequence[Subnet]) -> None:
        """Bring up the bridges of these subnets and answer DHCP and metadata on them."""
        ...

    async def plug(self, vm: VM, subnet: Subnet) -> None:
        """Let this VM, and nobody else, use its address. Comes before its link does."""
        ...

    async def unplug(self, vm: VM, subnet: Subnet) -> None:
        """Forget the VM. Not plugged is success."""
        ...

    async def sweep(self, held: Collection[str], macs: Mapping[str, str]) -> None:
        """Forget all but those who hold these addresses: what an agent before us left. `macs`: of addresses."""
        ...

    async def close(self) -> None:
        """Stop answering; what carries traffic stays."""
        ...
