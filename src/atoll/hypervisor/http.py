"""The routes of a Hypervisor, bound to its service. Thin: each handler is a call, and a check of owners."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

from atoll import __version__
from atoll.api import hypervisor as routes
from atoll.api.access import Access
from atoll.api.hypervisor import AddAddress, CreateVm, Health, Progress, Since, StopVm, Wait
from atoll.api.openapi import document
from atoll.api.route import (
    Bound,
    ByteSocket,
    Call,
    Done,
    Route,
    bind,
    bind_download,
    bind_socket,
    bind_stream,
)
from atoll.errors import NotFound
from atoll.hypervisor.bootlog import BootLogs
from atoll.hypervisor.consoles import Consoles
from atoll.hypervisor.records import Records
from atoll.hypervisor.service import Hypervisor
from atoll.identity.access import Operators, check_route
from atoll.identity.peer import PeerReader
from atoll.images.store import ImageStore
from atoll.model.checks import check_pattern
from atoll.model.event import Event
from atoll.model.identity import Identity
from atoll.model.image import Image
from atoll.model.network import Subnet
from atoll.model.node import Node
from atoll.model.vm import VM
from atoll.system import clock

MAX_BODY = 2 << 20
_NOBODY = Identity(user="anonymous")


class CertificateGate:
    """Admits callers by their certificate, and to the routes that it opens."""

    def __init__(self, peers: PeerReader, operators: Operators) -> None:
        self._peers = peers
        self._operators = operators

    def admit(self, route: Route[Any, Any], certificate: bytes | None) -> Identity:
        if route.access is Access.PUBLIC:
            return _NOBODY
        identity = self._peers.identity(certificate, clock.now())
        check_route(route.access, route.name, identity, self._operators)
        return identity


class Handlers:
    """One method per route."""

    def __init__(self, service: Hypervisor, records: Records, images: ImageStore, logs: BootLogs) -> None:
        self._service = service
        self._records = records
        self._images = images
        self._logs = logs
        self._consoles = Consoles()
        self._document = document(
            "Atoll Hypervisor", __version__, routes.ROUTES, {"vm": routes.VM_REF_PATTERN}
        )

    def bound(self) -> tuple[Bound, ...]:
        return (
            bind(routes.HEALTH, self.health),
            bind(routes.OPENAPI, self.openapi),
            bind(routes.NODE_SHOW, self.node),
            bind(routes.NODE_ADD_SUBNET, self.add_subnet),
            bind(routes.NODE_ADD_ADDRESS, self.add_address),
            bind(routes.IMAGE_LIST, self.images),
            bind(routes.VM_LIST, self.list),
            bind_stream(routes.VM_CREATE, self.create),
            bind(routes.VM_SHOW, self.show),
            bind_stream(routes.VM_START, self.start),
            bind(routes.VM_STOP, self.stop),
            bind_stream(routes.VM_REBOOT, self.reboot),
            bind(routes.VM_DESTROY, self.destroy),
            bind_download(routes.VM_LOG, self.log),
            bind_download(routes.VM_USER_DATA, self.user_data),
            bind_socket(routes.VM_CONSOLE, self.console),
            bind_stream(routes.EVENTS, self.events),
        )

    async def health(self, call: Call[None, None]) -> Health:
        return Health(status="serving")

    async def openapi(self, call: Call[None, None]) -> dict[str, Any]:
        return self._document

    async def node(self, call: Call[None, None]) -> Node:
        return self._service.node()

    async def add_subnet(self, call: Call[Subnet, None]) -> Node:
        return await self._service.add_subnet(call.body)

    async def add_address(self, call: Call[AddAddress, None]) -> Node:
        return await self._service.add_addresses(call.body.subnet, call.body.addresses)

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

    def log(self, call: Call[None, None]) -> AsyncIterator[bytes]:
        return self._logs.read(self._owned("vm.log", call).ip)

    async def user_data(self, call: Call[None, None]) -> AsyncIterator[bytes]:
        yield self._records.user_data(self._owned("vm.user-data", call).ip)

    async def console(self, call: Call[None, None]) -> Callable[[ByteSocket], Awaitable[None]]:
        vm = self._owned("vm.console", call)
        self._service.check_console(vm)

        async def talk(socket: ByteSocket) -> None:
            await self._consoles.attach(vm.ip, lambda: self._service.console(vm), socket)

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
