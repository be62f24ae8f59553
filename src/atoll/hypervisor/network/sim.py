"""A network without a host: what is plugged gets its lease and reads its metadata at once. Connects to loopback."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Collection, Sequence

from atoll.drivers.machine.base import Nic
from atoll.hypervisor.network import answering
from atoll.hypervisor.network.base import Port
from atoll.model.network import Subnet
from atoll.plan import firewall


class SimNetwork:
    """For services under test: real decisions, no namespaces.

    `reached` is told the own address of a VM and the stage that it reached: dhcp or metadata.
    """

    def __init__(self, reached: Callable[[str, str], None]) -> None:
        self._reached = reached
        self.plugged: set[str] = set()
        """The links of the ports that are."""
        self.served: tuple[Subnet, ...] = ()
        self.open_ports: set[int] = set()
        """The TCP ports that all machines answer at."""

    def nic(self, port: Port) -> Nic:
        return Nic(link=port.link, bridge="sim", mac=port.nic.mac, mtu=port.subnet.mtu)

    async def serve(self, subnets: Sequence[Subnet]) -> None:
        self.served = tuple(subnets)

    def check_free(self, subnet: Subnet) -> None:
        return

    async def plug(self, *ports: Port) -> None:
        loop = asyncio.get_running_loop()
        for port in ports:
            self.plugged.add(port.link)
            for stage in ("dhcp", "metadata") if port.index == 0 else ():
                loop.call_later(0.001, self._reached, port.vm_ip, stage)

    async def unplug(self, *ports: Port) -> None:
        self.plugged -= {port.link for port in ports}

    async def answers(self, port: Port, tcp_port: int) -> bool:
        return tcp_port in self.open_ports

    async def converses(self, port: Port, tcp_port: int) -> bool:
        return tcp_port in self.open_ports

    async def connect(self, port: Port, tcp_port: int) -> socket.socket:
        """To whoever the test has listening on this machine at a port of this number."""
        return await answering.connected("127.0.0.1", tcp_port)

    async def sweep(self, vm_ips: Collection[str]) -> None:
        known = {link: firewall.port_of(link) for link in self.plugged}
        self.plugged = {link for link, port in known.items() if port is not None and port[0] in vm_ips}

    async def close(self) -> None:
        return
