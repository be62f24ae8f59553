"""What a DNS question is answered with. Pure: server.py carries it to and from the wire.

a name of one label          a machine's; one that nobody has, NXDOMAIN, and it is never asked for elsewhere
a name in a zone of ours     a machine's addresses, an address' name, or NODATA or NXDOMAIN, from us
any other                    not ours: forward.py, where the node may
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from typing import Protocol

import dns.rrset
from dns.flags import Flag
from dns.message import Message
from dns.name import Name
from dns.rcode import Rcode
from dns.rdataclass import RdataClass
from dns.rdatatype import RdataType

from atoll.guestnet.dns.messages import respond
from atoll.guestnet.dns.zones import address_of, enclosing, is_reverse

TTL_S = 10
"""A VM can be given another address, and a name another VM."""
NEGATIVE_TTL_S = 5

_VERSIONS = {RdataType.A: 4, RdataType.AAAA: 6}
# RFC 6895, 3.1: kinds of question, not of data. All but ANY, which is 255, are about transfers or signatures.
_META = range(128, 255)
# As those of RFC 6303: nobody is asked to write to, and nobody copies the zone.
_SOA = f"nobody.invalid. 1 3600 1200 604800 {NEGATIVE_TTL_S}"


class Names(Protocol):
    """What one asker may know."""

    def zones(self) -> Collection[Name]:
        """Those in which we know every name, or that there is none."""
        ...

    def addresses(self, label: str, zone: Name | None) -> tuple[str, ...]:
        """Those of the machine of this name in a zone, or of one label alone; empty: there is none."""
        ...

    def name_at(self, address: str) -> Name | None:
        """The full name of the machine with this address."""
        ...


def answer(query: Message, names: Names, *, recursion: bool) -> Message | None:
    """The reply; None where the name is not ours. `recursion`: whether we find out about such names."""
    question = query.question[0]
    if query.edns > 0:
        return respond(query, Rcode.BADVERS, recursion=recursion)
    if question.rdclass != RdataClass.IN or question.rdtype in _META or question.rdtype == RdataType.OPT:
        return respond(query, Rcode.REFUSED, recursion=recursion)
    reply = respond(query, recursion=recursion)
    reply.flags |= Flag.AA
    is_single = len(question.name) == 2  # the root is a label too
    if is_single and (addresses := names.addresses(_first_label(question.name), None)):
        return _of_machine(reply, addresses, None)
    zones = names.zones()
    zone = enclosing(question.name, zones)
    if zone is not None:
        return _in_zone(reply, zone, zones, names)
    if is_single and question.rdtype in _VERSIONS:
        # Without a zone, which would be the root: nobody keeps it, and the name may be a VM's in a moment.
        return _absent(reply, None)
    return None


def _in_zone(reply: Message, zone: Name, zones: Collection[Name], names: Names) -> Message:
    name = reply.question[0].name
    if name == zone:
        return _apex(reply, zone)
    if is_reverse(zone):
        return _of_address(reply, zone, names)
    if name.parent() == zone and (addresses := names.addresses(_first_label(name), zone)):
        return _of_machine(reply, addresses, zone)
    if any(other.is_subdomain(name) for other in zones):
        return _no_data(reply, zone)  # nothing has this name, but there are names below it
    return _absent(reply, zone)


def _apex(reply: Message, zone: Name) -> Message:
    match reply.question[0].rdtype:
        case RdataType.SOA:
            reply.answer.append(_soa(zone))
        case RdataType.NS:
            _add(reply, RdataType.NS, [zone.to_text()])
        case RdataType.ANY:
            _add_any(reply)
        case _:
            return _no_data(reply, zone)
    return reply


def _of_machine(reply: Message, addresses: Collection[str], zone: Name | None) -> Message:
    asked = reply.question[0].rdtype
    if asked == RdataType.ANY:
        return _add_any(reply)
    found = [ip for ip in addresses if ipaddress.ip_address(ip).version == _VERSIONS.get(asked)]
    return _add(reply, asked, found) if found else _no_data(reply, zone)


def _of_address(reply: Message, zone: Name, names: Names) -> Message:
    question = reply.question[0]
    address = address_of(question.name)
    if address == "":
        return _no_data(reply, zone)
    name = names.name_at(address) if address is not None else None
    if name is None:
        return _absent(reply, zone)
    if question.rdtype == RdataType.PTR:
        return _add(reply, RdataType.PTR, [name.to_text()])
    return _add_any(reply) if question.rdtype == RdataType.ANY else _no_data(reply, zone)


def _add(reply: Message, kind: RdataType, records: list[str]) -> Message:
    """The records under the name as it was asked for, in the asker's letters."""
    name = reply.question[0].name
    reply.answer.append(dns.rrset.from_text_list(name, TTL_S, RdataClass.IN, kind, records))
    return reply


def _add_any(reply: Message) -> Message:
    """RFC 8482: who asks for everything is told that there is something."""
    return _add(reply, RdataType.HINFO, ['"RFC8482" ""'])


def _no_data(reply: Message, zone: Name | None) -> Message:
    if zone is not None:
        reply.authority.append(_soa(zone))
    return reply


def _absent(reply: Message, zone: Name | None) -> Message:
    reply.set_rcode(Rcode.NXDOMAIN)
    return _no_data(reply, zone)


def _soa(zone: Name) -> dns.rrset.RRset:
    return dns.rrset.from_text(zone, NEGATIVE_TTL_S, RdataClass.IN, RdataType.SOA, f"{zone} {_SOA}")


def _first_label(name: Name) -> str:
    return name.labels[0].decode("latin-1").lower()
