"""Handlers of consoles, screens and boot logs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from atoll.api import hypervisor as routes
from atoll.api.hypervisor import Attach, LogFrom
from atoll.api.route import Bound, ByteSocket, Call, Part, bind_part, bind_socket
from atoll.hypervisor.consoles.bootlog import BootLogs
from atoll.hypervisor.consoles.consoles import Consoles
from atoll.hypervisor.consoles.keyboard import Seat, check_taker
from atoll.hypervisor.consoles.relay import relay
from atoll.hypervisor.http.calls import owned
from atoll.hypervisor.service import Hypervisor


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
        return await self._logs.read(owned(self._service, "vm.log", call).ip, call.query.offset)

    async def console(self, call: Call[None, Attach]) -> Callable[[ByteSocket], Awaitable[None]]:
        vm, how = owned(self._service, "vm.console", call), call.query
        self._screens.check_console(vm)
        if how.take:
            check_taker(call.identity, vm)
        seat = Seat(call.identity.user, watches=how.watch)

        async def talk(socket: ByteSocket) -> None:
            await self._consoles.attach(
                vm.ip,
                lambda: self._screens.console(vm),
                seat,
                socket,
                take=how.take,
                history=how.history,
            )

        return talk

    async def vnc(self, call: Call[None, None]) -> Callable[[ByteSocket], Awaitable[None]]:
        vm = owned(self._service, "vm.vnc", call)
        self._screens.check_display(vm)

        async def talk(socket: ByteSocket) -> None:
            await relay(await self._screens.display(vm), socket)

        return talk
