"""The contract of a node's network."""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from msgspec import Struct

from atoll.drivers.machine.base import Nic
from atoll.model.network import Subnet
from atoll.model.vm import VM, VmNic
from atoll.plan import firewall


class Port(Struct, frozen=True):
    """One attachment of a VM to a network: known by its VM and its place there, whatever address it has."""

    vm_ip: str
    index: int
    nic: VmNic
    subnet: Subnet

    @property
    def link(self) -> str:
        return firewall.link_for(self.vm_ip, self.index)

    @property
    def is_default_route(self) -> bool:
        """Of a VM's interfaces, the first one leads to all else too."""
        return self.index == 0


def ports_of(vm: VM, subnet_of: Callable[[VmNic], Subnet]) -> tuple[Port, ...]:
    """All of a VM's, in the order of its interfaces."""
    return tuple(Port(vm.ip, index, nic, subnet_of(nic)) for index, nic in enumerate(vm.all_nics))


class Network(Protocol):
    """Every method may be called again with the same arguments."""

    def nic(self, port: Port) -> Nic:
        """Where the link of a port goes, before it is there."""
        ...

    async def serve(self, subnets: Sequence[Subnet]) -> None:
        """Bring up the bridges of these subnets, and answer DHCP and metadata on them; on no others any more."""
        ...

    def check_free(self, subnet: Subnet) -> None:
        """Conflict where the host has a network of its own at the addresses of a new subnet."""
        ...

    async def plug(self, *ports: Port) -> None:
        """Let these interfaces, and nobody else, use their addresses. Comes before their links do."""
        ...

    async def unplug(self, *ports: Port) -> None:
        """Forget these interfaces. Not plugged is success."""
        ...

    async def answers(self, port: Port, tcp_port: int) -> bool:
        """Whether the machine at this port, and not another one with its address, takes connections there."""
        ...

    async def converses(self, port: Port, tcp_port: int) -> bool:
        """Whether it answers them too, as it would a browser."""
        ...

    async def connect(self, port: Port, tcp_port: int) -> socket.socket:
        """A connection to the machine at this port; Conflict when it takes none."""
        ...

    async def sweep(self, vm_ips: Collection[str]) -> None:
        """Forget the ports of all VMs but these: what an agent before us left."""
        ...

    async def close(self) -> None:
        """Stop answering; what carries traffic stays."""
        ...
