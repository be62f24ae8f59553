"""The VMs of a node: the same in memory as on disk, every change of them an event, each of them one lock.

Effects: through records.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from msgspec import structs

from atoll.errors import Conflict, NotFound
from atoll.hypervisor.vms.records import Record, Records, moved
from atoll.model.event import EventKind
from atoll.model.lifecycle import DOWN
from atoll.model.vm import VM, VmState
from atoll.plan.addresses import ANYWHERE, Place
from atoll.system import steps

Mark = tuple[str, str]
"""A subnet, and a MAC or an address in it."""
PortKey = tuple[str, int]
"""A VM by its own address, and the place of the interface among its interfaces."""

_FRESH = DOWN | {VmState.STARTING}
_OF_RECORD = frozenset(Record.__struct_fields__) - {"vm"}


class Inventory:
    """Starts with what the records hold. `changed` is told of every change, after it is on disk."""

    def __init__(
        self, node: str, records: Records, vms: dict[str, Record], changed: Callable[[EventKind, VM], None]
    ) -> None:
        self._node = node
        self._store = records
        self._vms = vms
        self._changed = changed
        self._ports: dict[Mark, PortKey] = {}
        for record in vms.values():
            self._ports |= _ports_of(record.vm)
        self._locks: dict[str, asyncio.Lock] = {}
        self.freed: dict[Place, int] = {}
        """Addresses that were given back; the later, the larger the number."""
        self.reserved: Callable[[], frozenset[Place]] = frozenset
        """Addresses that are set aside for what is no VM yet."""

    def list(self) -> tuple[VM, ...]:
        return tuple(record.vm for record in self._vms.values())

    def show(self, reference: str) -> VM:
        """The VM of this IP or name."""
        vm = self.find(reference)
        if vm is None:
            raise self._none_such(reference)
        return vm

    def find(self, reference: str) -> VM | None:
        return self.find_by_ip(reference) or next((vm for vm in self.list() if vm.name == reference), None)

    def record(self, vm: VM) -> Record:
        """What is kept of this very VM now: its address may have been given to another one since."""
        record = self._vms.get(vm.ip)
        if record is None or record.vm.instance_id != vm.instance_id:
            raise self._none_such(vm.name)
        return record

    def current(self, vm: VM) -> VM:
        """The VM as it is now."""
        return self.record(vm).vm

    def holds(self, vm: VM) -> bool:
        """This very VM is still there."""
        now = self.find_by_ip(vm.ip)
        return now is not None and now.instance_id == vm.instance_id

    def records(self) -> tuple[Record, ...]:
        return tuple(self._vms.values())

    def held(self) -> frozenset[Place]:
        """Addresses that something on this node uses, or may use, each in its subnet."""
        own = {
            (nic.subnet, nic.ip) for record in self._vms.values() for vm in record.vms for nic in vm.all_nics
        }
        return self.reserved().union(own, ((ANYWHERE, ip) for ip in self._store.unreadable))

    def keys(self) -> frozenset[str]:
        """The addresses that are keys: those of all VMs, and of what may be one."""
        own = (vm.ip for record in self._vms.values() for vm in record.vms)
        return self._store.unreadable.union(own, (ip for _, ip in self.reserved()))

    def find_by_ip(self, ip: str) -> VM | None:
        """The VM whose key this is."""
        record = self._vms.get(ip)
        return record.vm if record else None

    def find_port(self, subnet: str, mark: str) -> tuple[VM, int] | None:
        """The VM that has this MAC or address in a subnet, and the place of that interface among its own."""
        key = self._ports.get((subnet, mark))
        return None if key is None else (self._vms[key[0]].vm, key[1])

    def find_by_request(self, request_id: str) -> Record | None:
        return next((record for record in self._vms.values() if record.vm.request_id == request_id), None)

    def lock(self, vm: VM) -> asyncio.Lock:
        """One thing at a time is done to a VM."""
        return self._locks.setdefault(vm.instance_id, asyncio.Lock())

    @contextlib.asynccontextmanager
    async def alone_with(self, vm: VM) -> AsyncIterator[VM]:
        """The VM as it is when all that was under way with it is done; NotFound if it has gone."""
        async with self.lock(vm):
            yield self.current(vm)

    def claim(self, record: Record) -> None:
        """From here on the address is this VM's. Not on disk yet: `update` or `save` does that."""
        vm = record.vm
        self._vms[vm.ip] = record
        self._ports |= _ports_of(vm)
        self._changed(EventKind.CREATED, vm)

    def save(self, vm: VM) -> None:
        self._store.write(self.record(vm))

    def update(self, vm: VM, **changes: Any) -> VM:
        """Change what is kept of a VM, its own fields and those of its record: on disk, in memory, then told."""
        record = self.record(vm)
        if record.vm.state is VmState.DAMAGED and changes.get("state") is not VmState.DESTROYING:
            # A write would replace what may still be mended.
            raise Conflict(f"VM {vm.name}: {record.vm.reason}", hint=f"mend it, or: atoll vm destroy {vm.ip}")
        if "state" in changes:
            changes.setdefault("reason", "")
        if changes.get("state") in _FRESH:
            # Nothing runs, or it is started as its VM says: nothing waits any more.
            changes |= {"running": None, "pending": ()}
        kept = {name: changes.pop(name) for name in _OF_RECORD & changes.keys()}
        record = structs.replace(record, vm=structs.replace(record.vm, **changes), **kept)
        self._store.write(record)
        self._vms[vm.ip] = record
        self._changed(EventKind.CHANGED, record.vm)
        return record.vm

    def move(self, vm: VM, to: VM, carry: Callable[[str, str], None]) -> VM:
        """Give a VM another address. `carry` takes what is kept elsewhere from the old to the new one.

        The new address is its own from the first write on, the old one free after the last; killed in between,
        it is at the one that its directory is at.
        """
        self.update(vm, moving=to)
        steps.step("move.noted")
        record = self.record(vm)
        last = record.vm
        try:
            carry(last.ip, to.ip)
            steps.step("move.carried")
            self._store.move(record)
            steps.step("move.renamed")
        except BaseException:
            carry(to.ip, last.ip)
            self.update(vm, moving=None)
            raise
        record = moved(record)
        self._store.write(record)
        steps.step("move.recorded")
        self._drop(last)
        self._vms[to.ip] = record
        self._ports |= _ports_of(to)
        self._free((last.subnet, last.ip))
        self._changed(EventKind.DESTROYED, last)
        self._changed(EventKind.CREATED, record.vm)
        return record.vm

    def forget(self, vm: VM) -> None:
        """The last of a VM. Its addresses are free again, behind all others."""
        last = self.current(vm)
        self._store.discard(vm.ip)
        self._drop(last)
        self._locks.pop(vm.instance_id, None)
        for nic in last.all_nics:
            self._free((nic.subnet, nic.ip))
        self._changed(EventKind.DESTROYED, last)

    def _drop(self, vm: VM) -> None:
        del self._vms[vm.ip]
        for mark in _ports_of(vm):
            self._ports.pop(mark, None)

    def _free(self, place: Place) -> None:
        self.freed[place] = max(self.freed.values(), default=0) + 1

    def _none_such(self, reference: str) -> NotFound:
        return NotFound(f"VM {reference!r}: there is none on {self._node}", hint="see: atoll vm list")


def _ports_of(vm: VM) -> dict[Mark, PortKey]:
    """The ports of a VM by all that tells on a wire that a frame is theirs. Pure."""
    return {(nic.subnet, mark): (vm.ip, index) for index, nic in enumerate(vm.all_nics) for mark in nic.marks}
