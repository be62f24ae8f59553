"""An island: one bridge with its service namespace, and guests that are namespaces with a link into it."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime

import pytest
from msgspec import Struct

from atoll.guestnet.dhcp.answer import Lease
from atoll.model.network import METADATA_IP, Subnet, mac_for
from atoll.model.vm import VM, MachineType, VmState
from atoll.system import namespaces
from atoll.system.links import Links

SUBNET = Subnet(
    id="blue", cidr="10.77.0.0/24", gateway="10.77.0.1", dns=("10.77.0.1",), domain="atoll.test", mtu=1400
)


class Reply(Struct, frozen=True):
    """An HTTP reply as it came."""

    status: int
    headers: dict[str, str]
    body: bytes


async def read_reply(reader: StreamReader, method: str = "GET") -> Reply:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:-2])}
    length = 0 if method == "HEAD" else int(headers["content-length"])
    return Reply(int(head[0].split()[1]), headers, await reader.readexactly(length))


class Station(Struct, frozen=True):
    """A guest's end of the wire."""

    namespace: str
    ip: str
    mac: str
    name: str

    def socket(self, family: int, kind: int, proto: int = 0) -> socket.socket:
        return namespaces.socket_in(self.namespace, family, kind, proto)

    def configure(self) -> None:
        """Its address and routes, as DHCP would set them."""
        with Links(self.namespace) as links:
            links.add_address("eth0", f"{self.ip}/24")
            links.ensure_route(f"{METADATA_IP}/32", link="eth0")

    @asynccontextmanager
    async def connect(self, port: int = 80) -> AsyncIterator[tuple[StreamReader, StreamWriter]]:
        """A TCP connection from here to the metadata address."""
        client = self.socket(socket.AF_INET, socket.SOCK_STREAM)
        client.setblocking(False)
        writer = None
        try:
            await asyncio.get_running_loop().sock_connect(client, (METADATA_IP, port))
            reader, writer = await asyncio.open_connection(sock=client)
            yield reader, writer
        finally:
            if writer is not None:
                writer.transport.abort()
                with suppress(ConnectionError):
                    await writer.wait_closed()
            client.close()

    async def ask(self, path: str, method: str = "GET", headers: Mapping[str, str] | None = None) -> Reply:
        """One HTTP request on a connection of its own."""
        more = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
        async with self.connect() as (reader, writer):
            writer.write(f"{method} {path} HTTP/1.1\r\nHost: m\r\nConnection: close\r\n{more}\r\n".encode())
            return await read_reply(reader, method)

    @property
    def lease(self) -> Lease:
        return Lease(ip=self.ip, mac=self.mac, hostname=self.name, subnet=SUBNET)

    @property
    def vm(self) -> VM:
        return VM(
            ip=self.ip,
            mac=self.mac,
            name=self.name,
            state=VmState.RUNNING,
            driver="qemu",
            image="appliance",
            image_digest="",
            memory_mib=128,
            milli_cpus=250,
            vcpus=1,
            machine_type=MachineType.Q35,
            subnet=SUBNET.id,
            owner_users=("ann",),
            owner_groups=(),
            tags={},
            created_at=datetime(2026, 1, 1, tzinfo=UTC),
            instance_id=f"i-{self.name}",
            ready={},
        )


class Island:
    """The namespaces of one test. Everything in it goes with it."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._prefix = f"xdhc{os.getpid()}{secrets.token_hex(2)}"
        self.bridge = self._namespace("b")
        self.service = self._namespace("s")
        with Links(self.bridge) as links:
            links.ensure_bridge("br0", "02:00:00:00:00:01", SUBNET.mtu)
            links.ensure_veth("service", "eth0", self.service, mtu=SUBNET.mtu, master="br0")
        with Links(self.service) as links:
            links.add_address("eth0", f"{METADATA_IP}/32")
            links.ensure_route(SUBNET.cidr, link="eth0")

    def station(self, host: int, name: str) -> Station:
        """A guest without an address, which ends in `host`."""
        ip = f"10.77.0.{host}"
        station = Station(self._namespace(f"g{host}"), ip, mac_for(ip), name)
        with Links(self.bridge) as links:
            links.ensure_veth(
                f"guest{host}", "eth0", station.namespace, peer_mac=station.mac, mtu=SUBNET.mtu, master="br0"
            )
        return station

    def _namespace(self, suffix: str) -> str:
        name = f"{self._prefix}{suffix}"
        self._stack.callback(namespaces.delete, name)
        namespaces.ensure(name)
        return name


@pytest.fixture
def island() -> Iterator[Island]:
    with ExitStack() as stack:
        yield Island(stack)


@pytest.fixture
def good(island: Island) -> Station:
    """A guest that does everything right."""
    return island.station(5, "good")


@pytest.fixture
def bad(island: Island) -> Station:
    """A guest that does not."""
    return island.station(6, "bad")
