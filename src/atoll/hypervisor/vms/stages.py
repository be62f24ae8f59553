"""How far VMs have come since they were started: noted, kept in their records, told to those who wait.

    servers and drivers ── reached ──► board ──► followers: progress lines of a create or a start
                                         └─────► record, a moment later: what was reached survives the agent

Effects: through the inventory and machines; TCP connections to guests, where somebody waits for a port.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable

from atoll.api.hypervisor import Progress, Wait
from atoll.api.route import Done
from atoll.errors import AtollError
from atoll.hypervisor.vms.follow import Follower
from atoll.hypervisor.vms.readiness import Board
from atoll.hypervisor.vms.workbench import Workbench
from atoll.model.event import EventKind
from atoll.model.vm import VM, StartedBy, VmState
from atoll.system import clock

log = logging.getLogger(__name__)

THROTTLE_AFTER_S = 30.0
THROTTLE_GRACE_S = 1.0
"""Its first answers are a part of its start."""
KEEP_READY_AFTER_S = 1.0

Lines = AsyncGenerator[Progress | Done[VM], None]


class Stages:
    def __init__(self, bench: Workbench, board: Board) -> None:
        self._vms = bench.vms
        self._machines = bench.machines
        self._background = bench.background
        self._board = board
        self._follower = Follower(board, bench.vms.current, clock.monotonic, bench.machines.answers)
        bench.vms.changed.listen(self._on_change)

    # --- told

    def begin(self, vm: VM, began: float | None = None) -> None:
        """It is about to be started; its clock runs from here, or from a moment before."""
        self._board.begin(vm.ip, clock.monotonic() if began is None else began)

    def resume(self, vm: VM) -> None:
        """It was started by an earlier agent."""
        self._board.resume(vm.ip, vm.ready)

    def reached(self, ip: str, stage: str) -> None:
        """By the DHCP and metadata servers."""
        vm = self._vms.find_by_ip(ip)
        if vm is not None and vm.state is not VmState.DAMAGED and self._board.reach(ip, stage):
            self._later(KEEP_READY_AFTER_S, self._keep_ready, vm)

    def started(self, vm: VM) -> None:
        """Its machine runs. From now on it gets its share of the CPUs, once its start is over."""
        self._board.reach(vm.ip, "started")
        if self._machines.gives_address(vm):
            self._board.reach(vm.ip, "dhcp")
        self._later(THROTTLE_AFTER_S, self._throttle, vm)

    def progress(self, vm: VM, stage: str) -> Progress:
        """A stage that is reached here and now, and the line that tells of it."""
        self._board.reach(vm.ip, stage)
        return Progress(stage, self._board.stages(vm.ip)[stage], vm.ip)

    # --- telling

    def reached_by(self, vm: VM) -> dict[str, float]:
        """How far it has come since it was started."""
        return self._board.stages(vm.ip)

    async def follow(self, vm: VM, wait: Wait, told: tuple[str, ...] = ()) -> Lines:
        """Its stages as it reaches them, up to the one that is waited for; then the VM."""
        # Unless somebody says otherwise: the stage at which its image is of use.
        wait = Wait(wait.wait_for or self._machines.image(vm).ready, wait.timeout_s)
        async with contextlib.aclosing(self._follower.follow(vm, wait, told)) as stages:
            async for progress in stages:
                yield progress
        await self._attempt(self._keep_ready, vm)
        self._later(THROTTLE_GRACE_S, self._throttle, vm)
        if self._vms.current(vm).started_by == StartedBy.COLD:
            self._machines.want_template(vm)
        yield Done(self._vms.current(vm))

    # --- inner workings

    def _on_change(self, kind: EventKind, vm: VM) -> None:
        if kind is EventKind.DESTROYED:
            self._board.forget(vm.ip)
        else:
            self._board.wake(vm.ip)

    async def _keep_ready(self, vm: VM) -> None:
        record = self._vms.record(vm)
        ready = {**record.vm.ready, **self._board.stages(vm.ip)}
        if record.committed and ready != record.vm.ready:
            await self._vms.update(vm, ready=ready)

    async def _throttle(self, vm: VM) -> None:
        now = self._vms.current(vm)
        if now.state is VmState.RUNNING:
            self._machines.limit(now, starting=False)

    def _later(self, delay_s: float, work: Callable[[VM], Awaitable[None]], vm: VM) -> None:
        self._background.later(
            delay_s, f"VM {vm.ip} {vm.name}, after its start", lambda: self._attempt(work, vm)
        )

    async def _attempt(self, work: Callable[[VM], Awaitable[None]], vm: VM) -> None:
        """What nobody's answer depends on, if the VM is still there."""
        if self._vms.holds(vm):
            try:
                await work(vm)
            except AtollError as error:
                log.error("VM %s %s: %s", vm.ip, vm.name, error)
