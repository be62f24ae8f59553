"""Attackers of a node, each a function that goes on until it is cancelled; and a victim that wants its due."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from atoll.api import hypervisor as api
from atoll.api.async_client import AsyncClient
from atoll.errors import AtollError, TooMany
from atoll.guestnet.dhcp import codec
from atoll.guestnet.dhcp.codec import Code, Kind, Message
from atoll.guestnet.frames import ipv4
from atoll.model.network import METADATA_IP
from atoll.model.vm import VmSpec
from atoll.system import namespaces
from node_labs import PORT, Guest
from soak_node import SoakNode, created

DOOR_ATTACKER = Path(__file__).with_name("door_attacker.py")
AT_DOORS = (
    ("idle", PORT, 200),
    ("hello", PORT, 200),
    ("trickle", PORT, 40),
    ("bodies", PORT, 20),
    ("garbage", PORT, 100),
    ("nonsense", PORT, 10),
)
"""What is tried at every door: how, at which port, how often at once."""
EACH_S = (0.8, 1.6)
AT_GUEST_DOORS = (("idle", 80, 200), ("plain", 80, 100), ("idle", 53, 200))
ALL_MACS = "ff:ff:ff:ff:ff:ff"
NOISE = b"#!/bin/sh\nwhile :; do echo much that says nothing; cat /dev/zero >/fill; rm /fill; done\n"
ROOT_MIB = 24
ANSWER_S, TRIES = 2.0, 3
"""A client asks again when it hears nothing."""


# --- attackers


async def send_frames(guest: Guest, ip: str, choice: random.Random, tally: Counter[str]) -> None:
    """What no parser wants to see, in the place of DHCP, DNS, ARP and router advertisements."""
    makers = (broken_dhcp, broken_dns, any_arp, any_advert)
    with namespaces.socket_in(guest.namespace, socket.AF_PACKET, socket.SOCK_RAW) as wire:
        wire.bind(("eth0", 0))
        while True:
            for _ in range(50):
                frame = choice.choice(makers)(guest.mac, ip, choice)
                with contextlib.suppress(OSError):  # the queue is full
                    wire.send(frame)
                    tally["frames"] += 1
            await asyncio.sleep(0.05)


def broken_dhcp(mac: str, ip: str, choice: random.Random) -> bytes:
    message = Message(
        op=1,
        xid=choice.getrandbits(32),
        chaddr=_bytes(mac).ljust(16, b"\0"),
        options={
            Code.MESSAGE_TYPE: bytes((choice.randrange(9),)),
            choice.randrange(1, 255): choice.randbytes(9),
        },
    )
    data = bytearray(codec.build(message))
    for _ in range(choice.randrange(8)):
        data[choice.randrange(len(data))] = choice.randrange(256)
    payload = bytes(data[: choice.randrange(len(data) + 1)])
    return ipv4.build(ipv4.Datagram(mac, ALL_MACS, "0.0.0.0", "255.255.255.255", 68, 67, payload))


def broken_dns(mac: str, ip: str, choice: random.Random) -> bytes:
    payload = choice.randbytes(2) + b"\x01\x00\x00\x01" + choice.randbytes(choice.randrange(80))
    return ipv4.build(ipv4.Datagram(mac, ALL_MACS, ip, METADATA_IP, 5353, 53, payload))


def any_arp(mac: str, ip: str, choice: random.Random) -> bytes:
    operation = struct.pack("!HHBBH", 1, 0x0800, 6, 4, choice.randrange(4))
    sender = choice.choice((socket.inet_aton(ip), choice.randbytes(4)))
    return (
        _bytes(ALL_MACS) + _bytes(mac) + b"\x08\x06" + operation + _bytes(mac) + sender + choice.randbytes(10)
    )


def any_advert(mac: str, ip: str, choice: random.Random) -> bytes:
    payload = struct.pack("!BBHBBHII", 134, 0, 0, 64, 0, 1800, 0, 0) + choice.randbytes(choice.randrange(60))
    addresses = socket.inet_pton(socket.AF_INET6, "fe80::1") + socket.inet_pton(socket.AF_INET6, "ff02::1")
    head = struct.pack("!IHBB", 6 << 28, len(payload), choice.choice((58, 0, 44, 51)), 255)
    return _bytes("33:33:00:00:00:01") + _bytes(mac) + b"\x86\xdd" + head + addresses + payload


def _bytes(mac: str) -> bytes:
    return bytes.fromhex(mac.replace(":", ""))


async def wear_doors_down(
    namespace: str, doors: list[tuple[str, str, int, int]], choice: random.Random, tally: Counter[str]
) -> None:
    """One door after the other, as door_attacker.py can, for some seconds each."""
    while True:
        kind, host, port, count = choice.choice(doors)
        command = [sys.executable, str(DOOR_ATTACKER), kind, host, str(port), str(count)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = namespaces.inside(
            namespace, lambda command=command, pipes=pipes: subprocess.Popen(command, **pipes)
        )
        with process:
            try:
                await asyncio.sleep(choice.uniform(1.5, 4))
                tally["connections"] += count
            finally:
                process.kill()


async def flood(client: AsyncClient, tally: Counter[str]) -> None:
    """Calls beyond what one user may have."""

    async def call() -> None:
        try:
            await client.call(api.NODE_SHOW)
            tally["calls"] += 1
        except TooMany:
            tally["refused"] += 1
        except AtollError as error:
            tally[error.code] += 1

    while True:
        await asyncio.gather(*(call() for _ in range(20)))
        await asyncio.sleep(0.1)


async def make_noise(client: AsyncClient, name: str, driver: str, tally: Counter[str]) -> None:
    """A guest that writes to its console and to its disk without end; another one when it is gone."""
    root_mib = ROOT_MIB if driver == "lxc" else None
    spec = VmSpec(name, "appliance", driver=driver, milli_cpus=80, memory_mib=128, root_mib=root_mib)
    while True:
        with contextlib.suppress(AtollError):
            await created(client, api.CreateVm(spec, NOISE, api.Wait("started", 30)))
            tally["guests that write without end"] += 1
        await asyncio.sleep(2)


# --- the victim


GOING_S = 3.0
"""For an agent that was killed to be seen as gone."""


class Victim:
    """A guest that behaves, and asks for its metadata and its lease all the time."""

    def __init__(self, node: SoakNode, guest: Guest, ip: str) -> None:
        self._node = node
        self._guest = guest
        self._ip = ip
        self.asked: Counter[str] = Counter()
        self.failed: list[str] = []

    async def live(self) -> None:
        while True:
            await self._ask("reads metadata", self._reads_metadata)
            await self._ask("renews its lease", self._renews)
            await asyncio.sleep(0.2)

    async def _ask(self, what: str, ask: Callable[[], None]) -> None:
        agent = self._node.served()
        try:
            await asyncio.to_thread(ask)
            self.asked[what] += 1
        except (OSError, AssertionError, ValueError, IndexError) as error:
            # With no agent, one that is told to end, or another than at the beginning, it asks again. The sockets of
            # a process are closed before it is seen to be gone: on a busy machine, long before.
            until = time.monotonic() + GOING_S
            while agent is not None and time.monotonic() < until:
                if self._node.served() != agent or "TERM" in self._node.faults[-1]:
                    return
                await asyncio.sleep(0.1)
            if agent is not None:
                self.failed.append(f"the victim {what}: {error!r}")

    def _reads_metadata(self) -> None:
        assert self._guest.metadata("/latest/meta-data/local-ipv4") == (200, self._ip)

    def _renews(self) -> None:
        request = Message(
            op=1,
            xid=7,
            chaddr=_bytes(self._guest.mac).ljust(16, b"\0"),
            ciaddr=self._ip,
            options={Code.MESSAGE_TYPE: bytes((Kind.REQUEST,))},
        )
        with namespaces.socket_in(self._guest.namespace, socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.bind((self._ip, 68))
            client.settimeout(ANSWER_S)
            for left in reversed(range(TRIES)):
                client.sendto(codec.build(request), (METADATA_IP, 67))
                try:
                    reply = codec.parse(client.recv(2048))
                    break
                except TimeoutError:
                    if not left:
                        raise
        assert (reply.kind, reply.yiaddr) == (Kind.ACK, self._ip)
