"""Following a VM from its start to the stage that somebody waits for.

No effects of its own: for a stage `port:N`, the machines of the node try the port.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterator

from atoll.api.hypervisor import Progress, Wait
from atoll.errors import Conflict, TimedOut
from atoll.hypervisor.vms.readiness import Board
from atoll.model.vm import VM, VmState

PATIENCE_S = 2.0
FIRST_PAUSE_S = 0.001
LONGEST_PAUSE_S = 0.25

Answers = Callable[[VM, int], Awaitable[bool]]
"""Whether the guest of a VM takes connections at this TCP port."""


class Follower:
    """Tells the stages of VMs as the board notes them."""

    def __init__(
        self,
        board: Board,
        current: Callable[[VM], VM],
        clock: Callable[[], float],
        answers: Answers,
    ) -> None:
        self._board = board
        self._current = current
        self._clock = clock
        self._answers = answers

    async def follow(self, vm: VM, wait: Wait, told: Collection[str] = ()) -> AsyncGenerator[Progress, None]:
        """Each stage as it is reached, up to the one that is waited for. `told`: those to leave out."""
        shown = set(told)
        until = self._clock() + wait.timeout_s
        with self._probing(vm, wait.wait_for):
            while True:
                # The next VM at its address has stages of its own.
                self._current(vm)
                stages = self._board.stages(vm.ip)
                for stage in sorted(stages.keys() - shown, key=stages.__getitem__):
                    shown.add(stage)
                    yield Progress(stage, stages[stage], vm.ip)
                if wait.wait_for is None or wait.wait_for in shown:
                    return
                if self._board.stages(vm.ip).keys() <= shown:
                    await self._pause(vm, wait, until)

    async def _pause(self, vm: VM, wait: Wait, until: float) -> None:
        """Until something happens; unless nothing can, or there is no time left."""
        now = self._current(vm)
        if now.state is not VmState.RUNNING:
            why = f": {now.reason}" if now.reason else ""
            raise Conflict(
                f"VM {now.name} is {now.state}{why}", hint=f"what it wrote last: atoll vm log {now.name}"
            )
        left_s = until - self._clock()
        if left_s <= 0:
            raise self._late(vm, wait)
        await self._board.changed(vm.ip, left_s)

    def _late(self, vm: VM, wait: Wait) -> TimedOut:
        stages = self._board.stages(vm.ip)
        came = max(stages, key=stages.__getitem__, default="nothing")
        return TimedOut(
            f"VM {vm.name} ({vm.ip}) did not reach {wait.wait_for} in {wait.timeout_s:g} s;"
            f" it came as far as {came}",
            hint=f"it runs on; see: atoll vm log {vm.name}",
            details={"ip": vm.ip, "stages": stages},
        )

    @contextlib.contextmanager
    def _probing(self, vm: VM, wait_for: str | None) -> Iterator[None]:
        """Try the port of a `port:N` stage while the block runs; any other stage needs no trying."""
        if wait_for is None or not wait_for.startswith("port:"):
            yield
            return
        task = asyncio.ensure_future(self._probe(vm, wait_for))
        try:
            yield
        finally:
            task.cancel()

    async def _probe(self, vm: VM, stage: str) -> None:
        ip = vm.ip
        # Before its lease a guest hears nothing, and TCP would wait a second before it tries again.
        # One with a fixed address never asks for a lease: it is tried after a while.
        while "dhcp" not in self._board.stages(ip):
            before = self._board.stages(ip)
            await self._board.changed(ip, PATIENCE_S)
            if self._board.stages(ip) == before:
                break
        await self._until_answered(vm, int(stage.removeprefix("port:")))
        self._board.reach(ip, stage)

    async def _until_answered(self, vm: VM, port: int) -> None:
        ip = vm.ip
        # A guest that was just given its address loses the first packets, and TCP repeats one only after a
        # second: so another attempt joins those under way, and the first that succeeds counts. Each costs the
        # guest some work, so they become rare, until it has come further.
        attempts: set[asyncio.Task[bool]] = set()
        stages, pause_s = len(self._board.stages(ip)), FIRST_PAUSE_S
        try:
            while True:
                attempts.add(asyncio.ensure_future(self._answers(vm, port)))
                if await self._succeeds(attempts, ip, pause_s):
                    return
                before, stages = stages, len(self._board.stages(ip))
                pause_s = min(1.5 * pause_s, LONGEST_PAUSE_S) if stages == before else FIRST_PAUSE_S
        finally:
            for attempt in attempts:
                attempt.cancel()

    async def _succeeds(self, attempts: set[asyncio.Task[bool]], ip: str, pause_s: float) -> bool:
        """Whether one of them does, before the pause is over or the guest has come further."""
        over = asyncio.ensure_future(self._board.changed(ip, pause_s))
        try:
            while not over.done():
                done, _ = await asyncio.wait({*attempts, over}, return_when=asyncio.FIRST_COMPLETED)
                ended = attempts & done
                attempts -= ended
                if any(attempt.result() for attempt in ended):
                    return True
            return False
        finally:
            over.cancel()
