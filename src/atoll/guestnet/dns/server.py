"""The DNS server on the wire: UDP and TCP on port 53 of a bridge's service namespace.

A guest is known by the address that it asks from, which anti-spoofing vouches for; all of its addresses count as
one. Strangers are refused. No guest can hold more than its share of connections, questions or time.

Effects: opens sockets in a namespace, serves them in the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from dns.message import Message
from dns.rcode import Rcode
from msgspec import Struct

from atoll.errors import HostFailure
from atoll.guestnet.dns.answer import Names, answer
from atoll.guestnet.dns.forward import Excess, Forwarder
from atoll.guestnet.dns.messages import (
    LARGEST_QUERY,
    LARGEST_TCP,
    LARGEST_UDP,
    BadQuery,
    parse,
    render,
    respond,
    udp_limit,
    wants_recursion,
)
from atoll.guestnet.http.limits import Limits, Shares
from atoll.system import clock, namespaces

PORT = 53
BATCH = 64
LIMITS = Limits(connections_per_guest=8, connections=256, per_guest_per_s=100)
QUESTION_S = 5.0
"""How long a connection may take over the next question, or over taking an answer."""
CONNECTION_S = 30.0

_BACKLOG = 128
_IP_UDP_BYTES = 48
_IP_PKTINFO, _IPV6_RECVPKTINFO, _IPV6_PKTINFO = 8, 49, 50
_PKTINFO, _PKTINFO6 = struct.Struct("=I4s4s"), struct.Struct("=16sI")

log = logging.getLogger(__name__)


class Counters(Struct):
    """What became of the questions: received is the sum of all the others."""

    received: int = 0
    answered: int = 0
    forwarded: int = 0
    refused: int = 0
    strangers: int = 0
    malformed: int = 0
    excess: int = 0


class Known(Names, Protocol):
    """A guest, and what it may know."""

    @property
    def caller(self) -> str: ...


class Question(Struct, frozen=True):
    """What others have to be asked: for whom, and how long the reply to it may be."""

    query: Message
    caller: str
    limit: int


class DnsServer:
    """Answers the guests behind one namespace. `find` knows them by address; without a forwarder, names that are
    not ours are refused."""

    def __init__(
        self,
        namespace: str,
        find: Callable[[str], Known | None],
        forwarder: Forwarder | None = None,
        mtu: int = 1500,
        limits: Limits = LIMITS,
    ) -> None:
        self._namespace = namespace
        self._find = find
        self._forwarder = forwarder
        self._udp_limit = min(LARGEST_UDP, mtu - _IP_UDP_BYTES)
        self._shares = Shares(limits)
        self._ports: list[socket.socket] = []
        self._listeners: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.counters = Counters()

    async def start(self) -> None:
        """Begin to serve, at every address of the namespace. Started already is fine."""
        if self._ports:
            return
        try:
            opened = namespaces.inside(self._namespace, _open_all)
        except OSError as error:
            raise HostFailure(
                f"starting DNS in namespace {self._namespace}: {error.strerror or error}",
                hint="the agent makes the namespace when it starts; is another DNS server in it?",
            ) from error
        loop = asyncio.get_running_loop()
        for port in opened:
            if port.type == socket.SOCK_DGRAM:
                self._ports.append(port)
                loop.add_reader(port.fileno(), self._readable, port)
            else:
                listener = await asyncio.start_server(self._connected, sock=port, backlog=_BACKLOG)
                self._listeners.append(listener)

    async def close(self) -> None:
        """Stop serving; what is under way is given up. Closed already is fine."""
        for port in self._ports:
            asyncio.get_running_loop().remove_reader(port.fileno())
            port.close()
        self._ports.clear()
        for listener in self._listeners:
            listener.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for listener in self._listeners:
            await listener.wait_closed()
        self._listeners.clear()

    # --- UDP

    def _readable(self, port: socket.socket) -> None:
        for _ in range(BATCH):
            try:
                data, ancillary, _, peer = port.recvmsg(LARGEST_QUERY + 1, 64)
            except BlockingIOError:
                return
            except OSError as error:
                # An ICMP error about an earlier reply.
                log.debug("DNS in %s: %s", self._namespace, error)
                continue
            decided = self._decide(data, _without_link(peer[0]), over_tcp=False)
            if isinstance(decided, Question):
                self._spawn(self._forward_udp(decided, port, peer, ancillary))
            elif decided:
                self._send(port, decided, peer, ancillary)

    async def _forward_udp(self, question: Question, port: socket.socket, peer: Any, ancillary: Any) -> None:
        reply = await self._forward(question)
        if reply and port.fileno() >= 0:
            self._send(port, reply, peer, ancillary)

    def _send(self, port: socket.socket, reply: bytes, peer: Any, ancillary: Any) -> None:
        # From the address that was asked.
        source = [(level, kind, _as_source(kind, info)) for level, kind, info in ancillary]
        try:
            port.sendmsg([reply], source, 0, peer)
        except OSError as error:
            log.debug("DNS in %s: reply not sent: %s", self._namespace, error)  # as good as lost on the way

    # --- TCP

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A task of ours: one that asyncio makes complains in the log when it is cancelled.
        self._spawn(self._connection(reader, writer))

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(OSError, EOFError, TimeoutError):
                await self._serve(reader, writer)
        finally:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ip = _without_link(writer.get_extra_info("peername")[0])
        names = self._find(ip)
        caller = names.caller if names is not None else ip
        if not self._shares.enter(caller, int(clock.monotonic())):
            return
        try:
            async with asyncio.timeout(CONNECTION_S):
                while True:
                    async with asyncio.timeout(QUESTION_S):
                        length = int.from_bytes(await reader.readexactly(2), "big")
                        if length > LARGEST_QUERY:
                            return
                        data = await reader.readexactly(length)
                    reply = await self._reply(data, ip)
                    if not reply:
                        return
                    writer.write(len(reply).to_bytes(2, "big") + reply)
                    async with asyncio.timeout(QUESTION_S):
                        await writer.drain()
        finally:
            self._shares.leave(caller)

    # --- both

    async def _reply(self, data: bytes, ip: str) -> bytes:
        decided = self._decide(data, ip, over_tcp=True)
        return await self._forward(decided) if isinstance(decided, Question) else decided

    def _decide(self, data: bytes, ip: str, *, over_tcp: bool) -> bytes | Question:
        """The reply, empty for none; or what others have to be asked."""
        self.counters.received += 1
        names = self._find(ip)
        caller = names.caller if names is not None else ip
        if not self._shares.spend(caller, int(clock.monotonic())):
            self.counters.excess += 1
            return b""
        try:
            query = parse(data)
        except BadQuery as error:
            self.counters.malformed += 1
            return error.reply
        limit = LARGEST_TCP if over_tcp else udp_limit(query, self._udp_limit)
        recursion = self._forwarder is not None
        if names is None:
            self.counters.strangers += 1
            return render(respond(query, Rcode.REFUSED), limit)
        reply = answer(query, names, recursion=recursion)
        if reply is not None:
            self.counters.answered += 1
            return render(reply, limit)
        if not recursion or not wants_recursion(query):
            self.counters.refused += 1
            return render(respond(query, Rcode.REFUSED, recursion=recursion), limit)
        self.counters.forwarded += 1
        return Question(query, caller, limit)

    async def _forward(self, question: Question) -> bytes:
        assert self._forwarder is not None
        try:
            reply = await self._forwarder.resolve(question.query, question.caller)
        except Excess:
            return b""
        return render(reply, question.limit)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _open_all() -> list[socket.socket]:
    """UDP and TCP, over IPv4 and, where the kernel has it, IPv6."""
    families = [socket.AF_INET, socket.AF_INET6] if socket.has_dualstack_ipv6() else [socket.AF_INET]
    with contextlib.ExitStack() as undo:
        opened = [
            undo.enter_context(_open(family, kind))
            for family in families
            for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM)
        ]
        undo.pop_all()
    return opened


def _open(family: int, kind: int) -> socket.socket:
    made = socket.socket(family, kind)
    try:
        made.setblocking(False)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if kind == socket.SOCK_STREAM:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        elif family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, _IPV6_RECVPKTINFO, 1)
        else:
            made.setsockopt(socket.IPPROTO_IP, _IP_PKTINFO, 1)
        made.bind(("::" if family == socket.AF_INET6 else "0.0.0.0", PORT))
        if kind == socket.SOCK_STREAM:
            made.listen(_BACKLOG)
    except BaseException:
        made.close()
        raise
    return made


def _as_source(kind: int, info: bytes) -> bytes:
    """Where a packet came to, as where the reply comes from."""
    if kind == _IPV6_PKTINFO:
        address, _ = _PKTINFO6.unpack(info)
        return _PKTINFO6.pack(address, 0)
    _, address, _ = _PKTINFO.unpack(info)
    return _PKTINFO.pack(0, address, bytes(4))


def _without_link(ip: str) -> str:
    """fe80::1%eth0 is fe80::1: the namespace has one link to guests."""
    return ip.partition("%")[0]
