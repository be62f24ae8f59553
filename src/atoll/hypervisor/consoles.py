"""Serial consoles: one connection to the machine, shared by all who look; the first to come may type.

Effects: bytes between a driver's console and WebSockets.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from atoll.api.route import ByteSocket
from atoll.drivers.machine.base import Console

QUEUED = 1024


class _Shared:
    """The console of one VM, and who looks at it."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.watchers: list[asyncio.Queue[bytes]] = []
        self.pump: asyncio.Task[None] | None = None

    def show(self, data: bytes) -> None:
        """To everyone; a watcher that does not keep up loses the oldest."""
        for queue in self.watchers:
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(data)


class Consoles:
    """All open consoles of the node."""

    def __init__(self) -> None:
        self._open: dict[str, _Shared] = {}
        self._lock = asyncio.Lock()

    async def attach(self, ip: str, connect: Callable[[], Awaitable[Console]], socket: ByteSocket) -> None:
        """Join the console until the client or the machine goes."""
        queue: asyncio.Queue[bytes] = asyncio.Queue(maxsize=QUEUED)
        async with self._lock:
            shared = self._open.get(ip)
            if shared is None:
                shared = self._open[ip] = _Shared(await connect())
                shared.pump = asyncio.create_task(self._pump(ip, shared))
            shared.watchers.append(queue)
        tasks = [
            asyncio.create_task(self._send(queue, socket)),
            asyncio.create_task(self._receive(shared, queue, socket)),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._leave(ip, shared, queue)

    async def _leave(self, ip: str, shared: _Shared, queue: asyncio.Queue[bytes]) -> None:
        # Under the lock: a machine has one console, and the next to come must find this one closed.
        async with self._lock:
            shared.watchers.remove(queue)
            if not shared.watchers:
                self._drop(ip, shared)
                await shared.console.close()

    async def _pump(self, ip: str, shared: _Shared) -> None:
        """Copy what the guest writes, until the machine goes or nobody looks any more."""
        with contextlib.suppress(ConnectionError):
            while data := await shared.console.read():
                shared.show(data)
        self._drop(ip, shared)
        shared.show(b"")

    def _drop(self, ip: str, shared: _Shared) -> None:
        if self._open.get(ip) is shared:
            del self._open[ip]

    async def _send(self, queue: asyncio.Queue[bytes], socket: ByteSocket) -> None:
        while data := await queue.get():
            await socket.send(data)

    async def _receive(self, shared: _Shared, queue: asyncio.Queue[bytes], socket: ByteSocket) -> None:
        while data := await socket.receive():
            if shared.watchers[0] is queue:
                with contextlib.suppress(ConnectionError):
                    await shared.console.write(data)
