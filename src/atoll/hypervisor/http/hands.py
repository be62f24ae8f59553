"""Handlers of commands in guests, and of connections to them."""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable

from atoll.api.forwards import VM_FORWARD, End, Target
from atoll.api.hands import VM_EXEC
from atoll.api.route import Bound, ByteSocket, Call, bind_socket
from atoll.errors import AtollError
from atoll.hypervisor.hands import forwards
from atoll.hypervisor.hands.hands import converse, first_frame, refuse
from atoll.hypervisor.http.calls import permit_of
from atoll.hypervisor.service import Hypervisor
from atoll.hypervisor.vms.permits import Permit
from atoll.model.command import Command

Note = Callable[[Call[None, None], str], Awaitable[None]]
"""Puts what is about to be done into the audit log."""


class HandsHandlers:
    def __init__(self, service: Hypervisor, note: Note) -> None:
        self._service = service
        self._hands = service.hands
        self._forwards = service.forwards
        self._note = note

    def bound(self) -> tuple[Bound, ...]:
        return (bind_socket(VM_EXEC, self.exec), bind_socket(VM_FORWARD, self.forward))

    async def exec(self, call: Call[None, None]) -> Callable[[ByteSocket], Awaitable[None]]:
        permit = permit_of(self._service, VM_EXEC.name, call)
        self._hands.check(permit.vm)

        async def talk(socket: ByteSocket) -> None:
            try:
                command = await first_frame(socket)
                if command is not None:
                    await self._run(permit, call, command, socket)
            except AtollError as error:
                await refuse(socket, error)

        return talk

    async def forward(self, call: Call[None, Target]) -> Callable[[ByteSocket], Awaitable[None]]:
        permit = permit_of(self._service, VM_FORWARD.name, call)
        self._forwards.check(permit.vm)

        async def talk(socket: ByteSocket) -> None:
            if call.query.check:
                return await socket.tell(End())
            try:
                with self._forwards.places.one(permit.vm, call.identity.user):
                    wire = await self._forwards.connect(permit.vm, call.query.port)
                    with wire:
                        # While it was made, another VM may have got the address.
                        self._service.vms.permitted(permit)
                        await forwards.carry(wire, socket)
            except AtollError as error:
                await forwards.refuse(socket, error)

        return talk

    async def _run(
        self, permit: Permit, call: Call[None, None], command: Command, socket: ByteSocket
    ) -> None:
        with self._hands.places.one(permit.vm, call.identity.user):
            await self._note(call, shlex.join(command.argv))
            vm = self._service.vms.permitted(permit)
            process = await self._hands.start(vm, command)
            try:
                # While it was started, another VM may have got the address.
                self._service.vms.permitted(permit)
                await converse(process, command, socket)
            finally:
                self._hands.let_go(process)
