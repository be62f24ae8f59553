"""Handlers of consoles, screens and boot logs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from atoll.api import hypervisor as routes
from atoll.api.hypervisor import Attach, LogFrom
from atoll.api.route import Bound, ByteSocket, Call, Part, bind_part, bind_socket
from atoll.drivers.machine.base import Console
from atoll.errors import AtollError
from atoll.hypervisor.consoles.bootlog import BootLogs
from atoll.hypervisor.consoles.consoles import Consoles
from atoll.hypervisor.consoles.keyboard import Seat, check_taker
from atoll.hypervisor.consoles.relay import relay
from atoll.hypervisor.http.calls import permit_of
from atoll.hypervisor.service import Hypervisor
from atoll.hypervisor.vms.permits import Permit
from atoll.model.vm import VM


class ConsoleHandlers:
    def __init__(self, service: Hypervisor, logs: BootLogs) -> None:
        self._service = service
        self._screens = service.screens
        self._logs = logs
        self._consoles = Consoles(logs)

    def bound(self) -> tuple[Bound, ...]:
        return (
            bind_part(routes.VM_LOG, self.log),
            bind_socket(routes.VM_CONSOLE, self.console),
            bind_socket(routes.VM_VNC, self.vnc),
        )

    async def log(self, call: Call[None, LogFrom]) -> Part:
        permit = permit_of(self._service, "vm.log", call)
        # Asked when its file is open: if the VM is still there then, these are its bytes, whoever comes next.
        return await self._logs.read(
            permit.vm.ip, call.query.offset, lambda: self._service.vms.permitted(permit)
        )

    async def console(self, call: Call[None, Attach]) -> Callable[[ByteSocket], Awaitable[None]]:
        permit, how = permit_of(self._service, "vm.console", call), call.query
        vm = permit.vm
        self._screens.check_console(vm)
        if how.take:
            check_taker(call.identity, vm)
        seat = Seat(call.identity.user, watches=how.watch)

        async def talk(socket: ByteSocket) -> None:
            await self._consoles.attach(
                vm,
                lambda: self._opened(permit, self._screens.console),
                lambda: self._service.vms.permitted(permit),
                seat,
                socket,
                take=how.take,
                history=how.history,
            )

        return talk

    async def vnc(self, call: Call[None, None]) -> Callable[[ByteSocket], Awaitable[None]]:
        permit = permit_of(self._service, "vm.vnc", call)
        self._screens.check_display(permit.vm)

        async def talk(socket: ByteSocket) -> None:
            await relay(await self._opened(permit, self._screens.display), socket)

        return talk

    async def _opened(self, permit: Permit, connect: Callable[[VM], Awaitable[Console]]) -> Console:
        """A connection to the machine of this very VM: while it was made, another may have got its address."""
        console = await connect(permit.vm)
        try:
            self._service.vms.permitted(permit)
        except AtollError:
            await console.close()
            raise
        return console
