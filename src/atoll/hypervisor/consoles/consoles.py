"""Serial consoles: one connection to each machine, shared by all who look.

What the guest writes is read from its boot log, by each who looks at its own pace: the log is both the
history and what comes next, so between them nothing is lost or seen twice. The machine's console is for what
is typed; it also tells when there is something new, and when there will be no more.

Effects: bytes between boot logs, drivers' consoles and WebSockets.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from weakref import WeakValueDictionary

from atoll.api.route import ByteSocket
from atoll.drivers.machine.base import Console
from atoll.hypervisor.consoles.bootlog import BootLogs, Tail
from atoll.hypervisor.consoles.keyboard import Keyboard, Seat
from atoll.model.vm import VM
from atoll.system.beside import until_one_ends

FIRST_LOOK_S = 0.005
LAST_LOOK_S = 0.5
"""A log can be a moment behind its console, and tells nobody: it is looked at again, ever more rarely."""
TYPE_TIMEOUT_S = 30.0


class _Shared:
    """The console of one VM, and who looks at it."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.keyboard = Keyboard()
        self.seats: set[Seat] = set()
        self.ended = False
        self.stirred = asyncio.Event()
        self.pump: asyncio.Task[None] | None = None

    def stir(self) -> None:
        """There may be something new for those who look."""
        self.stirred.set()
        self.stirred = asyncio.Event()


class Consoles:
    """All open consoles of the node."""

    def __init__(self, logs: BootLogs) -> None:
        self._logs = logs
        self._open: dict[str, _Shared] = {}
        # Locks live as long as somebody holds or awaits them.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def attach(
        self,
        vm: VM,
        connect: Callable[[], Awaitable[Console]],
        check: Callable[[], object],
        seat: Seat,
        socket: ByteSocket,
        *,
        take: bool = False,
        history: bool = True,
    ) -> None:
        """Join the console until the client or the machine goes.

        `check` raises when whoever looks may not, or the VM has gone: its address, and the place of its log, may be
        another one's by then.
        """
        key = vm.instance_id
        async with self._lock(key):
            shared = self._open.get(key)
            if shared is None:
                shared = self._open[key] = _Shared(await connect())
                shared.pump = asyncio.create_task(self._pump(key, shared))
            shared.seats.add(seat)
        try:
            shared.keyboard.sit(seat, take=take)
            shared.stir()
            with self._logs.tail(vm.ip, check, history=history) as tail:
                await until_one_ends(_show(shared, seat, tail, socket), _hear(shared, seat, socket))
        finally:
            shared.keyboard.leave(seat)
            await self._leave(key, shared, seat)

    def _lock(self, key: str) -> asyncio.Lock:
        return self._locks.setdefault(key, asyncio.Lock())

    async def _leave(self, key: str, shared: _Shared, seat: Seat) -> None:
        # Under the lock: a machine has one console, and the next to come must find this one closed.
        async with self._lock(key):
            shared.seats.remove(seat)
            if not shared.seats:
                self._drop(key, shared)
                await shared.console.close()

    async def _pump(self, key: str, shared: _Shared) -> None:
        """Stir those who look when the guest writes, until the machine goes or nobody looks any more."""
        try:
            with contextlib.suppress(OSError):
                while await shared.console.read():
                    shared.stir()
        finally:
            self._drop(key, shared)
            shared.ended = True
            shared.stir()

    def _drop(self, key: str, shared: _Shared) -> None:
        if self._open.get(key) is shared:
            del self._open[key]


async def _show(shared: _Shared, seat: Seat, tail: Tail, socket: ByteSocket) -> None:
    """The history, then who has the keyboard, then what comes, until there will be no more."""
    for piece in tail.history():
        await socket.send(piece)
    seat.notes.clear()
    await socket.tell(shared.keyboard.note(seat))
    pause_s = FIRST_LOOK_S
    while True:
        # Before we look: what comes while we do so is not missed.
        stirred, ended = shared.stirred, shared.ended
        while seat.notes:
            await socket.tell(seat.notes.popleft())
        if data := tail.read():
            await socket.send(data)
            pause_s = FIRST_LOOK_S
        elif ended:
            return
        else:
            woken = await _within(pause_s, stirred.wait())
            pause_s = FIRST_LOOK_S if woken else min(2 * pause_s, LAST_LOOK_S)


async def _hear(shared: _Shared, seat: Seat, socket: ByteSocket) -> None:
    while data := await socket.receive():
        if shared.keyboard.press(seat):
            # A guest that takes nothing for so long loses it, and its writer can still leave.
            with contextlib.suppress(OSError):
                await _within(TYPE_TIMEOUT_S, shared.console.write(data))
        if seat.notes:
            shared.stir()


async def _within(timeout_s: float, work: Awaitable[object]) -> bool:
    """Whether it was done in time."""
    try:
        async with asyncio.timeout(timeout_s):
            await work
    except TimeoutError:
        return False
    return True
