"""The routes of a Hypervisor, bound to its service. Thin: each handler is a call, and a check of owners."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

from atoll import __version__
from atoll.api import hypervisor as routes
from atoll.api.hypervisor import (
    AddAddress,
    Attach,
    CreateVm,
    Follow,
    Health,
    LogFrom,
    Progress,
    Since,
    StopVm,
    Wait,
)
from atoll.api.openapi import document
from atoll.api.route import (
    Bound,
    ByteSocket,
    Call,
    Done,
    Part,
    bind,
    bind_download,
    bind_part,
    bind_socket,
    bind_stream,
)
from atoll.errors import NotFound
from atoll.hypervisor.consoles.bootlog import BootLogs
from atoll.hypervisor.consoles.consoles import Consoles
from atoll.hypervisor.consoles.keyboard import Seat, check_taker
from atoll.hypervisor.consoles.relay import relay
from atoll.hypervisor.service import Hypervisor
from atoll.hypervisor.upkeep import Upkeep
from atoll.hypervisor.utilisation import Meter
from atoll.hypervisor.vms.records import Records
from atoll.images.store import ImageStore
from atoll.model.checks import check_ip, check_pattern
from atoll.model.event import Event
from atoll.model.image import Image
from atoll.model.lease import Lease, Reservation
from atoll.model.network import Subnet
from atoll.model.node import Node
from atoll.model.vm import VM
from atoll.serving.audit import AuditLog, Auditor

# As much as the largest of our requests: the 65,536 addresses of a /16.
MAX_BODY = 4 << 20


class Handlers:
    """One method per route."""

    def __init__(
        self,
        service: Hypervisor,
        records: Records,
        images: ImageStore,
        logs: BootLogs,
        meter: Meter,
        audit: AuditLog,
    ) -> None:
        self.auditor = Auditor(audit, service.find)
        self._upkeep = Upkeep(service, meter, audit, self._owned)
        self._service = service
        self._records = records
        self._images = images
        self._logs = logs
        self._consoles = Consoles(logs)
        self._document = document("Atoll Hypervisor", __version__, routes.ROUTES, routes.PARAMETERS)

    def bound(self) -> tuple[Bound, ...]:
        return self.auditor.watch((*self._bound(), *self._upkeep.bound()))

    def _bound(self) -> tuple[Bound, ...]:
        return (
            bind(routes.HEALTH, self.health),
            bind(routes.OPENAPI, self.openapi),
            bind(routes.NODE_SHOW, self.node),
            bind(routes.NODE_DRAIN, self.drain),
            bind(routes.NODE_UNDRAIN, self.undrain),
            bind(routes.NODE_ADD_SUBNET, self.add_subnet),
            bind(routes.NODE_ADD_ADDRESS, self.add_address),
            bind(routes.NODE_ADD_LEASE, self.add_lease),
            bind(routes.NODE_DELETE_LEASE, self.delete_lease),
            bind_stream(routes.LEASE_LIST, self.leases),
            bind(routes.IMAGE_LIST, self.images),
            bind(routes.VM_LIST, self.list),
            bind_stream(routes.VM_CREATE, self.create),
            bind(routes.VM_SHOW, self.show),
            bind_stream(routes.VM_START, self.start),
            bind(routes.VM_STOP, self.stop),
            bind_stream(routes.VM_REBOOT, self.reboot),
            bind(routes.VM_DESTROY, self.destroy),
            bind_part(routes.VM_LOG, self.log),
            bind_download(routes.VM_USER_DATA, self.user_data),
            bind_socket(routes.VM_CONSOLE, self.console),
            bind_socket(routes.VM_VNC, self.vnc),
            bind_stream(routes.EVENTS, self.events),
        )

    async def health(self, call: Call[None, None]) -> Health:
        return Health(status="serving")

    async def openapi(self, call: Call[None, None]) -> dict[str, Any]:
        return self._document

    async def node(self, call: Call[None, None]) -> Node:
        return self._service.node()

    async def drain(self, call: Call[None, None]) -> Node:
        await self._service.holdings.drain(True)
        return self._service.node()

    async def undrain(self, call: Call[None, None]) -> Node:
        await self._service.holdings.drain(False)
        return self._service.node()

    async def add_subnet(self, call: Call[Subnet, None]) -> Node:
        await self._service.holdings.add_subnet(call.body)
        return self._service.node()

    async def add_address(self, call: Call[AddAddress, None]) -> Node:
        await self._service.holdings.add_addresses(call.body.subnet, call.body.addresses)
        return self._service.node()

    async def add_lease(self, call: Call[Reservation, None]) -> Node:
        await self._service.holdings.add_lease(call.body)
        return self._service.node()

    async def delete_lease(self, call: Call[None, None]) -> None:
        await self._service.holdings.delete_lease(check_ip("ip", call.params["ip"]))

    async def leases(self, call: Call[None, Follow]) -> AsyncIterator[Lease | Done[None]]:
        async with aclosing(self._service.holdings.leases.read(call.query.follow)) as leases:
            async for lease in leases:
                yield lease
        yield Done(None)

    async def images(self, call: Call[None, None]) -> tuple[Image, ...]:
        return self._images.list()

    async def list(self, call: Call[None, None]) -> tuple[VM, ...]:
        return self._service.list()

    def create(self, call: Call[CreateVm, None]) -> AsyncIterator[Progress | Done[VM]]:
        return self._service.create(call.body, call.identity)

    async def show(self, call: Call[None, None]) -> VM:
        return self._service.show(_reference(call))

    def start(self, call: Call[Wait, None]) -> AsyncIterator[Progress | Done[VM]]:
        return self._service.start(self._owned("vm.start", call).ip, call.body)

    async def stop(self, call: Call[StopVm, None]) -> VM:
        return await self._service.stop(self._owned("vm.stop", call).ip, call.body.grace_s)

    def reboot(self, call: Call[Wait, None]) -> AsyncIterator[Progress | Done[VM]]:
        return self._service.reboot(self._owned("vm.reboot", call).ip, call.body)

    async def destroy(self, call: Call[None, None]) -> None:
        try:
            vm = self._owned("vm.destroy", call)
        except NotFound:
            return
        await self._service.destroy(vm.ip)

    async def log(self, call: Call[None, LogFrom]) -> Part:
        return await self._logs.read(self._owned("vm.log", call).ip, call.query.offset)

    async def user_data(self, call: Call[None, None]) -> AsyncIterator[bytes]:
        yield self._records.user_data(self._owned("vm.user-data", call).ip)

    async def console(self, call: Call[None, Attach]) -> Callable[[ByteSocket], Awaitable[None]]:
        vm, how = self._owned("vm.console", call), call.query
        self._service.screens.check_console(vm)
        if how.take:
            check_taker(call.identity, vm)
        seat = Seat(call.identity.user, watches=how.watch)

        async def talk(socket: ByteSocket) -> None:
            await self._consoles.attach(
                vm.ip,
                lambda: self._service.screens.console(vm),
                seat,
                socket,
                take=how.take,
                history=how.history,
            )

        return talk

    async def vnc(self, call: Call[None, None]) -> Callable[[ByteSocket], Awaitable[None]]:
        vm = self._owned("vm.vnc", call)
        self._service.screens.check_display(vm)

        async def talk(socket: ByteSocket) -> None:
            await relay(await self._service.screens.display(vm), socket)

        return talk

    async def events(self, call: Call[None, Since]) -> AsyncIterator[Event | Done[None]]:
        since = call.query
        async with aclosing(self._service.events.read(since.epoch, since.sequence, since.follow)) as events:
            async for event in events:
                yield event
        yield Done(None)

    def _owned(self, method: str, call: Call[Any, Any]) -> VM:
        return self._service.check_owner(call.identity, method, _reference(call))


def _reference(call: Call[Any, Any]) -> str:
    return check_pattern("vm", call.params["vm"], routes.VM_REF_PATTERN, "the IP or the name of a VM")
