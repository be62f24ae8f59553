"""The contract of a node's network."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from atoll.drivers.machine.base import Nic
from atoll.model.network import Subnet
from atoll.model.vm import VM, VmNic

FindVm = Callable[[str], VM | None]
Reached = Callable[[str, str], None]
"""Told the IP of a VM and the stage that it reached: dhcp or metadata."""


class Network(Protocol):
    """Every method may be called again with the same arguments."""

    def nic(self, nic: VmNic, subnet: Subnet, *, is_default_route: bool) -> Nic:
        """Where the link of a VM's interface goes, before it is there. `is_default_route`: to all else too."""
        ...

    async def serve(self, subnets: Sequence[Subnet]) -> None:
        """Bring up the bridges of these subnets and answer DHCP and metadata on them."""
        ...

    async def plug(self, nic: VmNic, subnet: Subnet) -> None:
        """Let this interface, and nobody else, use its address. Comes before its link does."""
        ...

    async def plug_all(self, nics: Sequence[tuple[VmNic, Subnet]]) -> None:
        """As `plug`, of many at once."""
        ...

    async def unplug(self, nic: VmNic, subnet: Subnet) -> None:
        """Forget the interface. Not plugged is success."""
        ...

    async def sweep(self, held: Collection[str], macs: Mapping[str, str]) -> None:
        """Forget all but those who hold these addresses: what an agent before us left. `macs`: of addresses."""
        ...

    async def close(self) -> None:
        """Stop answering; what carries traffic stays."""
        ...
