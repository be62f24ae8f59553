"""Bridges: one per subnet or an existing one, each with a namespace for its DHCP and metadata servers.

    at-<ip> (VM) ──┐
    at-<ip> (VM) ──┤ br-<subnet> ──── as-… ═══ eth0 in <prefix>-<bridge>: DHCP, TFTP, metadata, the API
    port, uplink ──┘

Effects: links, neighbours and nftables of the namespace that the agent lives in, through atoll.system.
"""

from __future__ import annotations

import zlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol

from atoll.drivers.machine.base import Nic
from atoll.guestnet.dhcp.answer import Lease
from atoll.guestnet.dhcp.server import DhcpServer
from atoll.guestnet.dhcp6.server import Dhcp6Server
from atoll.guestnet.metadata.server import MetadataServer
from atoll.guestnet.netboot.http import BootServer
from atoll.guestnet.netboot.library import Library
from atoll.guestnet.ra.server import RaServer
from atoll.guestnet.tftp.server import TftpServer
from atoll.hypervisor.network import physical
from atoll.hypervisor.network.base import Reached
from atoll.hypervisor.network.guests import Guests
from atoll.model.lease import LeaseState
from atoll.model.network import METADATA_IP, METADATA_IP6, Subnet, link_local
from atoll.model.vm import VmNic
from atoll.plan import firewall
from atoll.system import namespaces, nft
from atoll.system.links import Links, forward_ipv6, sysctl

SERVICE_LINK = "eth0"
PLUGGED_AT_ONCE = 64
"""Ports in one transaction: many are much cheaper together, but all else waits for it."""


def bridge_of(subnet: Subnet) -> str:
    """The bridge of a subnet: the existing one that it names, else one of our own."""
    if subnet.bridge:
        return physical.bridge_name(subnet)
    # Of a long id the end is replaced, and not just cut: two subnets must never meet in one bridge.
    name = f"br-{subnet.id}"
    return name if len(name) <= 15 else f"{name[:7]}{zlib.crc32(subnet.id.encode()):08x}"


def service_mac(bridge: str) -> str:
    return _mac("02:a7", bridge)


def _router_mac(bridge: str) -> str:
    return _mac("02:a8", bridge)


def _mac(prefix: str, bridge: str) -> str:
    # Derived, so that a restarted agent finds its links as it left them.
    return prefix + "".join(f":{byte:02x}" for byte in zlib.crc32(bridge.encode()).to_bytes(4, "big"))


def _port(nic: VmNic, subnet: Subnet) -> firewall.Port:
    link, ip6 = firewall.link_for(nic.ip), subnet.ip6_of(nic.mac)
    return firewall.Port(link, nic.ip, nic.mac, service_mac(bridge_of(subnet)), ip6)


def _known_to_services(ip: str, mac: str | None, subnet: Subnet) -> tuple[str, ...]:
    """The addresses from which an interface may call the servers of its bridge."""
    ip6 = subnet.ip6_of(mac) if mac else ""
    return (ip, ip6, link_local(mac)) if mac and ip6 else (ip,)


class Server(Protocol):
    """What all servers of a bridge have in common. Both may be repeated."""

    async def start(self) -> None: ...

    async def close(self) -> None: ...


class _Services:
    """The servers of one bridge, and a way into their namespace."""

    def __init__(self, namespace: str, metadata: MetadataServer) -> None:
        self.namespace = namespace
        self.links = Links(namespace)
        self.metadata = metadata
        self._servers: dict[str, Server] = {}

    async def ensure(self, name: str, make: Callable[[], Server]) -> None:
        if name not in self._servers:
            self._servers[name] = make()
        await self._servers[name].start()

    async def close(self) -> None:
        for server in self._servers.values():
            await server.close()
        self.links.close()


class Bridges:
    """The network of a node: see the picture above."""

    def __init__(
        self,
        prefix: str,
        lease_of: Callable[[str], Lease | None],
        macs: Callable[[str], Iterable[str]],
        guests: Guests,
        control: Callable[[str], Awaitable[None]],
        reached: Reached,
        library: Library,
        used: Callable[[str, LeaseState], None],
    ) -> None:
        """`lease_of` knows the lease of a MAC, `macs` those of a subnet; `control` opens the control port in
        a namespace; `used` is told an IP and what became of its lease."""
        self._prefix = prefix
        self._lease_of = lease_of
        self._macs = macs
        self._guests = guests
        self._control = control
        self._reached = reached
        self._library = library
        self._used = used
        self._links = Links()
        self._services: dict[str, _Services] = {}
        self._plugged: dict[str, firewall.Port] = {}
        self._subnets: tuple[Subnet, ...] = ()

    def nic(self, nic: VmNic, subnet: Subnet, *, is_default_route: bool) -> Nic:
        return Nic(
            link=firewall.link_for(nic.ip),
            bridge=bridge_of(subnet),
            mac=nic.mac,
            mtu=subnet.mtu,
            address=f"{nic.ip}/{subnet.network.prefixlen}",
            gateway=subnet.gateway if is_default_route else "",
            dns=subnet.dns if is_default_route else (),
            domain=subnet.domain,
        )

    async def serve(self, subnets: Sequence[Subnet]) -> None:
        if not self._services:
            await nft.apply(firewall.base())
            self._plugged.clear()
        self._subnets = tuple(subnets)
        for subnet in subnets:
            self._ensure_bridge(subnet)
            bridge = bridge_of(subnet)
            if bridge not in self._services:
                self._services[bridge] = await self._ensure_services(bridge, subnet.mtu)
            services = self._services[bridge]
            services.links.ensure_route(subnet.cidr, link=SERVICE_LINK)
            if subnet.service_ip is not None:
                services.links.add_address(SERVICE_LINK, f"{subnet.service_ip}/32")
            if subnet.cidr6 is not None:
                await self._serve_ipv6(subnet, subnet.cidr6, services)

    def _ensure_bridge(self, subnet: Subnet) -> None:
        bridge = bridge_of(subnet)
        if subnet.bridge:
            physical.ensure_bridge(subnet)
            return
        # The node is the router of this subnet. One whose subnets all have bridges elsewhere routes nothing.
        sysctl("net/ipv4/ip_forward", "1")
        gateways = [f"{subnet.gateway}/{subnet.network.prefixlen}"]
        if subnet.gateway6 is not None:
            forward_ipv6()
            gateways.append(f"{subnet.gateway6}/64")
        ipv6 = subnet.gateway6 is not None
        self._links.ensure_bridge(bridge, _router_mac(bridge), subnet.mtu, gateways, ipv6=ipv6)

    async def _serve_ipv6(self, subnet: Subnet, cidr6: str, services: _Services) -> None:
        bridge, namespace = bridge_of(subnet), services.namespace
        services.links.allow_ipv6(SERVICE_LINK)
        services.links.add_address(SERVICE_LINK, f"{METADATA_IP6}/128")
        services.links.ensure_route(cidr6, link=SERVICE_LINK)
        await services.metadata.listen(METADATA_IP6)
        await services.ensure("dhcp6", lambda: Dhcp6Server(namespace, SERVICE_LINK, self._lease_of))
        if not subnet.bridge:  # an existing one has a router of its own, which speaks for itself
            await services.ensure(
                "ra",
                lambda: RaServer(
                    namespace,
                    SERVICE_LINK,
                    subnet,
                    _router_mac(bridge),
                    self._lease_of,
                    lambda: self._macs(subnet.id),
                ),
            )

    async def _ensure_services(self, bridge: str, mtu: int) -> _Services:
        namespace = f"{self._prefix}-{bridge}"
        port = f"as-{zlib.crc32(bridge.encode()):08x}"
        namespaces.ensure(namespace)
        self._links.ensure_veth(
            port, SERVICE_LINK, namespace, peer_mac=service_mac(bridge), master=bridge, mtu=mtu
        )
        # Known beforehand: an unknown MAC would be flooded to every VM.
        self._links.set_fdb(port, service_mac(bridge))
        services = _Services(namespace, self._metadata(namespace))
        services.links.add_address(SERVICE_LINK, f"{METADATA_IP}/32")
        services.links.up(SERVICE_LINK)
        await services.ensure(
            "dhcp",
            lambda: DhcpServer(
                namespace,
                SERVICE_LINK,
                self._lease_of,
                self._acknowledged,
                lambda ip: self._used(ip, LeaseState.DECLINED),
                lambda ip: self._used(ip, LeaseState.RELEASED),
            ),
        )
        await services.ensure("metadata", lambda: services.metadata)
        await services.ensure("tftp", lambda: TftpServer(namespace, self._library.open, mtu))
        await services.ensure("boot", lambda: BootServer(namespace, self._library.open))
        await self._control(namespace)
        return services

    def _metadata(self, namespace: str) -> MetadataServer:
        return MetadataServer(
            namespace,
            self._guests.find,
            lambda ip, path: self._reached(ip, "metadata"),
            settle=self._guests.settle,
        )

    def _acknowledged(self, ip: str) -> None:
        self._used(ip, LeaseState.BOUND)
        self._reached(ip, "dhcp")

    async def plug(self, nic: VmNic, subnet: Subnet) -> None:
        await self.plug_all([(nic, subnet)])

    async def plug_all(self, nics: Sequence[tuple[VmNic, Subnet]]) -> None:
        ports = [(_port(nic, subnet), subnet) for nic, subnet in nics]
        new = [(port, subnet) for port, subnet in ports if self._plugged.get(port.ip) != port]
        for first in range(0, len(new), PLUGGED_AT_ONCE):
            some = new[first : first + PLUGGED_AT_ONCE]
            await nft.apply([command for port, _ in some for command in firewall.plug(port)])
            self._plugged |= {port.ip: port for port, _ in some}
            self._set_neighbours(some)

    def _set_neighbours(self, ports: Sequence[tuple[firewall.Port, Subnet]]) -> None:
        """We know who has the addresses: nobody needs to ask, and nobody else can answer."""
        here: dict[str, dict[str, str]] = {}
        there: dict[str, dict[str, str]] = {}
        for port, subnet in ports:
            bridge = bridge_of(subnet)
            own = here.setdefault(bridge, {})
            own[port.ip] = port.mac
            if port.ip6 and not subnet.bridge:
                own[port.ip6] = port.mac
            known = _known_to_services(port.ip, port.mac, subnet)
            there.setdefault(bridge, {}).update(dict.fromkeys(known, port.mac))
        for bridge, macs in here.items():
            self._links.set_neighbours(bridge, macs)
        for bridge, macs in there.items():
            self._services[bridge].links.set_neighbours(SERVICE_LINK, macs)

    async def unplug(self, nic: VmNic, subnet: Subnet) -> None:
        # Also what we did not plug: an agent before us may have.
        self._forget_neighbours(subnet, nic.ip, nic.mac)
        await nft.apply(firewall.unplug(firewall.link_for(nic.ip)))
        self._plugged.pop(nic.ip, None)

    def _forget_neighbours(self, subnet: Subnet, ip: str, mac: str | None) -> None:
        bridge = bridge_of(subnet)
        self._links.delete_neighbour(bridge, ip)
        if mac and (ip6 := subnet.ip6_of(mac)) and not subnet.bridge:
            self._links.delete_neighbour(bridge, ip6)
        for known in _known_to_services(ip, mac, subnet):
            self._services[bridge].links.delete_neighbour(SERVICE_LINK, known)

    async def sweep(self, held: Collection[str], macs: Mapping[str, str]) -> None:
        for ip in filter(None, map(firewall.ip_of, await nft.chains("bridge", firewall.TABLE))):
            if ip in held:
                continue
            for subnet in self._subnets:
                # Its chain last: as long as that is there, the next agent finds it again.
                self._forget_neighbours(subnet, ip, macs.get(ip))
            await nft.apply(firewall.unplug(firewall.link_for(ip)))

    async def close(self) -> None:
        for services in self._services.values():
            await services.close()
        self._services.clear()
        self._links.close()
