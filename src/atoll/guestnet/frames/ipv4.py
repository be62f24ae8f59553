"""Ethernet frames that hold UDP over IPv4, for packet sockets, and the kernel's filter for them. Pure.

A packet socket is the only way to answer a guest that has no address yet, and to know the MAC that it
sent from.
"""

from __future__ import annotations

import struct
from socket import inet_aton, inet_ntoa

from msgspec import Struct

from atoll.guestnet.frames import filters
from atoll.guestnet.frames.errors import BadPacket

ETHERTYPE_IPV4 = 0x0800
UDP = 17
IP_UDP_BYTES = 28

_ETHERNET = struct.Struct("!6s6sH")
_IPV4 = struct.Struct("!BBHHHBBH4s4s")
_UDP = struct.Struct("!HHHH")
_FRAGMENT = 0x3FFF
_DONT_FRAGMENT = 0x4000


class Datagram(Struct, frozen=True):
    """One UDP datagram and the frame around it."""

    source_mac: str
    target_mac: str
    source_ip: str
    target_ip: str
    source_port: int
    target_port: int
    payload: bytes


def parse(frame: bytes) -> Datagram:
    """The datagram in a frame, or BadPacket.

    Checksums are not looked at: the sender is a virtual NIC on this host, which leaves them to be
    filled in by hardware that is never passed.
    """
    if len(frame) < _ETHERNET.size + _IPV4.size + _UDP.size:
        raise BadPacket(f"{len(frame)} bytes are too few for a UDP frame")
    target_mac, source_mac, ethertype = _ETHERNET.unpack_from(frame)
    start = _ETHERNET.size
    version, _, total, _, fragment, _, protocol, _, source, target = _IPV4.unpack_from(frame, start)
    header = (version & 0x0F) * 4
    if ethertype != ETHERTYPE_IPV4 or version >> 4 != 4 or header < _IPV4.size:
        raise BadPacket("not an IPv4 packet")
    if protocol != UDP or fragment & _FRAGMENT:
        raise BadPacket("not a whole UDP datagram")
    if not header + _UDP.size <= total <= len(frame) - start:
        raise BadPacket(f"the IPv4 length {total} does not fit the frame")
    source_port, target_port, length, _ = _UDP.unpack_from(frame, start + header)
    if not _UDP.size <= length <= total - header:
        raise BadPacket(f"the UDP length {length} does not fit the packet")
    body = start + header + _UDP.size
    return Datagram(
        source_mac=source_mac.hex(":"),
        target_mac=target_mac.hex(":"),
        source_ip=inet_ntoa(source),
        target_ip=inet_ntoa(target),
        source_port=source_port,
        target_port=target_port,
        payload=frame[body : body + length - _UDP.size],
    )


def build(datagram: Datagram) -> bytes:
    """The frame of a datagram, checksums included."""
    source, target = inet_aton(datagram.source_ip), inet_aton(datagram.target_ip)
    length = _UDP.size + len(datagram.payload)
    ports = datagram.source_port, datagram.target_port
    pseudo = struct.pack("!4s4sHH", source, target, UDP, length)
    udp_sum = _checksum(pseudo + _UDP.pack(*ports, length, 0) + datagram.payload)
    fields = (0x45, 0, _IPV4.size + length, 0, _DONT_FRAGMENT, 64, UDP)
    ip_sum = _checksum(_IPV4.pack(*fields, 0, source, target))
    return b"".join(
        (
            _ETHERNET.pack(_mac(datagram.target_mac), _mac(datagram.source_mac), ETHERTYPE_IPV4),
            _IPV4.pack(*fields, ip_sum, source, target),
            _UDP.pack(*ports, length, udp_sum),
            datagram.payload,
        )
    )


def _mac(text: str) -> bytes:
    return bytes.fromhex(text.replace(":", ""))


def _checksum(data: bytes) -> int:
    # 65536 is 1 modulo 65535, so the remainder of the whole is the sum with end-around carry of its words.
    # It never gives 0, which in UDP would mean "no checksum"; 65535 is the other way to write it.
    words = int.from_bytes(data if len(data) % 2 == 0 else data + b"\0", "big")
    return 0xFFFF - words % 0xFFFF


def udp_filter(port: int) -> bytes:
    """Passes whole UDP datagrams over IPv4 for a port, sent to us or to all."""
    return filters.assemble(
        [
            (filters.LOAD_HALF, 12, None),
            (filters.IF_EQUAL, ETHERTYPE_IPV4, False),
            (filters.LOAD_BYTE, filters.PACKET_TYPE, None),
            (filters.IF_ABOVE, filters.TO_ALL, True),
            (filters.LOAD_BYTE, 23, None),
            (filters.IF_EQUAL, UDP, False),
            (filters.LOAD_HALF, 20, None),
            (filters.IF_SET, _FRAGMENT, True),
            (filters.LOAD_HEADER_SIZE, 14, None),
            (filters.LOAD_HALF_BEYOND, 16, None),
            (filters.IF_EQUAL, port, False),
        ]
    )
