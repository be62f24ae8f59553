"""What is published on a node: kept in the records of VMs, carried by a relay that is told what they say.

    publish     open the port ─► the record says so ─► the relay has it
    unpublish                    the record says so ─► the relay drops it

The record counts: an agent that is killed in between is followed by one that puts the relay right. The same happens
when a VM starts, stops or goes, and when the relay has ended. Nothing leads to an address that a VM has given back: the
relay is told before the address is free.

Effects: listening sockets, through inventory and relay. The decisions are in atoll.plan.publishing.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
from collections.abc import Iterator, Mapping

from prometheus_client.metrics_core import Metric

from atoll.api.publishing import Unpublish
from atoll.errors import AtollError, Conflict, HostFailure, Invalid
from atoll.hypervisor.publishing import metrics
from atoll.hypervisor.publishing.base import Carried, Place
from atoll.hypervisor.vms.permits import Permit
from atoll.hypervisor.vms.workbench import Workbench
from atoll.identity.access import operates
from atoll.model.event import EventKind
from atoll.model.identity import Identity
from atoll.model.publishing import Publication, PublishedPort
from atoll.model.vm import VM, VmState
from atoll.plan.publishing import (
    Asking,
    Differences,
    Entry,
    differences,
    entry_of,
    published_with,
    published_without,
    wanted_of,
)
from atoll.system import aside, steps

log = logging.getLogger(__name__)

RETRY_S = 5.0
"""How soon a port is tried again that could not be opened, or a relay that could not be told."""
PAUSE_S = 1.0
"""After a failure, whatever has changed since."""


class Publishing:
    def __init__(self, bench: Workbench, place: Place) -> None:
        self._bench = bench
        self._vms = bench.vms
        self._place = place
        self._relay = place.relay
        self._lock = asyncio.Lock()
        self._wake = asyncio.Event()
        self._carried: dict[str, Entry] | None = None
        """What the relay has; None: it has to be asked."""
        self._is_ended = False
        """There is no relay, since nothing is published. An agent before us may have left one."""
        self._problems: dict[str, str] = {}
        """Why ports are not open that should be, by key."""
        self._relay.on_end(self._doubt)
        self._vms.changed.listen(self._on_change)
        self._vms.leaving = self.withdraw

    # --- for callers

    async def publish(self, permit: Permit, wanted: tuple[Publication, ...], identity: Identity) -> VM:
        """All of it, or nothing."""
        async with self._vms.alone_with(permit) as vm, self._lock:
            new = self._planned(vm, wanted, identity)
            added = [one for one in new.published if one not in vm.published]
            if not added:
                return vm
            with contextlib.ExitStack() as stack:
                opened = [(one, await aside.run(self._open, one, stack)) for one in added]
                steps.step("publish.opened")
                new = await self._vms.update(vm, published=new.published)
                try:
                    steps.step("publish.recorded")
                    await self._hand_over(new, opened)
                except AtollError:
                    await self._vms.update(vm, published=vm.published)
                    raise
            return new

    async def unpublish(self, permit: Permit, what: Unpublish) -> VM:
        """Gone already is success."""
        async with self._vms.alone_with(permit) as vm, self._lock:
            new = published_without(vm, what.port, what.address)
            if new.published != vm.published:
                new = await self._vms.update(vm, published=new.published)
                steps.step("publish.forgotten")
                await self._settle()
            return new

    async def ports(self, vm: VM) -> tuple[PublishedPort, ...]:
        """Those of a VM, and what was carried."""
        counted = await self._relay.carried() if vm.published else {}
        return tuple(self._told(one, counted) for one in vm.published)

    async def families(self) -> Iterator[Metric]:
        """For Prometheus."""
        wanted = wanted_of(self._vms.list())
        counted = await self._relay.carried() if wanted else {}
        return metrics.families((vm, self._told(one, counted)) for vm, one, _ in wanted.values())

    # --- for those around it

    async def withdraw(self, vm: VM) -> None:
        """The VM is about to give back its address: nothing leads there any more when this returns."""
        if self._concerns(vm):
            async with self._lock:
                await self._settle(leaving=vm)

    async def tend(self) -> None:
        """For ever: put right what differs."""
        while True:
            self._wake.clear()
            try:
                await self.settle()
                failed = bool(self._problems)
            except AtollError as error:
                log.error("publishing: %s", error)
                failed = True
            if failed:
                await asyncio.sleep(PAUSE_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RETRY_S if failed else None):
                    await self._wake.wait()

    async def settle(self) -> None:
        """What the records say is carried, and nothing else."""
        async with self._lock:
            await self._settle()

    async def _settle(self, leaving: VM | None = None, *, tried: bool = False) -> None:
        carried = await self._known()
        vms = [vm for vm in self._vms.list() if leaving is None or vm.instance_id != leaving.instance_id]
        wanted = wanted_of(vms)
        unknown = [vm.ip for vm in vms if vm.state is VmState.DAMAGED]
        todo = differences({key: entry for key, (_, _, entry) in wanted.items()}, carried, unknown)
        try:
            with self._in_doubt():
                await self._turn(todo, carried)
        except AtollError as error:
            log.error("%s", error)
            if tried:
                # It may lead to where it must not: better to nowhere. All that should be carried is opened anew.
                log.error("the publisher is ended: it cannot be told")
                await self._relay.end()
            else:
                await self._settle(leaving, tried=True)
            return
        self._problems = {key: why for key, why in self._problems.items() if key in wanted}
        for entry in todo.carry:
            if self._carried is not None:
                await self._try_to_open(wanted[entry.key][1], entry)
        if not self._carried and not wanted and not self._is_ended:
            await self._relay.end()
            self._is_ended = True

    async def _turn(self, todo: Differences, carried: dict[str, Entry]) -> None:
        for key in todo.drop:
            await self._relay.drop(key)
            del carried[key]
            steps.step("publish.dropped")
        for entry in todo.point:
            await self._relay.point(entry)
            carried[entry.key] = entry
            steps.step("publish.pointed")

    async def _try_to_open(self, one: Publication, entry: Entry) -> None:
        try:
            with contextlib.ExitStack() as stack:
                await self._carry(entry, await aside.run(self._open, one, stack))
        except AtollError as error:
            if self._problems.get(entry.key) != error.brief:
                log.error("%s", error)
            self._problems[entry.key] = error.brief

    async def _hand_over(self, vm: VM, opened: list[tuple[Publication, socket.socket]]) -> None:
        for one, listening in opened:
            await self._carry(entry_of(vm, one), listening)

    async def _carry(self, entry: Entry, listening: socket.socket) -> None:
        carried = await self._known()
        self._is_ended = False
        with self._in_doubt():
            await self._relay.carry(entry, listening)
            steps.step("publish.carried")
        carried[entry.key] = entry
        self._problems.pop(entry.key, None)

    async def _known(self) -> dict[str, Entry]:
        """What the relay has: asked once, and then what it was told."""
        if self._carried is None:
            self._carried = {key: one.entry for key, one in (await self._relay.carried()).items()}
        return self._carried

    @contextlib.contextmanager
    def _in_doubt(self) -> Iterator[None]:
        """Where this fails or is cut short, nobody knows what the relay has until it is asked."""
        try:
            yield
        except BaseException:
            self._doubt()
            raise

    def _planned(self, vm: VM, wanted: tuple[Publication, ...], identity: Identity) -> VM:
        if vm.state is VmState.DESTROYING:
            raise Conflict(f"publishing ports of VM {vm.name}: it is being destroyed")
        subnet = self._bench.holdings.subnet_of(vm)
        if subnet.bridge:
            raise Conflict(
                f"publishing ports of VM {vm.name}: it is a machine of the network on bridge {subnet.bridge} itself",
                hint=f"it can be reached there at its own address: {vm.ip}",
            )
        asking = Asking(
            node=self._bench.facts.name,
            rules=self._place.rules,
            api_port=self._place.api_port,
            is_operator=operates(identity, "vm.publish", self._bench.operators()),
            sees_others=identity.is_within_limit("vm.list"),
        )
        return published_with(vm, wanted, self._vms.with_coming(), asking)

    def _open(self, one: Publication, stack: contextlib.ExitStack) -> socket.socket:
        """Closed with the stack, also when the caller is cancelled while it is opened."""
        try:
            return stack.enter_context(self._place.listen(one))
        except OSError as error:
            raise _unopened(one, error) from error

    def _told(self, one: Publication, counted: Mapping[str, Carried]) -> PublishedPort:
        found = counted.get(one.key)
        if found is None:
            return PublishedPort(one, problem=self._problems.get(one.key, "it is being opened"))
        return PublishedPort(
            one,
            found.open,
            found.connections,
            found.refused,
            found.failed,
            found.received_bytes,
            found.sent_bytes,
        )

    def _on_change(self, kind: EventKind, vm: VM) -> None:
        if self._concerns(vm):
            self._wake.set()

    def _concerns(self, vm: VM) -> bool:
        """Whether a change of this VM may be one of what is carried."""
        if vm.published or self._carried is None:
            return True
        return any(vm.instance_id == entry.vm or vm.ip == entry.ip for entry in self._carried.values())

    def _doubt(self) -> None:
        """What the relay has is not known any more."""
        self._carried = None
        self._wake.set()


def _unopened(one: Publication, error: OSError) -> AtollError:
    doing = f"publishing port {one.port} at {one.address}"
    match error.errno:
        case errno.EADDRINUSE:
            return Conflict(
                f"{doing}: another program on this node listens there",
                hint=f"choose another port of the node; ss -ltnp 'sport = {one.port}' there says which program it is",
            )
        case errno.EADDRNOTAVAIL:
            return Invalid("address", one.address, "is not an address of this node")
        case number:
            return HostFailure(f"{doing}: {os.strerror(number) if number else error}")
