"""A guest that wears a TCP port down: `door_attacker.py KIND HOST PORT COUNT`. Needs a namespace, and nothing of ours.

    idle      connections that say nothing
    hello     the beginning of a TLS handshake, and no more
    trickle   handshakes that are whole, then a header of a request, a byte at a time
    bodies    requests without a certificate, each with a body of 4 MiB that is sent as fast as it is taken
    garbage   what is not TLS, again and again
    nonsense  TLS, and in it what is not HTTP, with much that does not belong in a log
    plain     requests over HTTP that never end, a byte at a time

Prints "holding" when all of it is under way, and goes on until its standard input ends. What is closed at the
other end is opened again, a little later: an attacker does not go away when it is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import ssl
import sys
from collections.abc import Awaitable, Callable

BODY_BYTES = 4 << 20
AGAIN_S = 0.5
SETTLE_S = 0.4
CLIENT_HELLO = bytes.fromhex("1603010200010001fc0303") + bytes(32)

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def trusting() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


class Attacker:
    def __init__(self, kind: str, host: str, port: int, count: int) -> None:
        self._attack: Callable[[], Awaitable[None]] = getattr(self, f"_{kind}")
        self._target, self._count = (host, port), count
        self._tls = trusting()
        self._tried = 0
        self.under_way = asyncio.Event()

    async def run(self) -> None:
        await asyncio.gather(*(self._again_and_again() for _ in range(self._count)))

    async def _again_and_again(self) -> None:
        first = True
        while True:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.TimeoutError):
                async with asyncio.timeout(60):
                    if first:
                        first = False
                        self._count_in()
                    await self._attack()
            await asyncio.sleep(AGAIN_S)

    def _count_in(self) -> None:
        self._tried += 1
        if self._tried == self._count:
            asyncio.get_running_loop().call_later(SETTLE_S, self.under_way.set)

    @contextlib.asynccontextmanager
    async def _open(self, tls: bool):  # type: ignore[no-untyped-def]
        reader, writer = await asyncio.open_connection(*self._target, ssl=self._tls if tls else None)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()

    async def _idle(self) -> None:
        async with self._open(tls=False) as (reader, _):
            await reader.read()

    async def _hello(self) -> None:
        async with self._open(tls=False) as (reader, writer):
            writer.write(CLIENT_HELLO)
            await reader.read()

    async def _trickle(self) -> None:
        async with self._open(tls=True) as (_, writer):
            await self._slowly(writer)

    async def _plain(self) -> None:
        async with self._open(tls=False) as (_, writer):
            await self._slowly(writer)

    async def _slowly(self, writer: asyncio.StreamWriter) -> None:
        writer.write(b"GET / HTTP/1.1\r\nHost: m\r\nX: ")
        while not writer.is_closing():
            writer.write(b"y")
            await writer.drain()
            await asyncio.sleep(0.5)

    async def _bodies(self) -> None:
        async with self._open(tls=True) as (reader, writer):
            fields = ("Host: m", "Content-Type: application/json", f"Content-Length: {BODY_BYTES}")
            writer.write("\r\n".join(("GET /healthz HTTP/1.1", *fields, "", "")).encode())
            piece = b" " * 65536
            for _ in range(BODY_BYTES // len(piece) - 1):
                writer.write(piece)
                await writer.drain()
            # All but the end of it: the server is left to wait, with what it keeps of it.
            await reader.read()

    async def _nonsense(self) -> None:
        async with self._open(tls=True) as (reader, writer):
            writer.write(b"GET /\x1b[31m HTTP/1.1\r\nHost: m\r\n" + b"forged: line\n" * 2000 + b"\r\n\r\n")
            await reader.read()

    async def _garbage(self) -> None:
        async with self._open(tls=False) as (reader, writer):
            writer.write(b"GET / HTTP/1.1\r\n\r\n\x1b[31m" * 200)
            await reader.read()


async def main() -> None:
    kind, host, port, count = sys.argv[1:]
    attacker = Attacker(kind, host, int(port), int(count))
    attack = asyncio.ensure_future(attacker.run())
    await attacker.under_way.wait()
    print("holding", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    attack.cancel()


if __name__ == "__main__":
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    asyncio.run(main())
