"""IPv6 packets in Ethernet frames, for packet sockets, and the kernel's filters for them. Pure."""

from __future__ import annotations

import struct
from socket import AF_INET6, inet_ntop, inet_pton

from msgspec import Struct

from atoll.guestnet.frames import filters
from atoll.guestnet.frames.errors import BadPacket

ETHERTYPE_IPV6 = 0x86DD
UDP, ICMPV6 = 17, 58
IP_UDP_BYTES = 48
ALL_NODES = "ff02::1"
UNSPECIFIED = "::"

_ETHERNET = struct.Struct("!6s6sH")
_IPV6 = struct.Struct("!IHBB16s16s")
_UDP = struct.Struct("!HHHH")
_PSEUDO = struct.Struct("!16s16sI3xB")
_VERSION = 6 << 28


class Packet(Struct, frozen=True):
    """One packet, without extension headers, and the frame around it."""

    source_mac: str
    target_mac: str
    source_ip: str
    target_ip: str
    protocol: int
    payload: bytes
    hop_limit: int = 255


class Datagram(Struct, frozen=True):
    """The UDP datagram in a packet."""

    source_port: int
    target_port: int
    payload: bytes


def multicast_mac(ip: str) -> str:
    """The MAC that frames for a multicast address go to."""
    return (b"\x33\x33" + inet_pton(AF_INET6, ip)[12:]).hex(":")


def parse(frame: bytes) -> Packet:
    """The packet in a frame, or BadPacket. Checksums are not looked at: see frames.ipv4."""
    if len(frame) < _ETHERNET.size + _IPV6.size:
        raise BadPacket(f"{len(frame)} bytes are too few for an IPv6 frame")
    target_mac, source_mac, ethertype = _ETHERNET.unpack_from(frame)
    first, length, protocol, hop_limit, source, target = _IPV6.unpack_from(frame, _ETHERNET.size)
    if ethertype != ETHERTYPE_IPV6 or first >> 28 != 6:
        raise BadPacket("not an IPv6 packet")
    start = _ETHERNET.size + _IPV6.size
    if length > len(frame) - start:
        raise BadPacket(f"the IPv6 length {length} does not fit the frame")
    return Packet(
        source_mac=source_mac.hex(":"),
        target_mac=target_mac.hex(":"),
        source_ip=inet_ntop(AF_INET6, source),
        target_ip=inet_ntop(AF_INET6, target),
        protocol=protocol,
        payload=frame[start : start + length],
        hop_limit=hop_limit,
    )


def parse_udp(packet: Packet) -> Datagram:
    if packet.protocol != UDP or len(packet.payload) < _UDP.size:
        raise BadPacket("not a UDP datagram")
    source_port, target_port, length, _ = _UDP.unpack_from(packet.payload)
    if not _UDP.size <= length <= len(packet.payload):
        raise BadPacket(f"the UDP length {length} does not fit the packet")
    return Datagram(source_port, target_port, packet.payload[_UDP.size : length])


def build(packet: Packet) -> bytes:
    """The frame of a packet. Its checksum is in the payload already."""
    return b"".join(
        (
            _ETHERNET.pack(_mac(packet.target_mac), _mac(packet.source_mac), ETHERTYPE_IPV6),
            _IPV6.pack(
                _VERSION,
                len(packet.payload),
                packet.protocol,
                packet.hop_limit,
                inet_pton(AF_INET6, packet.source_ip),
                inet_pton(AF_INET6, packet.target_ip),
            ),
            packet.payload,
        )
    )


def udp(source_ip: str, target_ip: str, datagram: Datagram) -> bytes:
    """A datagram with its checksum."""
    length = _UDP.size + len(datagram.payload)
    ports = datagram.source_port, datagram.target_port
    total = checksum(source_ip, target_ip, UDP, _UDP.pack(*ports, length, 0) + datagram.payload)
    return _UDP.pack(*ports, length, total) + datagram.payload


def icmp(source_ip: str, target_ip: str, kind: int, body: bytes) -> bytes:
    """An ICMPv6 message with its checksum."""
    head = bytes((kind, 0))
    total = checksum(source_ip, target_ip, ICMPV6, head + bytes(2) + body)
    return head + total.to_bytes(2, "big") + body


def checksum(source_ip: str, target_ip: str, protocol: int, payload: bytes) -> int:
    source, target = inet_pton(AF_INET6, source_ip), inet_pton(AF_INET6, target_ip)
    data = _PSEUDO.pack(source, target, len(payload), protocol) + payload
    # See frames.ipv4: the remainder is the sum with end-around carry, and the result is never 0.
    words = int.from_bytes(data if len(data) % 2 == 0 else data + b"\0", "big")
    return 0xFFFF - words % 0xFFFF


def udp_filter(port: int) -> bytes:
    """Classic BPF: passes UDP over IPv6 for a port, sent to us or to a group."""
    return _filter(UDP, filters.LOAD_HALF, 56, port)


def icmp_filter(kind: int) -> bytes:
    """Classic BPF: passes ICMPv6 messages of a kind, sent to us or to a group."""
    return _filter(ICMPV6, filters.LOAD_BYTE, 54, kind)


def _filter(protocol: int, load: int, at: int, value: int) -> bytes:
    return filters.assemble(
        [
            (filters.LOAD_HALF, 12, None),
            (filters.IF_EQUAL, ETHERTYPE_IPV6, False),
            (filters.LOAD_BYTE, filters.PACKET_TYPE, None),
            (filters.IF_ABOVE, filters.TO_GROUP, True),
            (filters.LOAD_BYTE, 20, None),
            (filters.IF_EQUAL, protocol, False),
            (load, at, None),
            (filters.IF_EQUAL, value, False),
        ]
    )


def _mac(text: str) -> bytes:
    return bytes.fromhex(text.replace(":", ""))
