"""Replies of other servers, for as long as they say that they are good. Pure: knows no clock."""

from __future__ import annotations

from collections import OrderedDict

import dns.rdatatype
from dns.message import Message
from dns.rcode import Rcode
from msgspec import Struct

ENTRIES = 2048
LARGEST = 4096
"""Bytes of one reply. Both together bound the memory: longer ones are rare, and asked for again."""
LONGEST_S = 3600
LONGEST_NEGATIVE_S = 300


class Key(Struct, frozen=True):
    """What a reply depends on."""

    name: str
    """In lower case."""
    rdtype: int
    wants_signatures: bool
    checking_disabled: bool


class _Entry(Struct, frozen=True):
    wire: bytes
    since_s: float
    until_s: float


class Cache:
    """Replies as bytes. Of too many, the one that was used longest ago goes."""

    def __init__(self) -> None:
        self._entries: OrderedDict[Key, _Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Key, now_s: float) -> tuple[bytes, int] | None:
        """The reply and its age in seconds, if it is still good."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        if now_s >= entry.until_s:
            del self._entries[key]
            return None
        self._entries.move_to_end(key)
        return entry.wire, int(now_s - entry.since_s)

    def put(self, key: Key, wire: bytes, ttl_s: int, now_s: float) -> None:
        if ttl_s <= 0 or len(wire) > LARGEST:
            return
        self._entries[key] = _Entry(wire, now_s, now_s + ttl_s)
        self._entries.move_to_end(key)
        while len(self._entries) > ENTRIES:
            self._entries.popitem(last=False)


def lifetime_s(reply: Message) -> int:
    """How long a reply may be kept: as long as the first of its records (RFC 2308 where it has none)."""
    if reply.rcode() not in (Rcode.NOERROR, Rcode.NXDOMAIN):
        return 0
    records = [*reply.answer, *reply.authority, *reply.additional]
    shortest = min((rrset.ttl for rrset in records), default=0)
    if reply.answer and reply.rcode() == Rcode.NOERROR:
        return min(shortest, LONGEST_S)
    soa = next((rrset for rrset in reply.authority if rrset.rdtype == dns.rdatatype.SOA), None)
    if soa is None:
        return 0
    return min(shortest, int(soa[0].minimum), LONGEST_NEGATIVE_S)


def grow_older(reply: Message, age_s: int) -> None:
    """What is left of the lifetimes in a reply that was kept for so long."""
    for rrset in (*reply.answer, *reply.authority, *reply.additional):
        rrset.ttl = max(0, rrset.ttl - age_s)
