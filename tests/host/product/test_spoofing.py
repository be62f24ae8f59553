"""A guest that forges what it sends: none of it gets past its own port, and nobody else notices.

The guest is real, and so are its frames: a small program, brought in as user data, sends what the test wrote.
Whoever listens in the cloud's namespace sees each frame once for every link that it comes through.
"""

from __future__ import annotations

import base64
import ipaddress
import secrets
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from atoll.guestnet.dhcp import codec
from atoll.guestnet.dhcp.codec import Code, Kind, Message
from atoll.guestnet.frames import ipv4 as frames
from atoll.guestnet.frames.ipv4 import Datagram
from atoll.plan.firewall import DHCP_PER_S, link_for
from atoll.system import namespaces

if TYPE_CHECKING:
    from tests.host.conftest import Cli, Shell

METADATA = "169.254.169.254"
ALL_MACS, ALL_IPS = "ff:ff:ff:ff:ff:ff", "255.255.255.255"
ETH_P_ALL = 3
SO_RCVBUFFORCE = 33
FORGED_MAC = "52:54:de:ad:be:ef"
DEADLINE_S = 60.0
# nc hangs up when it has sent all that it gets: not before the answer is there.
TOKEN = (
    r"{ printf 'PUT /latest/api/token HTTP/1.0\r\nX-aws-ec2-metadata-token-ttl-seconds: 60\r\n\r\n'; sleep 1; }"
    f" | nc {METADATA} 80 | tail -n 1"
)
READ = f'wget -q -O - --header "X-aws-ec2-metadata-token: $({TOKEN})"'
DOCUMENT = f"http://{METADATA}/latest/dynamic/instance-identity/document"

# send COUNT HEX: so many times this frame, out of the first interface.
SEND_C = r"""
#include <arpa/inet.h>
#include <netpacket/packet.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

int main(int count, char **words)
{
    static unsigned char frame[2048];
    struct sockaddr_ll to = {.sll_family = AF_PACKET, .sll_ifindex = (int)if_nametoindex("eth0")};
    int wire = socket(AF_PACKET, SOCK_RAW, 0);
    size_t length = count == 3 ? strlen(words[2]) / 2 : 0;

    for (size_t at = 0; at < length && at < sizeof frame; at++)
        sscanf(words[2] + 2 * at, "%2hhx", &frame[at]);
    for (int left = length ? atoi(words[1]) : 0; left > 0; left--)
        if (sendto(wire, frame, length, 0, (struct sockaddr *)&to, sizeof to) < 0)
            return 1;
    return 0;
}
"""


class Wire:
    """All frames that come through any link of a namespace, as (link, frame)."""

    def __init__(self, namespace: str) -> None:
        self._socket = namespaces.socket_in(
            namespace, socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL)
        )
        # Room for a flood: whoever reads may have to wait for a turn on the CPU.
        self._socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
        self._socket.settimeout(0.1)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._listen)
        self.seen: list[tuple[str, bytes]] = []

    def __enter__(self) -> Wire:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._socket.close()

    def links(self, marker: bytes) -> list[str]:
        """The links that frames with this marker came through, in the order of their coming."""
        return [link for link, frame in list(self.seen) if marker in frame]

    def until_seen(self, marker: bytes, link: str, times: int = 1) -> None:
        until = time.monotonic() + DEADLINE_S
        while self.links(marker).count(link) < times:
            assert time.monotonic() < until, f"{self.links(marker).count(link)} of {times} frames on {link}"
            time.sleep(0.05)

    def _listen(self) -> None:
        while not self._over.is_set():
            try:
                frame, origin = self._socket.recvfrom(2048)
            except TimeoutError:
                continue
            self.seen.append((origin[0], frame))


class Mallory:
    """A guest that sends whatever it is told."""

    def __init__(self, cloud: Cli, vm: dict[str, Any], shell: Shell) -> None:
        self.cloud = cloud
        self.ip: str = vm["ip"]
        self.mac: str = vm["mac"]
        self.link = link_for(self.ip)
        self.shell = shell

    def send(self, frame: bytes, count: int = 1) -> None:
        self.shell.run(f"/run/send {count} {frame.hex()}")

    def links_reached(self, frame: bytes, marker: bytes) -> set[str]:
        """Send a frame: the links that it came through besides our own port, where it must be seen."""
        # An honest one behind it: when that has arrived, the other had its chance.
        after = secrets.token_bytes(16)
        with Wire(self.cloud.namespace) as wire:
            self.send(frame)
            wire.until_seen(marker, self.link)
            self.send(udp(self.mac, self.ip, after))
            wire.until_seen(after, "br-default")
            return set(wire.links(marker)) - {self.link}


def udp(
    mac: str, ip: str, payload: bytes, target_ip: str = ALL_IPS, ports: tuple[int, int] = (5000, 5001)
) -> bytes:
    """A datagram to everybody on the link."""
    return frames.build(
        Datagram(
            source_mac=mac,
            target_mac=ALL_MACS,
            source_ip=ip,
            target_ip=target_ip,
            source_port=ports[0],
            target_port=ports[1],
            payload=payload,
        )
    )


def ethernet(mac: str, kind: int, payload: bytes, target: str = ALL_MACS) -> bytes:
    return _mac(target) + _mac(mac) + struct.pack("!H", kind) + payload


def arp(mac: str, sender_mac: str, sender_ip: str, payload: bytes, operation: int = 2) -> bytes:
    """An announcement that an address is at a MAC; what follows the message is padding."""
    sender = _mac(sender_mac) + _ip(sender_ip)
    body = struct.pack("!HHBBH", 1, 0x0800, 6, 4, operation) + sender + _mac(ALL_MACS) + _ip(sender_ip)
    return ethernet(mac, 0x0806, body + payload)


def tcp_syn(mac: str, ip: str, target: str, payload: bytes) -> bytes:
    """The opening of a connection to port 80. The firewall comes before anybody who checks its checksum."""
    segment = struct.pack("!HHIIBBHHH", 40000, 80, 1, 0, 5 << 4, 2, 1024, 0, 0) + payload
    header = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(segment), 1, 0, 64, 6, 0) + _ip(ip) + _ip(target)
    checksum = 0xFFFF - sum(struct.unpack("!10H", header)) % 0xFFFF
    return ethernet(mac, 0x0800, header[:10] + struct.pack("!H", checksum) + header[12:] + segment)


def udp6(mac: str, payload: bytes) -> bytes:
    """A datagram to all that speak IPv6 on the link."""
    datagram = struct.pack("!HHHH", 5000, 5001, 8 + len(payload), 0) + payload
    sender, everybody = ipaddress.IPv6Address("fe80::1"), ipaddress.IPv6Address("ff02::1")
    header = struct.pack("!IHBB", 6 << 28, len(datagram), 17, 255) + sender.packed + everybody.packed
    return ethernet(mac, 0x86DD, header + datagram, target="33:33:00:00:00:01")


def discover(mac: str, chaddr: str, xid: int) -> bytes:
    message = Message(
        op=codec.BOOT_REQUEST,
        xid=xid,
        chaddr=_mac(chaddr).ljust(16, b"\0"),
        options={Code.MESSAGE_TYPE: bytes([Kind.DISCOVER])},
    )
    return udp(mac, "0.0.0.0", codec.build(message), ports=(68, 67))


def offers(seen: list[tuple[str, bytes]], link: str) -> dict[int, str]:
    """The addresses that a DHCP server offered to whoever is behind a link, by transaction."""
    found: dict[int, str] = {}
    for where, frame in list(seen):
        try:
            datagram = frames.parse(frame)
            message = codec.parse(datagram.payload)
        except codec.BadPacket:
            continue
        if where == link and datagram.source_port == 67:
            found[message.xid] = message.yiaddr
    return found


def _mac(text: str) -> bytes:
    return bytes.fromhex(text.replace(":", ""))


def _ip(text: str) -> bytes:
    return ipaddress.IPv4Address(text).packed


@pytest.fixture(scope="module")
def mallory(
    cloud: Cli, booted: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mallory]:
    """A guest that can send any frame, beside one that does nothing wrong."""
    place = tmp_path_factory.mktemp("mallory")
    (place / "send.c").write_text(SEND_C)
    subprocess.run(["musl-gcc", "-static", "-Os", "-s", "-o", "send", "send.c"], cwd=place, check=True)
    program = base64.encodebytes((place / "send").read_bytes()).decode()
    script = f"#!/bin/sh\nbase64 -d > /run/send <<.\n{program}.\nchmod +x /run/send\n"
    (place / "user-data").write_text(script)
    vm = cloud.create("mallory", "--user-data", str(place / "user-data"), "--cpus", "1")
    assert cloud.until_script(vm["ip"]) == 0
    with cloud.shell("mallory") as shell:
        yield Mallory(cloud, vm, shell)
    cloud.destroy("mallory")


def test_what_a_guest_sends_as_itself_arrives(mallory: Mallory, booted: dict[str, Any]) -> None:
    marker = secrets.token_bytes(16)
    reached = mallory.links_reached(udp(mallory.mac, mallory.ip, marker), marker)
    assert reached > {"br-default", link_for(booted["ip"])}


Forge = Callable[[Mallory, str, str, bytes], bytes]
FORGERIES: dict[str, Forge] = {
    "another MAC": lambda m, ip, mac, marker: udp(FORGED_MAC, m.ip, marker),
    "the MAC of another VM": lambda m, ip, mac, marker: udp(mac, m.ip, marker),
    "the IP of another VM": lambda m, ip, mac, marker: udp(m.mac, ip, marker),
    "IP and MAC of another VM": lambda m, ip, mac, marker: udp(mac, ip, marker),
    "the IP of the gateway": lambda m, ip, mac, marker: udp(m.mac, _gateway(m.ip), marker),
    "no IP": lambda m, ip, mac, marker: udp(m.mac, "0.0.0.0", marker),
    "an ARP for the IP of another VM": lambda m, ip, mac, marker: arp(m.mac, m.mac, ip, marker),
    "an ARP for the gateway": lambda m, ip, mac, marker: arp(m.mac, m.mac, _gateway(m.ip), marker),
    "an ARP for another MAC": lambda m, ip, mac, marker: arp(m.mac, FORGED_MAC, m.ip, marker),
    "a metadata request of another VM": lambda m, ip, mac, marker: tcp_syn(m.mac, ip, METADATA, marker),
    "an answer of a DHCP server": lambda m, ip, mac, marker: udp(m.mac, m.ip, marker, ports=(67, 68)),
    "IPv6": lambda m, ip, mac, marker: udp6(m.mac, marker),
    "a VLAN": lambda m, ip, mac, marker: ethernet(m.mac, 0x8100, bytes(4) + marker),
    "an unknown ethertype": lambda m, ip, mac, marker: ethernet(m.mac, 0x88B5, marker),
}


def _gateway(ip: str) -> str:
    return f"{ip.rpartition('.')[0]}.1"


@pytest.mark.parametrize("forgery", FORGERIES)
def test_nothing_forged_leaves_its_port(mallory: Mallory, booted: dict[str, Any], forgery: str) -> None:
    marker = secrets.token_bytes(16)
    frame = FORGERIES[forgery](mallory, booted["ip"], booted["mac"], marker)
    assert mallory.links_reached(frame, marker) == set()


def test_a_lease_of_another_vm_cannot_be_had(mallory: Mallory, booted: dict[str, Any]) -> None:
    with Wire(mallory.cloud.namespace) as wire:
        mallory.send(discover(mallory.mac, booted["mac"], xid=1))
        # Answered in turn: when our own offer is here, there was none for the other.
        mallory.send(discover(mallory.mac, mallory.mac, xid=2))
        until = time.monotonic() + DEADLINE_S
        while 2 not in offers(wire.seen, mallory.link):
            assert time.monotonic() < until, "no offer"
            time.sleep(0.05)
        assert offers(wire.seen, mallory.link) == {2: mallory.ip}


def test_metadata_goes_by_the_wire_and_not_by_what_the_caller_says(
    mallory: Mallory, booted: dict[str, Any]
) -> None:
    said = mallory.shell.run(
        f"{READ} --header 'X-Forwarded-For: {booted['ip']}' --header 'Host: {booted['ip']}' {DOCUMENT}"
    )
    assert f'"ip": "{mallory.ip}"' in said
    assert booted["instance_id"] not in said


def test_a_flood_of_dhcp_is_cut_off_and_others_are_served_all_the_while(
    mallory: Mallory, booted: dict[str, Any]
) -> None:
    cloud, sent = mallory.cloud, 4000
    frame = discover(mallory.mac, mallory.mac, xid=3)
    marker = secrets.token_bytes(16)
    everywhere = mallory.links_reached(udp(mallory.mac, mallory.ip, marker), marker)
    (service,) = (link for link in everywhere if link.startswith("as-"))
    with Wire(cloud.namespace) as wire, cloud.shell("booted") as other:
        began = time.monotonic()
        mallory.shell.begin(f"/run/send {sent} {frame.hex()}; echo flood''ed")
        lease = other.run("udhcpc -i eth0 -f -n -q -s /bin/true")
        document = other.run(f"{READ} {DOCUMENT}")
        mallory.shell.expect("flooded")
        wire.until_seen(frame, mallory.link, times=sent // 2)
        elapsed = time.monotonic() - began
        # It is for our server, and has its MAC, when it comes there.
        passed = wire.links(frame[6:]).count(service)
    assert f"lease of {booted['ip']} obtained" in lease
    assert booted["instance_id"] in document
    assert 0 < passed <= DHCP_PER_S * (elapsed + 1) + 2 * DHCP_PER_S < sent // 2


def test_a_guest_that_misbehaved_is_served_again_when_it_behaves(
    mallory: Mallory, booted: dict[str, Any]
) -> None:
    mallory.send(udp(FORGED_MAC, booted["ip"], b"forged"))
    assert mallory.cloud.ask(mallory.ip)["ip"] == mallory.ip
    assert f"lease of {mallory.ip} obtained" in mallory.shell.run("udhcpc -i eth0 -f -n -q -s /bin/true")
