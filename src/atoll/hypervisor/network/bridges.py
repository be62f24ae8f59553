"""Bridges: one per subnet or an existing one, each with a namespace for its DHCP and metadata servers.

    at-<ip> (VM) ──┐
    at-<ip> (VM) ──┤ br-<subnet> ──── as-… ═══ eth0 in <prefix>-<bridge>: DHCP, 169.254.169.254:80
    port, uplink ──┘

Effects: links, neighbours and nftables of the namespace that the agent lives in, through atoll.system.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

from atoll.drivers.machine.base import Nic
from atoll.errors import NotFound
from atoll.hypervisor.dhcp.answer import Lease
from atoll.hypervisor.dhcp.server import DhcpServer
from atoll.hypervisor.metadata.server import MetadataServer
from atoll.hypervisor.metadata.tree import Guest
from atoll.hypervisor.network.base import FindVm, Reached
from atoll.model.network import METADATA_IP, Subnet
from atoll.model.vm import VM
from atoll.plan import firewall
from atoll.system import namespaces, nft
from atoll.system.links import Links, sysctl

SERVICE_LINK = "eth0"


def bridge_of(subnet: Subnet) -> str:
    """The bridge of a subnet: the existing one that it names, else one of our own."""
    return subnet.bridge or f"br-{subnet.id}"[:15]


def service_mac(bridge: str) -> str:
    return _mac("02:a7", bridge)


def _mac(prefix: str, bridge: str) -> str:
    # Derived, so that a restarted agent finds its links as it left them.
    return prefix + "".join(f":{byte:02x}" for byte in zlib.crc32(bridge.encode()).to_bytes(4, "big"))


class _Services:
    """The servers of one bridge, and a way into their namespace."""

    def __init__(self, namespace: str, dhcp: DhcpServer, metadata: MetadataServer) -> None:
        self.dhcp = dhcp
        self.metadata = metadata
        self.links = Links(namespace)

    async def close(self) -> None:
        await self.dhcp.close()
        await self.metadata.close()
        self.links.close()


class Bridges:
    """The network of a node: see the picture above."""

    def __init__(
        self,
        prefix: str,
        find_by_mac: FindVm,
        find_by_ip: FindVm,
        subnet_of: Callable[[VM], Subnet],
        user_data: Callable[[str], bytes],
        reached: Reached,
    ) -> None:
        self._prefix = prefix
        self._find_by_mac = find_by_mac
        self._find_by_ip = find_by_ip
        self._subnet_of = subnet_of
        self._user_data = user_data
        self._reached = reached
        self._links = Links()
        self._services: dict[str, _Services] = {}
        self._plugged: dict[str, firewall.Port] = {}

    def nic(self, vm: VM, subnet: Subnet) -> Nic:
        return Nic(link=firewall.link_for(vm.ip), bridge=bridge_of(subnet), mac=vm.mac, mtu=subnet.mtu)

    async def serve(self, subnets: Sequence[Subnet]) -> None:
        if not self._services:
            sysctl("net/ipv4/ip_forward", "1")
            await nft.apply(firewall.base())
            self._plugged.clear()
        for subnet in subnets:
            self._ensure_bridge(subnet)
            bridge = bridge_of(subnet)
            if bridge not in self._services:
                self._services[bridge] = await self._ensure_services(bridge)
            self._services[bridge].links.ensure_route(subnet.cidr, link=SERVICE_LINK)

    def _ensure_bridge(self, subnet: Subnet) -> None:
        bridge = bridge_of(subnet)
        if subnet.bridge:
            if not self._links.exists(bridge):
                raise NotFound(
                    f"subnet {subnet.id}: bridge {bridge} does not exist on this node",
                    hint="make it first, or leave the bridge out and the agent makes one of its own",
                )
            return
        gateway = f"{subnet.gateway}/{subnet.network.prefixlen}"
        self._links.ensure_bridge(bridge, _mac("02:a8", bridge), subnet.mtu, [gateway])

    async def _ensure_services(self, bridge: str) -> _Services:
        namespace = f"{self._prefix}-{bridge}"
        port = f"as-{zlib.crc32(bridge.encode()):08x}"
        namespaces.ensure(namespace)
        self._links.ensure_veth(
            port, SERVICE_LINK, namespace, peer_mac=service_mac(bridge), master=bridge, mtu=1500
        )
        # Known beforehand: an unknown MAC would be flooded to every VM.
        self._links.set_fdb(port, service_mac(bridge))
        services = _Services(
            namespace,
            DhcpServer(namespace, SERVICE_LINK, self._lease, lambda ip: self._reached(ip, "dhcp")),
            MetadataServer(namespace, self._guest, lambda ip, path: self._reached(ip, "metadata")),
        )
        services.links.add_address(SERVICE_LINK, f"{METADATA_IP}/32")
        services.links.up(SERVICE_LINK)
        await services.dhcp.start()
        await services.metadata.start()
        return services

    def _lease(self, mac: str) -> Lease | None:
        vm = self._find_by_mac(mac)
        return Lease(ip=vm.ip, mac=vm.mac, hostname=vm.name, subnet=self._subnet_of(vm)) if vm else None

    def _guest(self, ip: str) -> Guest | None:
        vm = self._find_by_ip(ip)
        if vm is None:
            return None
        return Guest(vm, (lambda: self._user_data(ip)) if vm.user_data_sha256 else None)

    async def plug(self, vm: VM, subnet: Subnet) -> None:
        bridge = bridge_of(subnet)
        port = firewall.Port(firewall.link_for(vm.ip), vm.ip, vm.mac, service_mac(bridge))
        if self._plugged.get(vm.ip) == port:
            return
        await nft.apply(firewall.plug(port))
        self._plugged[vm.ip] = port
        # We know who has the address: nobody needs to ask, and nobody else can answer.
        self._links.set_neighbour(bridge, vm.ip, vm.mac)
        self._services[bridge].links.set_neighbour(SERVICE_LINK, vm.ip, vm.mac)

    async def unplug(self, vm: VM, subnet: Subnet) -> None:
        if vm.ip not in self._plugged:
            return
        bridge = bridge_of(subnet)
        self._links.delete_neighbour(bridge, vm.ip)
        self._services[bridge].links.delete_neighbour(SERVICE_LINK, vm.ip)
        await nft.apply(firewall.unplug(self._plugged[vm.ip].link))
        del self._plugged[vm.ip]

    async def close(self) -> None:
        for services in self._services.values():
            await services.close()
        self._services.clear()
        self._links.close()
