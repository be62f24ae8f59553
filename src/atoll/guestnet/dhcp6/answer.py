"""What a DHCPv6 message is answered with. Pure: server.py carries it to and from the wire.

A guest has the one address that follows from its MAC, so nothing is remembered between messages:

    SOLICIT ──► ADVERTISE ──► REQUEST ──► REPLY          (SOLICIT with rapid commit ──► REPLY)
    RENEW, REBIND ──► REPLY        CONFIRM ──► REPLY: yes or no
    INFORMATION-REQUEST ──► REPLY without an address     RELEASE, DECLINE ──► REPLY

What a guest says of itself (its DUID) is given back to it, and not looked at: it is known by its frame.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from atoll.guestnet.dhcp.answer import LEASE_S, Lease
from atoll.guestnet.dhcp6.codec import (
    Code,
    Ia,
    Kind,
    Message,
    Option,
    Status,
    address,
    association,
    domains,
    name_servers,
    no_prefix,
    status,
)
from atoll.model.network import METADATA_IP6

_FOR_US = frozenset((Kind.REQUEST, Kind.RENEW, Kind.RELEASE, Kind.DECLINE))
_FOR_ANY = frozenset((Kind.SOLICIT, Kind.CONFIRM, Kind.REBIND))


class Silence(StrEnum):
    """Why a message gets no reply."""

    STRANGER = "no lease is for this MAC"
    NO_IPV6 = "its subnet has no IPv6"
    ANONYMOUS = "the client does not say who it is"
    OTHER_SERVER = "meant for another server"
    UNKNOWN_KIND = "not a kind of message that a server answers"


def server_id(mac: str) -> bytes:
    """Our DUID: of the kind that is a link-layer address."""
    return bytes((0, 3, 0, 1)) + bytes.fromhex(mac.replace(":", ""))


def answer(
    message: Message, frame_mac: str, find: Callable[[str], Lease | None], me: bytes
) -> Message | Silence:
    """The reply to a message that came in a frame from `frame_mac`. `me` is our identifier."""
    lease = find(frame_mac)
    if lease is None:
        return Silence.STRANGER
    if lease.subnet.cidr6 is None:
        return Silence.NO_IPV6
    if message.client_id is None and message.kind != Kind.INFORMATION_REQUEST:
        return Silence.ANONYMOUS
    if message.kind in _FOR_US and message.server_id != me:
        return Silence.OTHER_SERVER
    if message.kind in _FOR_ANY and message.server_id is not None:
        return Silence.OTHER_SERVER
    if message.server_id not in (None, me):
        return Silence.OTHER_SERVER
    return _reply(message, lease, me)


def _reply(message: Message, lease: Lease, me: bytes) -> Message | Silence:
    ip6 = lease.subnet.ip6_of(lease.mac)
    match message.kind:
        case Kind.SOLICIT if message.find(Code.RAPID_COMMIT) is not None:
            rapid: Option = (Code.RAPID_COMMIT, b"")
            return _message(Kind.REPLY, message, me, rapid, *_granted(message, lease, ip6))
        case Kind.SOLICIT:
            return _message(Kind.ADVERTISE, message, me, *_granted(message, lease, ip6))
        case Kind.REQUEST | Kind.RENEW | Kind.REBIND:
            return _message(Kind.REPLY, message, me, *_granted(message, lease, ip6))
        case Kind.CONFIRM:
            return _message(Kind.REPLY, message, me, _confirmed(message, ip6))
        case Kind.RELEASE | Kind.DECLINE:
            return _message(Kind.REPLY, message, me, status(Status.SUCCESS, "the address is yours for good"))
        case Kind.INFORMATION_REQUEST:
            return _message(Kind.REPLY, message, me, *_settings(lease))
        case _:
            return Silence.UNKNOWN_KIND


def _message(kind: Kind, message: Message, me: bytes, *options: Option) -> Message:
    head: list[Option] = [(Code.SERVER_ID, me)]
    if message.client_id is not None:
        head.insert(0, (Code.CLIENT_ID, message.client_id))
    return Message(kind, message.transaction, (*head, *options))


def _granted(message: Message, lease: Lease, ip6: str) -> list[Option]:
    """The address under the first association; nothing under any other."""
    first, *others = message.associations() or (None,)
    options: list[Option] = []
    if first is not None:
        options.append(_association(first, ip6, lease.lease_s))
    for other in others:
        if other is not None:
            options.append(_nothing(other))
    options += [no_prefix(number) for number in message.prefixes_asked()]
    return [*options, *_settings(lease)]


def _association(ia: Ia, ip6: str, lease_s: int = LEASE_S) -> Option:
    # What the guest has besides, from elsewhere or from before, ends now.
    stale = [address(other, 0, 0) for other in ia.addresses if other != ip6]
    good = address(ip6, lease_s, lease_s)
    return association(ia.number, lease_s // 2, lease_s * 4 // 5, good, *stale)


def _nothing(ia: Ia) -> Option:
    return association(ia.number, 0, 0, status(Status.NO_ADDRESSES, "one address for each machine"))


def _confirmed(message: Message, ip6: str) -> Option:
    asked = [ip for ia in message.associations() for ip in ia.addresses]
    if asked and all(ip == ip6 for ip in asked):
        return status(Status.SUCCESS, "yours")
    return status(Status.NOT_ON_LINK, "not an address of this machine here")


def _settings(lease: Lease) -> list[Option]:
    subnet = lease.subnet
    servers = [name_servers(METADATA_IP6)] if subnet.hands_out_resolver and lease.is_default_route else []
    return [*servers, domains(subnet.search_domain)] if subnet.search_domain else servers
