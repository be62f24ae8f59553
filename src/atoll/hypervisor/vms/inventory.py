"""The VMs of a node: the same in memory as on disk, every change of them an event, each of them one lock.

A change is whole before anyone sees it: it is written, then it counts in memory, then listeners are told. A caller that
is cancelled meanwhile gets no answer, but its change is made all the same. Effects: through records.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from msgspec import structs

from atoll.errors import AtollError, Conflict, NotFound
from atoll.hypervisor.vms.permits import Permit
from atoll.hypervisor.vms.records import Record, Records, moved
from atoll.model.event import EventKind
from atoll.model.lifecycle import DOWN
from atoll.model.vm import VM, VmState
from atoll.plan import capacity
from atoll.plan.addresses import ANYWHERE, Place
from atoll.plan.kept import kept_of
from atoll.serving.signals import Signal
from atoll.system import steps

log = logging.getLogger(__name__)

Mark = tuple[str, str]
"""A subnet, and a MAC or an address in it."""
PortKey = tuple[str, int]
"""A VM by its own address, and the place of the interface among its interfaces."""

_FRESH = DOWN | {VmState.STARTING}
_OF_RECORD = frozenset(Record.__struct_fields__) - {"vm"}

T = TypeVar("T")
Carry = Callable[[str, str], Awaitable[None]]
"""Takes what is kept of a VM elsewhere from one address to another."""


async def _nothing_leads_there(vm: VM) -> None:
    """Where nothing is published."""


class Inventory:
    """Starts with what the records hold."""

    def __init__(self, node: str, records: Records, vms: dict[str, Record]) -> None:
        self._node = node
        self._records = records
        self._vms = {ip: _with_kept(record) for ip, record in vms.items()}
        self.changed: Signal[[EventKind, VM]] = Signal()
        """Told of every change, after it is on disk."""
        # Locks live as long as somebody holds or awaits them.
        self._writing: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._written: set[asyncio.Task[Any]] = set()
        self._coming: dict[object, VM] = {}
        """VMs as they will be when changes that are being written are on disk."""
        self._ports: dict[Mark, PortKey] = {}
        for record in self._vms.values():
            self._ports |= _ports_of(record.vm)
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self.freed: dict[Place, int] = {}
        """Addresses that were given back; the later, the larger the number."""
        self.reserved: Callable[[], frozenset[Place]] = frozenset
        """Addresses that are set aside for what is no VM yet."""
        self.leaving: Callable[[VM], Awaitable[None]] = _nothing_leads_there
        """Awaited before the addresses of a VM are free: nothing that is meant for it goes there from then on."""

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

    def accounted(self) -> tuple[VM, ...]:
        """The VMs with the most that each has, or is just being given: what nobody else may be promised."""
        most = {vm.ip: vm for vm in self.list()}
        for coming in self._coming.values():
            if coming.ip in most:
                most[coming.ip] = capacity.at_most(most[coming.ip], coming)
        return tuple(most.values())

    def records(self) -> tuple[Record, ...]:
        return tuple(self._vms.values())

    def with_coming(self) -> tuple[VM, ...]:
        """All VMs, and what those will be that are being changed or are on their way to another address."""
        return (*(vm for record in self._vms.values() for vm in record.vms), *self._coming.values())

    def held(self) -> frozenset[Place]:
        """Addresses that something on this node uses, or may use, each in its subnet."""
        own = {(nic.subnet, nic.ip) for vm in self.with_coming() for nic in vm.all_nics}
        return self.reserved().union(own, ((ANYWHERE, ip) for ip in self._records.unreadable))

    def keys(self) -> frozenset[str]:
        """The addresses that are keys: those of all VMs, and of what may be one."""
        return self._records.unreadable.union(
            (vm.ip for vm in self.with_coming()), (ip for _, ip in self.reserved())
        )

    def find_by_ip(self, ip: str) -> VM | None:
        """The VM whose key this is."""
        record = self._vms.get(ip)
        return record.vm if record else None

    def find_port(self, subnet: str, mark: str) -> tuple[VM, int] | None:
        """The VM that has this MAC or address in a subnet, and the place of that interface among its own."""
        key = self._ports.get((subnet, mark))
        return None if key is None else (self._vms[key[0]].vm, key[1])

    def find_by_request(self, user: str, request_id: str) -> Record | None:
        """What this user asked for with this id; ids of others are others."""
        return next((one for one in self._vms.values() if one.is_of_request(user, request_id)), None)

    def lock(self, vm: VM) -> asyncio.Lock:
        """One thing at a time is done to a VM."""
        return self._locks.setdefault(vm.instance_id, asyncio.Lock())

    @contextlib.asynccontextmanager
    async def alone_with(self, permit: Permit) -> AsyncIterator[VM]:
        """The VM as it is when all that was under way with it is done; NotFound if it has gone, Denied if whoever
        has the permit has lost it meanwhile."""
        async with self.lock(permit.vm):
            yield self.permitted(permit)

    def permitted(self, permit: Permit) -> VM:
        """The VM of a permit as it is now; NotFound or Denied where that ended."""
        vm = self.current(permit.vm)
        permit.check(vm)
        return vm

    def claim(self, record: Record) -> None:
        """From here on the address is this VM's. Not on disk yet: `update` or `save` does that."""
        vm = record.vm
        self._vms[vm.ip] = _with_kept(record)
        self._ports |= _ports_of(vm)
        self.changed(EventKind.CREATED, self._vms[vm.ip].vm)

    async def save(self, vm: VM) -> None:
        """Put it on disk as it is."""
        await self._whole(vm, self._save(vm))

    async def write(self, vm: VM, beside: Coroutine[Any, Any, None]) -> None:
        """Write what is kept beside the record: to its end, and before the VM is forgotten."""
        await self._whole(vm, beside)

    async def update(self, vm: VM, **changes: Any) -> VM:
        """Change what is kept of a VM, its own fields and those of its record."""
        # From here on, without an await between: what it claims is not promised to anybody else.
        own = {name: value for name, value in changes.items() if name not in _OF_RECORD}
        coming = structs.replace(self.current(vm), **own)
        return await self._whole(vm, self._update(vm, changes), coming)

    async def tell(self, vm: VM, reason: str) -> None:
        """Say what is seen of it. In memory alone, also on a full disk: the next agent sees it too."""
        await self._whole(vm, self._tell(vm, reason))

    async def move(self, vm: VM, to: VM, carry: Carry) -> VM:
        """Give a VM another address. `carry` takes what is kept elsewhere from the old to the new one.

        The new address is its own from the first write on, the old one free after the last; killed in between,
        it is at the one that its directory is at.
        """
        return await self._whole(vm, self._move(vm, to, carry), to)

    async def forget(self, vm: VM) -> None:
        """The last of a VM. Its addresses are free again, behind all others."""
        await self._whole(vm, self._forget(vm))

    async def settle(self) -> None:
        """Wait for changes whose callers went away."""
        if self._written:
            await asyncio.wait(self._written)

    async def _whole(self, vm: VM, change: Coroutine[Any, Any, T], coming: VM | None = None) -> T:
        """One change of a VM after the other, each of them to its end whatever becomes of its caller."""
        lock = self._writing.setdefault(vm.instance_id, asyncio.Lock())

        announced = object()
        if coming is not None:
            self._coming[announced] = coming

        async def alone() -> T:
            try:
                async with lock:
                    return await change
            finally:
                self._coming.pop(announced, None)

        task = asyncio.get_running_loop().create_task(alone())
        self._written.add(task)
        task.add_done_callback(self._written.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_log_failure)
            raise

    async def _save(self, vm: VM) -> None:
        await self._records.write(self.record(vm))

    async def _update(self, vm: VM, changes: dict[str, Any]) -> VM:
        record = self.record(vm)
        if record.vm.state is VmState.DAMAGED and changes.get("state") is not VmState.DESTROYING:
            # A write would replace what may still be mended.
            raise Conflict(f"VM {vm.name}: {record.vm.reason}", hint=f"mend it, or: atoll vm destroy {vm.ip}")
        if "state" in changes:
            changes.setdefault("reason", "")
        if changes.get("state") in _FRESH:
            # Nothing runs, or it is started as its VM says: nothing waits any more.
            changes |= {"running": None, "pending": (), "suspended": None}
        kept = {name: changes.pop(name) for name in _OF_RECORD & changes.keys()}
        record = _with_kept(structs.replace(record, vm=structs.replace(record.vm, **changes), **kept))
        try:
            await self._records.write(record)
        except AtollError:
            # It may have failed in its last moment, with the new record in place already: what is on disk counts.
            if await self._records.is_on_disk(record):
                self._take(record)
            raise
        self._take(record)
        return record.vm

    async def _tell(self, vm: VM, reason: str) -> None:
        record = self.record(vm)
        if record.vm.reason != reason:
            self._take(structs.replace(record, vm=structs.replace(record.vm, reason=reason)))

    def _take(self, record: Record) -> None:
        self._vms[record.vm.ip] = record
        self.changed(EventKind.CHANGED, record.vm)

    async def _move(self, vm: VM, to: VM, carry: Carry) -> VM:
        await self._update(vm, {"moving": to})
        record = self.record(vm)
        last = record.vm
        try:
            steps.step("move.noted")
            await self.leaving(last)
            await carry(last.ip, to.ip)
            steps.step("move.carried")
            await self._records.move(record)
        except BaseException:
            await carry(to.ip, last.ip)
            await self._update(vm, {"moving": None})
            raise
        # It is where its directory is, whatever fails from here on: the record says already where it was going.
        record = moved(record)
        self._drop(last)
        self._vms[to.ip] = record
        self._ports |= _ports_of(to)
        self._free((last.subnet, last.ip))
        self.changed(EventKind.DESTROYED, last)
        self.changed(EventKind.CREATED, record.vm)
        steps.step("move.renamed")
        await self._records.write(record)
        steps.step("move.recorded")
        return record.vm

    async def _forget(self, vm: VM) -> None:
        last = self.current(vm)
        await self.leaving(last)
        await self._records.discard(vm.ip)
        self._drop(last)
        for nic in last.all_nics:
            self._free((nic.subnet, nic.ip))
        self.changed(EventKind.DESTROYED, last)

    def _drop(self, vm: VM) -> None:
        del self._vms[vm.ip]
        for mark in _ports_of(vm):
            self._ports.pop(mark, None)

    def _free(self, place: Place) -> None:
        self.freed[place] = max(self.freed.values(), default=0) + 1

    def _none_such(self, reference: str) -> NotFound:
        return NotFound(f"VM {reference!r}: there is none on {self._node}", hint="see: atoll vm list")


def _with_kept(record: Record) -> Record:
    """What its VM says of its volumes is what they are. Pure."""
    kept = kept_of(record.vm.volumes)
    if record.vm.kept == kept:
        return record
    return structs.replace(record, vm=structs.replace(record.vm, kept=kept))


def _ports_of(vm: VM) -> dict[Mark, PortKey]:
    """The ports of a VM by all that tells on a wire that a frame is theirs. Pure."""
    return {(nic.subnet, mark): (vm.ip, index) for index, nic in enumerate(vm.all_nics) for mark in nic.marks}


def _log_failure(task: asyncio.Task[Any]) -> None:
    """Nobody waits for the result any more."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("a change of a VM whose caller had gone: %s", error)
