"""Load: connections that each ask again as soon as they have their answer. Effects: TLS to 127.0.0.1.

Kept as light as can be, so that the server is what is measured: a reply is known by its status and its
length, which the first one of them tells.
"""

from __future__ import annotations

import asyncio
import http.client
import ssl
import time
from collections.abc import Callable
from typing import cast

import uvloop
from msgspec import Struct

HOST = "127.0.0.1"
WARM_UP_S = 0.2


class Reads(Struct, frozen=True):
    """How many replies came, in how many seconds, and what they cost the server."""

    replies: int
    seconds: float
    cpu_s: float


def fetch(port: int, path: str, context: ssl.SSLContext) -> bytes:
    """The body of one good reply."""
    connection = http.client.HTTPSConnection(HOST, port, context=context, timeout=10)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read()
        if response.status != 200:
            raise RuntimeError(f"GET {path}: status {response.status}: {body[:200]!r}")
        return body
    finally:
        connection.close()


def load(
    port: int,
    path: str,
    context: ssl.SSLContext,
    *,
    connections: int,
    seconds: float,
    cpu_s: Callable[[], float],
) -> Reads:
    """Ask on so many connections for so many seconds. `cpu_s` tells what the server has used so far."""
    return uvloop.run(_load(port, path, context, connections, seconds, cpu_s))


async def _load(
    port: int,
    path: str,
    context: ssl.SSLContext,
    connections: int,
    seconds: float,
    cpu_s: Callable[[], float],
) -> Reads:
    loop = asyncio.get_running_loop()
    request = f"GET {path} HTTP/1.1\r\nHost: {HOST}:{port}\r\nAccept-Encoding: identity\r\n\r\n".encode()
    askers = [
        (await loop.create_connection(lambda: _Asker(request), HOST, port, ssl=context))[1]
        for _ in range(connections)
    ]

    def count() -> tuple[int, float, float]:
        return sum(asker.replies for asker in askers), time.monotonic(), cpu_s()

    for asker in askers:
        asker.begin()
    await asyncio.sleep(WARM_UP_S)
    before = count()
    await asyncio.sleep(seconds)
    replies, took, used = (now - then for now, then in zip(count(), before, strict=True))
    failures = [asker.failure for asker in askers if asker.failure]
    for asker in askers:
        asker.end()
    if failures:
        raise RuntimeError(f"{len(failures)} of {connections} connections failed: {failures[0]}")
    return Reads(int(replies), took, used)


class _Asker(asyncio.Protocol):
    """One connection with one request under way."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._length = 0
        self._missing = 0
        self._wire: asyncio.Transport | None = None
        self.replies = 0
        self.failure = ""

    def begin(self) -> None:
        assert self._wire is not None
        self._wire.write(self._request)

    def end(self) -> None:
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._wire = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._wire is not None and not self.failure:
            self.failure = f"the connection was closed: {exc}"

    def data_received(self, data: bytes) -> None:
        if not self._length and not self._learn(data):
            return
        if not self._missing:
            if not data.startswith(b"HTTP/1.1 200 "):
                self._fail(f"not a good reply: {data[:80]!r}")
                return
            self._missing = self._length
        self._missing -= len(data)
        if self._missing == 0:
            self.replies += 1
            if self._wire is not None:
                self._wire.write(self._request)
        elif self._missing < 0:
            self._fail("a reply of another length than the first")

    def _learn(self, data: bytes) -> bool:
        """Whether the length of a reply is known now; the caller goes on with what came."""
        head, end, _ = data.partition(b"\r\n\r\n")
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line)
        if not end or b"content-length" not in fields:
            self._fail(f"a first reply without its length: {data[:80]!r}")
            return False
        self._length = len(head) + len(end) + int(fields[b"content-length"])
        return True

    def _fail(self, why: str) -> None:
        self.failure = self.failure or why
        self.end()
