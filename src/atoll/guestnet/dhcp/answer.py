"""What a DHCP message is answered with. Pure: server.py carries it to and from the wire.

Every VM has one fixed lease, found by its MAC, so nothing is remembered between messages:

DISCOVER ──► OFFER ──► REQUEST (selecting) ──► ACK
                       REQUEST (init-reboot, renewing, rebinding) ──► ACK, or NAK on a wrong address
INFORM ──► ACK without a lease          RELEASE, DECLINE ──► nothing
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from socket import inet_aton

from msgspec import Struct

from atoll.guestnet.dhcp.codec import (
    BOOT_REPLY,
    BOOT_REQUEST,
    ETHERNET,
    NO_ADDRESS,
    SMALLEST_LIMIT,
    Code,
    Kind,
    Message,
)
from atoll.guestnet.dhcp.pxe import NOTHING, Directions, directions
from atoll.guestnet.frames.ipv4 import IP_UDP_BYTES
from atoll.model.lease import Boot
from atoll.model.network import METADATA_IP, Subnet

SERVER_IP = METADATA_IP
LEASE_S = 48 * 3600
EVERYONE = "255.255.255.255"

_DEFAULT_PARAMETERS = bytes(
    (
        Code.SUBNET_MASK,
        Code.CLASSLESS_ROUTES,
        Code.ROUTER,
        Code.DNS,
        Code.DOMAIN,
        Code.HOST_NAME,
        Code.MTU,
        Code.BROADCAST,
    )
)
_LEASE_ONLY = frozenset((Code.RENEWAL_TIME, Code.REBINDING_TIME))
# What a guest has once, whatever the number of its interfaces.
_WAY_OUT = frozenset[int]((Code.ROUTER, Code.CLASSLESS_ROUTES, Code.DNS))


class Lease(Struct, frozen=True):
    """What a machine is told: the address that it has for good, and the ways of its subnet."""

    ip: str
    mac: str
    hostname: str
    subnet: Subnet
    lease_s: int = LEASE_S
    boot: Boot = Boot()
    server: str = SERVER_IP
    """The address at which this machine finds us."""
    is_default_route: bool = True
    """Whether it reaches all else through here. Of a machine's interfaces, one is."""


class Answer(Struct, frozen=True):
    """A reply, where it goes, and how long it may be."""

    reply: Message
    destination: tuple[str, str]
    """MAC and IP. The frame always goes to the guest's own MAC, so that no other VM sees it."""
    limit: int
    acknowledged: bool
    source: str = SERVER_IP


class Silence(StrEnum):
    """Why a message gets no reply."""

    NOT_ETHERNET = "not a request over Ethernet"
    FORGED = "the hardware address inside is not that of the frame"
    RELAYED = "came through a relay"
    STRANGER = "no lease is for this MAC"
    UNKNOWN_KIND = "not a kind of message that a server answers"
    OTHER_SERVER = "meant for another server"
    NOTHING_ASKED = "a request without an address"
    NOT_ITS_ADDRESS = "asks about an address that is not the VM's"
    RELEASED = "released; the lease is for good, so nothing changes"
    DECLINED = "somebody else uses the address"


def answer(message: Message, frame_mac: str, find: Callable[[str], Lease | None]) -> Answer | Silence:
    """The reply to a message that came in a frame from `frame_mac`. `find` knows the lease of a MAC."""
    if message.op != BOOT_REQUEST or message.htype != ETHERNET or message.hlen != 6:
        return Silence.NOT_ETHERNET
    if message.mac != frame_mac:
        return Silence.FORGED
    if message.giaddr != NO_ADDRESS:
        return Silence.RELAYED
    lease = find(frame_mac)
    if lease is None:
        return Silence.STRANGER
    match message.kind:
        case Kind.DISCOVER:
            return _grant(message, lease, Kind.OFFER)
        case Kind.REQUEST:
            return _request(message, lease)
        case Kind.INFORM:
            return _inform(message, lease)
        case Kind.DECLINE:
            return _decline(message, lease)
        case Kind.RELEASE:
            return Silence.RELEASED if message.ciaddr == lease.ip else Silence.NOT_ITS_ADDRESS
        case _:
            return Silence.UNKNOWN_KIND


def _request(message: Message, lease: Lease) -> Answer | Silence:
    if message.server_id not in (None, lease.server):
        return Silence.OTHER_SERVER
    # Selecting and init-reboot name the address in an option, renewing and rebinding in ciaddr.
    wanted = message.requested_ip or message.ciaddr
    if wanted == NO_ADDRESS:
        return Silence.NOTHING_ASKED
    if wanted != lease.ip or message.ciaddr not in (NO_ADDRESS, lease.ip):
        return _refuse(message, lease)
    return _grant(message, lease, Kind.ACK)


def _decline(message: Message, lease: Lease) -> Silence:
    if message.server_id not in (None, lease.server):
        return Silence.OTHER_SERVER
    return Silence.DECLINED if message.requested_ip == lease.ip else Silence.NOT_ITS_ADDRESS


def _grant(message: Message, lease: Lease, kind: Kind) -> Answer:
    boot = directions(message, lease.boot, lease.server)
    options = {
        **_head(kind, message, lease),
        Code.LEASE_TIME: _u32(lease.lease_s),
        **boot.options,
        **_asked(message, _parameters(lease)),
    }
    ciaddr = message.ciaddr if kind is Kind.ACK else NO_ADDRESS
    reply = _reply(message, options, boot, ciaddr=ciaddr, yiaddr=lease.ip)
    return Answer(
        reply=reply,
        destination=(lease.mac, _target_ip(message, lease, otherwise=lease.ip)),
        limit=_limit(message, lease),
        acknowledged=kind is Kind.ACK,
        source=lease.server,
    )


def _inform(message: Message, lease: Lease) -> Answer | Silence:
    if message.ciaddr not in (NO_ADDRESS, lease.ip):
        return Silence.NOT_ITS_ADDRESS
    known = {code: value for code, value in _parameters(lease).items() if code not in _LEASE_ONLY}
    boot = directions(message, lease.boot, lease.server)
    options = {**_head(Kind.ACK, message, lease), **boot.options, **_asked(message, known)}
    reply = _reply(message, options, boot, ciaddr=message.ciaddr)
    return Answer(
        reply=reply,
        destination=(lease.mac, _target_ip(message, lease, otherwise=EVERYONE)),
        limit=_limit(message, lease),
        acknowledged=False,
        source=lease.server,
    )


def _refuse(message: Message, lease: Lease) -> Answer:
    why = b"not the address of this machine"
    return Answer(
        reply=_reply(message, {**_head(Kind.NAK, message, lease), Code.MESSAGE: why}),
        # To all, because the guest has not got the address that it would have to listen on.
        destination=(lease.mac, EVERYONE),
        limit=SMALLEST_LIMIT,
        acknowledged=False,
        source=lease.server,
    )


def _target_ip(message: Message, lease: Lease, otherwise: str) -> str:
    """RFC 2131, 4.1: where the guest can hear us."""
    if message.ciaddr == lease.ip:
        return lease.ip
    return EVERYONE if message.wants_broadcast else otherwise


def _limit(message: Message, lease: Lease) -> int:
    """Bytes of payload that the guest takes and that fit the link in one piece."""
    fits = min(message.max_size or 0, lease.subnet.mtu) - IP_UDP_BYTES
    return max(fits, SMALLEST_LIMIT)


def _reply(
    message: Message,
    options: Mapping[int, bytes],
    boot: Directions = NOTHING,
    ciaddr: str = NO_ADDRESS,
    yiaddr: str = NO_ADDRESS,
) -> Message:
    return Message(
        op=BOOT_REPLY,
        xid=message.xid,
        flags=message.flags,
        chaddr=message.chaddr,
        ciaddr=ciaddr,
        yiaddr=yiaddr,
        siaddr=boot.server,
        sname=boot.sname,
        file=boot.file,
        options=options,
    )


def _head(kind: Kind, message: Message, lease: Lease) -> dict[int, bytes]:
    """What every reply begins with. The client's identifier goes back to it (RFC 6842)."""
    head: dict[int, bytes] = {Code.MESSAGE_TYPE: bytes((kind,)), Code.SERVER_ID: inet_aton(lease.server)}
    client_id = message.client_id
    if client_id and len(client_id) <= 64:
        head[Code.CLIENT_ID] = client_id
    return head


def _asked(message: Message, known: Mapping[int, bytes]) -> dict[int, bytes]:
    """Of what we know, what the client asks for, in its order."""
    parameters = message.parameters or _DEFAULT_PARAMETERS
    return {code: known[code] for code in parameters if code in known}


def _parameters(lease: Lease) -> dict[int, bytes]:
    subnet, network = lease.subnet, lease.subnet.network
    gateway = inet_aton(subnet.gateway)
    known: dict[int, bytes] = {
        Code.SUBNET_MASK: network.netmask.packed,
        Code.ROUTER: gateway,
        # Where the machine finds us: a machine that is not a VM may have another address for that.
        Code.DNS: _addresses((lease.server,) if subnet.hands_out_resolver else subnet.dns),
        Code.HOST_NAME: lease.hostname.encode(),
        Code.DOMAIN: subnet.search_domain.encode(),
        Code.MTU: subnet.mtu.to_bytes(2, "big"),
        Code.BROADCAST: network.broadcast_address.packed,
        Code.RENEWAL_TIME: _u32(lease.lease_s // 2),
        Code.REBINDING_TIME: _u32(lease.lease_s * 7 // 8),
        # A client that takes this option ignores the router (RFC 3442), so the default route is in it too.
        Code.CLASSLESS_ROUTES: _route(SERVER_IP, 32, inet_aton(NO_ADDRESS)) + _route(NO_ADDRESS, 0, gateway),
    }
    hidden = frozenset[int]() if lease.is_default_route else _WAY_OUT
    return {code: value for code, value in known.items() if value and code not in hidden}


def _route(network: str, prefix: int, via: bytes) -> bytes:
    return bytes((prefix,)) + inet_aton(network)[: (prefix + 7) // 8] + via


def _addresses(ips: Iterable[str]) -> bytes:
    return b"".join(map(inet_aton, ips))


def _u32(value: int) -> bytes:
    return value.to_bytes(4, "big")
