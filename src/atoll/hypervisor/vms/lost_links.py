"""Links and folders that vanish under VMs which run: found out, and told in the VM's record.

A tap lives and dies with the process that opened it, so what was removed cannot be given back to a machine that
runs. It is left as it is, since it may be at work that needs no network; its record says what is wrong and what to
do: a reboot, or a stop and a start, makes its links anew. One that comes back by itself is told no longer. The same
goes for a folder whose server has ended.

Effects: through the inventory. The kernel tells of links by atoll.system.link_events, drivers tell of folders; what
is there, the driver knows.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from atoll.drivers.machine.base import Seen
from atoll.errors import AtollError, HostFailure
from atoll.hypervisor.vms.workbench import Workbench
from atoll.model.vm import VM, VmState
from atoll.plan import firewall

log = logging.getLogger(__name__)

METHOD = "vm.link-lost"
FOLDER_METHOD = "vm.folder-lost"
SETTLE_S = 1.0
"""The link of a machine that ends goes a moment before the machine does."""
_LOST_LINK = "its link "
_LOST_FOLDER = "its folder "


class LostLinks:
    """`note` is told the method, the VM and what is wrong."""

    def __init__(self, bench: Workbench, note: Callable[[str, VM, AtollError | None], None]) -> None:
        self._vms = bench.vms
        self._machines = bench.machines
        self._background = bench.background
        self._note = note
        self._looking: set[str] = set()

    def changed(self, link: str | None, there: bool) -> None:
        """Told by the kernel. Without a link: anything may have happened."""
        if link is None:
            for each in self._vms.list():
                self._look_later(each)
            return
        port = firewall.port_of(link)
        vm = self._vms.find_by_ip(port[0]) if port is not None else None
        if vm is not None and there == tells_of_lost(vm):
            self._look_later(vm)

    def folder_changed(self, ip: str) -> None:
        """Told by a driver."""
        vm = self._vms.find_by_ip(ip)
        if vm is not None:
            self._look_later(vm)

    async def note(self, vm: VM, seen: Seen | None) -> None:
        """What it has lost, as just seen. What is known already is not told again."""
        now = self._vms.current(vm)
        reason = "" if seen is None else reason_of(now, seen)
        if (
            now.state is not VmState.RUNNING
            or (not reason and not tells_of_lost(now))
            or now.reason == reason
        ):
            return
        await self._vms.update(now, reason=reason)
        if seen is not None and reason:
            log.warning("VM %s %s: %s", now.ip, now.name, reason)
            self._note(METHOD if seen.lost else FOLDER_METHOD, now, HostFailure(reason))

    def _look_later(self, vm: VM) -> None:
        if vm.instance_id not in self._looking:
            self._looking.add(vm.instance_id)
            self._background.begin(f"VM {vm.ip} {vm.name}, looking at what it has", self._look(vm))

    async def _look(self, vm: VM) -> None:
        await asyncio.sleep(SETTLE_S)
        # From here on what happens is looked at anew.
        self._looking.discard(vm.instance_id)
        async with self._vms.lock(vm):
            if not self._vms.holds(vm) or self._vms.current(vm).state is not VmState.RUNNING:
                return
            try:
                seen = await self._machines.seen(vm)
                if seen is not None and seen.exit is None:
                    await self.note(vm, seen)
            except AtollError as error:
                log.error("VM %s %s: looking at what it has: %s", vm.ip, vm.name, error)


def reason_of(vm: VM, seen: Seen) -> str:
    """What a VM's record says of what it has lost; empty: nothing. Pure."""
    cure = f"atoll vm reboot {vm.name}"
    if seen.lost:
        return f"{_LOST_LINK}{', '.join(seen.lost)} was removed from the host; for a new one: {cure}"
    if seen.lost_folders:
        return f"{_LOST_FOLDER}{', '.join(seen.lost_folders)} is served no longer; to have it again: {cure}"
    return ""


def tells_of_lost(vm: VM) -> bool:
    """Whether its record says that it has lost something. Pure."""
    return vm.state is VmState.RUNNING and vm.reason.startswith((_LOST_LINK, _LOST_FOLDER))
