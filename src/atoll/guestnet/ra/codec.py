"""Router solicitations and advertisements as bytes (RFC 4861, RFC 8106). Pure."""

from __future__ import annotations

import ipaddress
import struct

from atoll.guestnet.frames import ipv6 as packets6
from atoll.guestnet.frames.errors import BadPacket
from atoll.guestnet.frames.ipv6 import ICMPV6, Packet
from atoll.model.network import METADATA_IP6, Subnet, link_local

SOLICITATION, ADVERTISEMENT = 133, 134
LIFETIME_S = 1800
HOP_LIMIT = 255
"""Neighbour discovery comes from the same link, or it is forged: no router passes this number on."""

_HEAD = struct.Struct("!BBHII")
_PREFIX = struct.Struct("!BBBBIII16s")
_MTU = struct.Struct("!BBHI")
_NAME_SERVER = struct.Struct("!BBHI16s")
_MANAGED, _OTHER = 0x80, 0x40
_ON_LINK, _AUTONOMOUS = 0x80, 0x40
_VALID_S, _PREFERRED_S = 86400, 14400
_SOURCE_LINK, _PREFIX_INFORMATION, _LINK_MTU, _RECURSIVE_DNS = 1, 3, 5, 25


def parse_solicitation(frame: bytes) -> Packet:
    """The packet of a guest that looks for its router, or BadPacket."""
    packet = packets6.parse(frame)
    if packet.protocol != ICMPV6 or packet.hop_limit != HOP_LIMIT:
        raise BadPacket("not from this link")
    if len(packet.payload) < 8 or packet.payload[:2] != bytes((SOLICITATION, 0)):
        raise BadPacket("not a router solicitation")
    return packet


def advertisement(
    subnet: Subnet,
    router_mac: str,
    source_mac: str,
    target: tuple[str, str],
    *,
    is_default_route: bool = True,
) -> bytes:
    """The frame that tells of a subnet's router. `target` is a MAC and an IP.

    Without `is_default_route` it tells of the subnet alone: the router is none for what is elsewhere. It is sent from
    `source_mac`, our own port, in the name of the router that answers at `router_mac`: guests go by what is
    inside.
    """
    mac, ip = target
    source_ip = link_local(router_mac)
    payload = packets6.icmp(source_ip, ip, ADVERTISEMENT, _body(subnet, router_mac, is_default_route))
    return packets6.build(Packet(source_mac, mac, source_ip, ip, ICMPV6, payload, HOP_LIMIT))


def _body(subnet: Subnet, router_mac: str, is_default_route: bool) -> bytes:
    assert subnet.cidr6 is not None
    network = ipaddress.IPv6Network(subnet.cidr6)
    flags = _ON_LINK | (_AUTONOMOUS if subnet.autoconf6 else 0)
    return b"".join(
        (
            _HEAD.pack(64, _MANAGED | _OTHER, LIFETIME_S if is_default_route else 0, 0, 0),
            bytes((_SOURCE_LINK, 1)) + bytes.fromhex(router_mac.replace(":", "")),
            _MTU.pack(_LINK_MTU, 1, 0, subnet.mtu),
            _PREFIX.pack(
                _PREFIX_INFORMATION,
                4,
                network.prefixlen,
                flags,
                _VALID_S,
                _PREFERRED_S,
                0,
                network.network_address.packed,
            ),
            _name_server() if subnet.hands_out_resolver and is_default_route else b"",
        )
    )


def _name_server() -> bytes:
    """RFC 8106: for guests that make up their address by themselves and never ask for more."""
    return _NAME_SERVER.pack(_RECURSIVE_DNS, 3, 0, LIFETIME_S, ipaddress.IPv6Address(METADATA_IP6).packed)
