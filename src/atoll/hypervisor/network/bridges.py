"""Bridges: one per subnet or an existing one, each with a namespace for its DHCP and metadata servers.

    at-<vm>   (VM) ──┐
    at-<vm>.1 (VM) ──┤ br-<subnet> ──── as-… ═══ eth0 in <prefix>-<bridge>: DHCP, DNS, TFTP, metadata, the API
    port, uplink ────┘

A request goes from the wire to its server, from there to the callers of that bridge (callers.py), and back.

Effects: links, neighbours and nftables of the namespace that the agent lives in, through atoll.system.
"""

from __future__ import annotations

import functools
import itertools
import socket
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Protocol

from msgspec import Struct
from prometheus_client.metrics_core import Metric

from atoll.drivers.machine.base import Nic
from atoll.guestnet.dhcp.server import DhcpServer
from atoll.guestnet.dhcp6.server import Dhcp6Server
from atoll.guestnet.dns.forward import Forwarder
from atoll.guestnet.dns.server import DnsServer
from atoll.guestnet.metadata.server import MetadataServer
from atoll.guestnet.netboot.http import BootServer
from atoll.guestnet.netboot.library import Content, Library, Missing
from atoll.guestnet.ra.server import RaServer
from atoll.guestnet.tftp.server import TftpServer
from atoll.hypervisor.network import answering, dns_metrics, guest_metrics, physical
from atoll.hypervisor.network.base import Port
from atoll.hypervisor.network.callers import BridgeCallers, Callers
from atoll.hypervisor.network.control import ControlPort
from atoll.hypervisor.network.outside import Outside
from atoll.model.network import METADATA_IP, METADATA_IP6, Subnet, link_local
from atoll.plan import firewall, reach
from atoll.plan.macs import router_mac, service_mac
from atoll.system import namespaces, nft, steps
from atoll.system.links import Links, forward_ipv6, sysctl

SERVICE_LINK = "eth0"
PLUGGED_AT_ONCE = 64
"""Ports in one transaction: many are cheaper together, but all else waits for it."""


def _service_port(bridge: str) -> str:
    return f"{firewall.SERVICE_PREFIX}{zlib.crc32(bridge.encode()):08x}"


def _known_to_services(port: firewall.Port) -> tuple[str, ...]:
    """The addresses from which a port may call the servers of its bridge."""
    return (port.ip, port.ip6, link_local(port.mac)) if port.ip6 else (port.ip,)


def _known_here(port: firewall.Port, subnet: Subnet) -> tuple[str, ...]:
    """The addresses at which the node itself finds a port: over IPv6, where it is the router."""
    if subnet.private:
        return ()
    return (port.ip, port.ip6) if port.ip6 and not subnet.bridge else (port.ip,)


class Server(Protocol):
    """What all servers of a bridge have in common. Both methods may be repeated."""

    @property
    def counters(self) -> Struct: ...

    async def start(self) -> None: ...

    async def close(self) -> None: ...


class _Services:
    """The servers of one bridge, and a way into their namespace."""

    def __init__(self, namespace: str, callers: BridgeCallers, dns: DnsServer) -> None:
        self.namespace = namespace
        self.callers = callers
        self.dns = dns
        self.links = Links(namespace)
        self.metadata = MetadataServer(namespace, callers)
        self._servers: dict[str, tuple[object, Server]] = {}

    async def ensure(self, name: str, make: Callable[[], Server], settings: object = None) -> None:
        """One of this name with these settings; what it was before ends."""
        known = self._servers.get(name)
        if known is None or known[0] != settings:
            if known is not None:
                await known[1].close()
            self._servers[name] = (settings, make())
        await self._servers[name][1].start()

    async def end(self, name: str) -> None:
        """Not there is fine."""
        known = self._servers.pop(name, None)
        if known is not None:
            await known[1].close()

    @property
    def counters(self) -> dict[str, Struct]:
        """What each of them counts, by its name."""
        return {name: server.counters for name, (_, server) in self._servers.items()}

    async def close(self) -> None:
        for name in list(self._servers):
            await self.end(name)
        self.links.close()


class Names(Struct, frozen=True):
    """How what a node makes in its network is called."""

    prefix: str
    """Begins the names of namespaces."""
    node: str
    """Tells this node from all others, also tomorrow."""
    guests_reach: tuple[str, ...] = ()
    """Networks that guests of every subnet may open connections to, where the node is their router."""
    namespace: str | None = None
    """The network namespace that the node lives in; None: the host's own."""


class Backends(Struct, frozen=True):
    """What servers of bridges answer from, beside their callers."""

    library: Library
    """What is booted over the network."""
    control: ControlPort
    forwarder: Forwarder | None = None
    """What asks other DNS servers; without it guests are told the node's own names only."""
    outside: Outside = Outside()


class Bridges:
    """The network of a node: see the picture above."""

    def __init__(self, names: Names, callers: Callers, backends: Backends) -> None:
        self._prefix = names.prefix
        self._node = names.node
        self._guests_reach = names.guests_reach
        self._callers = callers
        self._library = backends.library
        self._control = backends.control
        self._forwarder = backends.forwarder
        self._outside = backends.outside
        self._namespace_of_node = names.namespace
        self._links = Links()
        self._services: dict[str, _Services] = {}
        self._subnets: dict[str, list[Subnet]] = {}
        """Those that are served, by their bridges."""
        self._elements: dict[str, frozenset[firewall.Element]] = {}
        """What the kernel has of each port, by its link."""
        self._plugged: dict[str, firewall.Port] = {}
        """The ports that are as this agent wants them, neighbours included."""
        self._began = False

    def nic(self, port: Port) -> Nic:
        nic, subnet = port.nic, port.subnet
        return Nic(
            link=port.link,
            bridge=subnet.bridge_name,
            mac=nic.mac,
            mtu=subnet.mtu,
            address=f"{nic.ip}/{subnet.network.prefixlen}",
            gateway=subnet.gateway if port.is_default_route else "",
            dns=subnet.name_servers if port.is_default_route else (),
            domain=subnet.search_domain,
        )

    # --- bridges and their servers

    async def serve(self, subnets: Sequence[Subnet]) -> None:
        if not self._began:
            await nft.run(firewall.RULES)
            self._elements = firewall.plugged(await nft.listing(firewall.FAMILY, firewall.TABLE))
            self._began = True
        self._subnets = {}
        for subnet in subnets:
            self._subnets.setdefault(subnet.bridge_name, []).append(subnet)
        # Before there is anything to route, and before the node routes.
        await nft.run(reach.rules(self._routed(subnets), subnets, self._guests_reach))
        for bridge, some in self._subnets.items():
            self._ensure_bridge(bridge, some)
            if bridge not in self._services:
                self._services[bridge] = await self._ensure_services(bridge, some[0].mtu)
            await self._settle(bridge, some)
        for bridge in self._served() - self._subnets.keys():
            await self._abandon(bridge)
        self._outside.settle(subnets)

    def check_free(self, subnet: Subnet) -> None:
        self._outside.check_free(subnet)

    def _routed(self, subnets: Sequence[Subnet]) -> list[reach.Routed]:
        """The subnets that the node is the router of."""
        own = (subnet for subnet in subnets if not subnet.bridge)
        return [reach.Routed(subnet, router_mac(self._node, subnet.bridge_name)) for subnet in own]

    def _served(self) -> set[str]:
        """The bridges that have servers of ours, also those of an agent before us."""
        began = f"{self._prefix}-"
        named = {name.removeprefix(began) for name in namespaces.names() if name.startswith(began)}
        links = self._links.names()
        return {bridge for bridge in named if _service_port(bridge) in links}

    def _ensure_bridge(self, bridge: str, subnets: Sequence[Subnet]) -> None:
        for subnet in subnets:
            if subnet.bridge:
                physical.ensure_bridge(subnet, self._namespace_of_node)
        own = [subnet for subnet in subnets if not subnet.bridge]
        if not own:
            return
        # The node is the router of these. One whose subnets all have bridges elsewhere routes nothing.
        sysctl("net/ipv4/ip_forward", "1")
        gateways = [f"{subnet.gateway}/{subnet.network.prefixlen}" for subnet in own if not subnet.private]
        gateways += [f"{subnet.gateway6}/64" for subnet in own if subnet.gateway6 and not subnet.private]
        ipv6 = any(":" in gateway for gateway in gateways)
        if ipv6:
            forward_ipv6()
        mac = router_mac(self._node, bridge)
        self._links.ensure_bridge(bridge, mac, own[0].mtu, gateways, ipv6=ipv6)
        self._links.keep_addresses(bridge, gateways)

    async def _ensure_services(self, bridge: str, mtu: int) -> _Services:
        namespace, port, mac = self._namespace(bridge), _service_port(bridge), self._service_mac(bridge)
        namespaces.ensure(namespace)
        self._links.ensure_veth(port, SERVICE_LINK, namespace, peer_mac=mac, master=bridge, mtu=mtu)
        # Known beforehand: an unknown MAC would be flooded to every VM.
        self._links.set_fdb(port, mac)
        callers = self._callers.on(bridge)
        dns = DnsServer(namespace, callers.names, self._forwarder, mtu)
        services = _Services(namespace, callers, dns)
        services.links.add_address(SERVICE_LINK, f"{METADATA_IP}/32")
        services.links.up(SERVICE_LINK)

        def open_(ip: str, name: str) -> Content | Missing:
            return self._library.open(callers.client(ip), name)

        await services.ensure("dhcp", lambda: DhcpServer(namespace, SERVICE_LINK, callers))
        await services.ensure("dns", lambda: dns)
        await services.ensure("metadata", lambda: services.metadata)
        await services.ensure("tftp", lambda: TftpServer(namespace, open_, mtu))
        await services.ensure("boot", lambda: BootServer(namespace, open_))
        self._control.add(namespace, bridge)
        return services

    async def _settle(self, bridge: str, subnets: Sequence[Subnet]) -> None:
        """All that the subnets of a bridge ask of its servers, and no more."""
        services = self._services[bridge]
        own = [f"{METADATA_IP}/32", *(f"{one.service_ip}/32" for one in subnets if one.service_ip)]
        routes = [subnet.cidr for subnet in subnets]
        with6 = [subnet for subnet in subnets if subnet.cidr6 is not None]
        if with6:
            services.links.allow_ipv6(SERVICE_LINK)
            own.append(f"{METADATA_IP6}/128")
            routes += [str(subnet.cidr6) for subnet in with6]
        for address in own:
            services.links.add_address(SERVICE_LINK, address)
        services.links.keep_addresses(SERVICE_LINK, own)
        for route in services.links.routes():
            if route.cidr not in routes:
                services.links.delete_route(route.cidr)
        for cidr in routes:
            services.links.ensure_route(cidr, link=SERVICE_LINK)
        await self._settle_ipv6(bridge, services, with6)

    async def _settle_ipv6(self, bridge: str, services: _Services, subnets: Sequence[Subnet]) -> None:
        namespace, callers = services.namespace, services.callers
        if not subnets:
            await services.end("dhcp6")
            await services.end("ra")
            return
        await services.metadata.listen(METADATA_IP6)
        await services.ensure("dhcp6", lambda: Dhcp6Server(namespace, SERVICE_LINK, callers))
        # An existing bridge has a router of its own, which speaks for itself; one of ours has one subnet.
        own = next((subnet for subnet in subnets if not subnet.bridge), None)
        if own is not None:
            mac = router_mac(self._node, bridge)
            make = functools.partial(RaServer, namespace, SERVICE_LINK, own, mac, callers)
            await services.ensure("ra", make, settings=own)

    async def _abandon(self, bridge: str) -> None:
        """Leave nothing on a bridge that no subnet is on any more; one of our own goes with it.

        Our port in it goes last: as long as that is there, the next agent finds it again.
        """
        namespace = self._namespace(bridge)
        services = self._services.pop(bridge, None)
        if services is not None:
            await services.close()
        self._control.remove(namespace)
        found = self._links.find(bridge)
        # By its MAC, also after a restart: an existing bridge has another one.
        if found is not None and found.mac == router_mac(self._node, bridge):
            self._links.delete(bridge)
        steps.step("subnet.bridge-gone")
        namespaces.delete(namespace)
        self._links.delete(_service_port(bridge))
        steps.step("subnet.gone")

    def _namespace(self, bridge: str) -> str:
        return f"{self._prefix}-{bridge}"

    def _service_mac(self, bridge: str) -> str:
        return service_mac(self._node, bridge)

    def families(self) -> Iterator[Metric]:
        """What its servers count, for Prometheus."""
        dns = {bridge: services.dns.counters for bridge, services in self._services.items()}
        yield from dns_metrics.families(dns, self._forwarder.counters if self._forwarder else None)
        yield from guest_metrics.families({name: each.counters for name, each in self._services.items()})

    # --- ports

    async def plug(self, *ports: Port) -> None:
        new = [(port, self._wanted(port)) for port in ports]
        new = [(port, wanted) for port, wanted in new if self._plugged.get(port.link) != wanted]
        for first in range(0, len(new), PLUGGED_AT_ONCE):
            some = new[first : first + PLUGGED_AT_ONCE]
            found = itertools.chain.from_iterable(self._elements.get(port.link, ()) for port, _ in some)
            elements = {port.link: firewall.elements(wanted) for port, wanted in some}
            if script := firewall.change(set(found), set().union(*elements.values())):
                await nft.run(script)
            self._elements |= elements
            self._set_neighbours(some)
            self._plugged |= {port.link: wanted for port, wanted in some}

    async def unplug(self, *ports: Port) -> None:
        for port in ports:
            # Also what we did not plug: an agent before us may have.
            self._forget_neighbours(self._wanted(port), port.subnet)
            await self._close(port.link)

    async def sweep(self, vm_ips: Collection[str]) -> None:
        subnets = {self._service_mac(bridge): some for bridge, some in self._subnets.items()}
        for link, elements in list(self._elements.items()):
            key = firewall.port_of(link)
            if key is not None and key[0] in vm_ips:
                continue
            port = firewall.port_with(elements)
            if port is not None:
                for subnet in subnets.get(port.service_mac, ()):
                    # Its elements last: as long as they are there, the next agent finds it again.
                    self._forget_neighbours(port, subnet)
            await self._close(link)

    async def answers(self, port: Port, tcp_port: int) -> bool:
        return await answering.answers(port.nic.ip, tcp_port, self._asking_from(port.subnet))

    async def converses(self, port: Port, tcp_port: int) -> bool:
        return await answering.converses(port.nic.ip, tcp_port, self._asking_from(port.subnet))

    async def connect(self, port: Port, tcp_port: int) -> socket.socket:
        return await answering.connected(port.nic.ip, tcp_port, self._asking_from(port.subnet))

    def _asking_from(self, subnet: Subnet) -> str | None:
        """The namespace from which guests of a subnet are asked: the node's own (None) where it is their router.

        Elsewhere the node may have no address in the subnet, or its routes lead to another machine with the guest's
        address. The servers of the bridge are on the guest's own link.
        """
        return self._namespace(subnet.bridge_name) if subnet.bridge or subnet.private else None

    async def close(self) -> None:
        for services in self._services.values():
            await services.close()
        self._services.clear()
        self._links.close()

    def _wanted(self, port: Port) -> firewall.Port:
        return firewall.Port(
            link=port.link,
            mac=port.nic.mac,
            ip=port.nic.ip,
            service_mac=self._service_mac(port.subnet.bridge_name),
            ip6=port.subnet.ip6_of(port.nic.mac),
        )

    async def _close(self, link: str) -> None:
        self._plugged.pop(link, None)
        if link in self._elements:
            await nft.run(firewall.change(self._elements[link], ()) + firewall.forget(link))
            del self._elements[link]

    def _set_neighbours(self, ports: Sequence[tuple[Port, firewall.Port]]) -> None:
        """We know who has the addresses: nobody needs to ask, and nobody else can answer."""
        here: dict[str, dict[str, str]] = {}
        there: dict[str, dict[str, str]] = {}
        for port, wanted in ports:
            bridge = port.subnet.bridge_name
            here.setdefault(bridge, {}).update(dict.fromkeys(_known_here(wanted, port.subnet), wanted.mac))
            there.setdefault(bridge, {}).update(dict.fromkeys(_known_to_services(wanted), wanted.mac))
        for bridge, macs in here.items():
            self._links.set_neighbours(bridge, macs)
        for bridge, macs in there.items():
            self._services[bridge].links.set_neighbours(SERVICE_LINK, macs)

    def _forget_neighbours(self, port: firewall.Port, subnet: Subnet) -> None:
        bridge = subnet.bridge_name
        for ip in _known_here(port, subnet):
            self._links.delete_neighbour(bridge, ip)
        for ip in _known_to_services(port):
            self._services[bridge].links.delete_neighbour(SERVICE_LINK, ip)
