"""Machines that are paused for want of room on the node's disk: told in their VM's record, and let go on.

A guest that writes where the disk is full loses nothing: its machine is paused with the write pending. The VM still
runs, and says in its reason that it is held up. When there is room again it goes on, whoever made it.

Nothing of this is written down: the disk may be full, and the next agent learns it from the machine.
Effects: through the inventory and machines; asks file systems what is free.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from atoll.errors import AtollError, HostFailure
from atoll.hypervisor.vms.workbench import Workbench
from atoll.model.vm import PAUSED, VM, VmState
from atoll.system import aside

log = logging.getLogger(__name__)

PAUSED_METHOD, RESUMED_METHOD = "vm.paused", "vm.resumed"
REASON = f"{PAUSED}no space left for what it writes to its volumes; it goes on when there is room"
ROOM_MIB = 8
"""With less it would be paused again at once."""
LOOK_EVERY_S = 0.5
LONGEST_LOOK_S = 30.0
SETTLE_S = 0.2
"""One that is paused again within this has not got on."""


class Stalls:
    """`note` is told the method, the VM and what is wrong."""

    def __init__(self, bench: Workbench, note: Callable[[str, VM, AtollError | None], None]) -> None:
        self._vms = bench.vms
        self._machines = bench.machines
        self._stores = bench.stores
        self._background = bench.background
        self._note = note
        self._stalled: set[str] = set()
        """Instances that are paused, as far as we were told."""
        self._tended: set[str] = set()
        self._before: dict[str, str] = {}
        """What their reasons said before."""

    def changed(self, ip: str, stalled: bool) -> None:
        """Told by a driver."""
        if (vm := self._vms.find_by_ip(ip)) is not None:
            self.note(vm, stalled)

    def note(self, vm: VM, stalled: bool) -> None:
        """How it was just seen. One whose record says otherwise is tended too."""
        if stalled:
            self._stalled.add(vm.instance_id)
        else:
            self._stalled.discard(vm.instance_id)
        if (stalled or vm.is_paused) and vm.instance_id not in self._tended:
            self._tended.add(vm.instance_id)
            self._background.begin(f"VM {vm.ip} {vm.name}, waiting for room on the disk", self._tend(vm))

    async def _tend(self, vm: VM) -> None:
        try:
            await self._tell_paused(vm)
            pause_s = LOOK_EVERY_S
            while self._is_stalled(vm):
                await asyncio.sleep(pause_s)
                if await self._resumed(vm):
                    # Where there is room, and it does not help, something else is full: a quota, for one.
                    pause_s = min(2 * pause_s, LONGEST_LOOK_S)
                    await asyncio.sleep(SETTLE_S)
            await self._tell_resumed(vm)
        finally:
            self._tended.discard(vm.instance_id)
            self._before.pop(vm.instance_id, None)

    def _is_stalled(self, vm: VM) -> bool:
        running = self._vms.holds(vm) and self._vms.current(vm).state is VmState.RUNNING
        return running and vm.instance_id in self._stalled

    async def _tell_paused(self, vm: VM) -> None:
        if not self._is_stalled(vm):
            return
        now = self._vms.current(vm)
        if not now.is_paused:
            self._before[vm.instance_id] = now.reason
            log.warning("VM %s %s: %s", now.ip, now.name, REASON)
            self._note(PAUSED_METHOD, now, HostFailure(REASON))
        await self._vms.tell(now, REASON)

    async def _tell_resumed(self, vm: VM) -> None:
        self._stalled.discard(vm.instance_id)
        if self._vms.holds(vm) and (now := self._vms.current(vm)).is_paused:
            log.info("VM %s %s goes on", now.ip, now.name)
            await self._vms.tell(now, self._before.get(vm.instance_id, ""))
            self._note(RESUMED_METHOD, now, None)

    async def _resumed(self, vm: VM) -> bool:
        """Whether it was let go on; if that was of no use, it is told to be paused again."""
        if not self._is_stalled(vm):
            return False
        now = self._vms.current(vm)
        try:
            free_mib = await aside.run(self._stores.free_mib, now)
            if free_mib is not None and free_mib < ROOM_MIB:
                return False
            await self._machines.resume(now)
        except (AtollError, OSError) as error:
            log.error("VM %s %s is paused: letting it go on: %s", now.ip, now.name, error)
        return True
