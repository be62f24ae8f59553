"""Questions about names that are not ours, asked of other servers for the guests. Effects: sockets, in the loop.

Guests say what is asked, and nothing else of what is sent: to whom, from where and under which number is up to
us. Each question has a socket and a number of its own, and an answer is taken from whom it was asked, if it is
about what was asked. What guests can make us do is limited, for each of them and in all.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

import dns.exception
import dns.flags
import dns.message
from dns.flags import Flag
from dns.message import Message
from dns.rcode import Rcode
from dns.rdatatype import RdataType
from msgspec import Struct

from atoll.errors import AtollError
from atoll.guestnet.dns.cache import Cache, Key, grow_older, lifetime_s
from atoll.guestnet.dns.messages import LARGEST_TCP, LARGEST_UDP, render, respond
from atoll.system import clock

PORT = 53
AT_ONCE = 256
AT_ONCE_PER_GUEST = 32
WAIT_S = 1.5
"""For one server. A guest asks again after some five seconds: by then we know."""
WAIT_IN_ALL_S = 4.5
ROUNDS = 2
STRAY_REPLIES = 8
"""Replies to something else after which a server is given up: somebody guesses."""

# What one server says does not count while another may know better.
_TRY_NEXT = frozenset((Rcode.SERVFAIL, Rcode.REFUSED, Rcode.NOTIMP))

OpenSocket = Callable[[int, int], socket.socket]
Upstreams = Callable[[], Awaitable[Sequence[str]]]

log = logging.getLogger(__name__)


class Excess(Exception):
    """Too much is under way, of this guest or in all. It asks again."""


class Counters(Struct):
    """What became of the questions: received is the sum of the next four, asked that of the last two."""

    received: int = 0
    cached: int = 0
    joined: int = 0
    excess: int = 0
    asked: int = 0
    answered: int = 0
    failed: int = 0


class Forwarder:
    """Asks other servers, one after the other. `open_socket` makes sockets of a family and kind there where those
    servers are reached."""

    def __init__(self, upstreams: Upstreams, open_socket: OpenSocket = socket.socket) -> None:
        self._upstreams = upstreams
        self._open = open_socket
        self._cache = Cache()
        self._under_way: dict[Key, asyncio.Task[bytes]] = {}
        self._of_guest: Counter[str] = Counter()
        self.counters = Counters()

    async def resolve(self, query: Message, guest: str) -> Message:
        """The reply to a guest's question, SERVFAIL where there is none; or Excess."""
        self.counters.received += 1
        key, age_s = _key(query), 0
        found = self._cache.get(key, clock.monotonic())
        if found is not None:
            self.counters.cached += 1
            wire, age_s = found
        else:
            wire = await self._wait(key, query, guest)
        return _passed_on(query, wire, age_s)

    async def close(self) -> None:
        """Give up what is under way. Closed already is fine."""
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _wait(self, key: Key, query: Message, guest: str) -> bytes:
        task = self._under_way.get(key)
        if self._of_guest[guest] >= AT_ONCE_PER_GUEST or (task is None and len(self._under_way) >= AT_ONCE):
            self.counters.excess += 1
            raise Excess
        if task is None:
            self.counters.asked += 1
            task = asyncio.get_running_loop().create_task(self._ask_all(key, _question(query)))
            self._under_way[key] = task
            task.add_done_callback(lambda _: self._under_way.pop(key, None))
        else:
            self.counters.joined += 1
        self._of_guest[guest] += 1
        try:
            return await asyncio.shield(task)
        finally:
            self._of_guest[guest] -= 1
            if not self._of_guest[guest]:
                del self._of_guest[guest]

    async def _ask_all(self, key: Key, question: Message) -> bytes:
        """The first good reply of any server, else the last one of any; empty where none came."""
        last = b""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WAIT_IN_ALL_S):
                for server in [*await self._upstreams()] * ROUNDS:
                    reply = await self._ask(server, question)
                    if reply is None:
                        continue
                    last = render(reply, LARGEST_TCP)
                    if reply.rcode() not in _TRY_NEXT:
                        self._cache.put(key, last, lifetime_s(reply), clock.monotonic())
                        break
        if last:
            self.counters.answered += 1
        else:
            self.counters.failed += 1
        return last

    async def _ask(self, server: str, question: Message) -> Message | None:
        try:
            async with asyncio.timeout(WAIT_S):
                reply = await self._ask_udp(server, question)
                if reply is not None and reply.flags & Flag.TC:
                    reply = await self._ask_tcp(server, question)
                return reply
        except TimeoutError:
            log.debug("DNS server %s: no answer within %g s", server, WAIT_S)
        except (OSError, EOFError, AtollError) as error:
            log.debug("DNS server %s: %s", server, error)
        return None

    async def _ask_udp(self, server: str, question: Message) -> Message | None:
        loop = asyncio.get_running_loop()
        with self._open(_family(server), socket.SOCK_DGRAM) as wire:
            wire.setblocking(False)
            # Connected: the kernel passes on what comes from there, and nothing else.
            wire.connect((server, PORT))
            asked = _numbered(question)
            wire.send(render(asked, LARGEST_UDP))
            for _ in range(STRAY_REPLIES):
                reply = _reply_to(asked, await loop.sock_recv(wire, LARGEST_TCP))
                if reply is not None:
                    return reply
        return None

    async def _ask_tcp(self, server: str, question: Message) -> Message | None:
        loop = asyncio.get_running_loop()
        with self._open(_family(server), socket.SOCK_STREAM) as wire:
            wire.setblocking(False)
            await loop.sock_connect(wire, (server, PORT))
            asked = _numbered(question)
            data = render(asked, LARGEST_TCP)
            await loop.sock_sendall(wire, len(data).to_bytes(2, "big") + data)
            length = int.from_bytes(await _exactly(wire, 2), "big")
            return _reply_to(asked, await _exactly(wire, length))


async def _exactly(wire: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        piece = await asyncio.get_running_loop().sock_recv(wire, count - len(data))
        if not piece:
            raise EOFError("it hung up")
        data += piece
    return bytes(data)


def _key(query: Message) -> Key:
    question = query.question[0]
    return Key(
        question.name.to_text().lower(),
        question.rdtype,
        _wants_signatures(query),
        bool(query.flags & Flag.CD),
    )


def _wants_signatures(query: Message) -> bool:
    return query.edns >= 0 and bool(query.ednsflags & dns.flags.DO)


def _question(query: Message) -> Message:
    """What is asked elsewhere: the same, and nothing else that the guest said."""
    question = query.question[0]
    return dns.message.make_query(
        question.name,
        question.rdtype,
        want_dnssec=_wants_signatures(query),
        use_edns=0,
        payload=LARGEST_UDP,
        flags=Flag.RD | query.flags & (Flag.CD | Flag.AD),
    )


def _numbered(question: Message) -> Message:
    question.id = secrets.randbelow(1 << 16)
    return question


def _reply_to(asked: Message, data: bytes) -> Message | None:
    """The reply in these bytes, if it is one to this question."""
    try:
        reply = dns.message.from_wire(data, ignore_trailing=True)
    except dns.exception.DNSException:
        return None
    return reply if asked.is_response(reply) else None


def _passed_on(query: Message, wire: bytes, age_s: int) -> Message:
    """Another server's reply as ours to this guest: under its number, in its letters."""
    if not wire:
        return respond(query, Rcode.SERVFAIL, recursion=True)
    reply = dns.message.from_wire(wire)
    grow_older(reply, age_s)
    response = respond(query, reply.rcode(), recursion=True)
    response.flags |= reply.flags & (Flag.AD | Flag.CD)
    response.answer, response.authority = reply.answer, reply.authority
    response.additional = [rrset for rrset in reply.additional if rrset.rdtype != RdataType.TSIG]
    return response


def _family(server: str) -> int:
    return socket.AF_INET6 if ":" in server else socket.AF_INET
