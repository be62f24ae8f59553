"""DNS questions as bytes and as dnspython's messages, and replies as bytes. Pure.

A question that cannot be answered as one is a BadQuery, which carries the reply to it, if there is to be any.
"""

from __future__ import annotations

import struct

import dns.exception
import dns.flags
import dns.message
from dns.message import Message, QueryMessage
from dns.opcode import Opcode
from dns.rcode import Rcode

LARGEST_QUERY = 1500
"""A question with its options is far smaller."""
LARGEST_UDP = 1232
"""What passes every link that carries IPv6 in one piece."""
SMALLEST_UDP = 512
LARGEST_TCP = 65535

_HEADER = struct.Struct("!HHHHHH")
_OPCODE = 0x7800


class BadQuery(Exception):
    """Not a question. `reply` is what its sender is told; empty: nothing."""

    def __init__(self, why: str, reply: bytes = b"") -> None:
        super().__init__(why)
        self.reply = reply


def parse(data: bytes) -> QueryMessage:
    """One question, or BadQuery."""
    if len(data) < _HEADER.size:
        raise BadQuery("shorter than a header")
    number, flags, questions, answers, authorities, additional = _HEADER.unpack_from(data)
    if flags & dns.flags.QR:
        raise BadQuery("an answer")  # to answer it could go on for ever
    if flags & _OPCODE != Opcode.QUERY:
        raise BadQuery("not a question", _header(number, flags, Rcode.NOTIMP))
    malformed = _header(number, flags, Rcode.FORMERR)
    # Counted before anything is parsed: what a question can cost us is known beforehand.
    if (questions, answers, authorities) != (1, 0, 0) or additional > 1 or len(data) > LARGEST_QUERY:
        raise BadQuery("more than one question", malformed)
    try:
        query = dns.message.from_wire(data)
    except dns.exception.DNSException as error:
        raise BadQuery(type(error).__name__, malformed) from None
    assert isinstance(query, QueryMessage)
    return query


def respond(query: Message, rcode: Rcode = Rcode.NOERROR, *, recursion: bool = False) -> Message:
    """A reply without records. `recursion`: whether we answer for names that are not our own."""
    response = dns.message.make_response(query, recursion_available=recursion, our_payload=LARGEST_UDP, pad=0)
    if query.edns >= 0 and query.ednsflags & dns.flags.DO:
        response.ednsflags |= dns.flags.DO
    response.set_rcode(rcode)
    return response


def wants_recursion(query: Message) -> bool:
    """Who does not may only want to find out what others have asked for."""
    return bool(query.flags & dns.flags.RD)


def udp_limit(query: Message, limit: int) -> int:
    """How long a reply may be: as long as its receiver takes, and `limit` at the most."""
    asked = query.payload if query.edns >= 0 else SMALLEST_UDP
    return max(SMALLEST_UDP, min(asked, limit))


def render(response: Message, limit: int) -> bytes:
    """The reply as bytes, truncated where it would be longer; the records in their order."""
    return response.to_wire(max_size=limit, prefer_truncation=True, want_shuffle=False)


def _header(number: int, flags: int, rcode: Rcode) -> bytes:
    """A reply to what could not be read any further."""
    return _HEADER.pack(number, dns.flags.QR | flags & (_OPCODE | dns.flags.RD) | rcode, 0, 0, 0, 0)
