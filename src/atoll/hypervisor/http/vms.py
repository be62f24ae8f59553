"""Handlers of VMs: their life, and changes of them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from atoll.api import changes, suspending
from atoll.api import hypervisor as routes
from atoll.api.changes import ChangeVm
from atoll.api.hypervisor import CreateVm, Progress, StopVm, VmFilter, Wait
from atoll.api.route import Bound, Call, Done, bind, bind_download, bind_stream
from atoll.api.suspending import SuspendVm
from atoll.errors import NotFound
from atoll.hypervisor.http.calls import permit_of, reference
from atoll.hypervisor.http.views import seen_by, selected
from atoll.hypervisor.service import Hypervisor
from atoll.hypervisor.vms.records import Records
from atoll.model.vm import VM

Lines = AsyncGenerator[Progress | Done[VM], None]


class VmHandlers:
    def __init__(self, service: Hypervisor, records: Records) -> None:
        self._service = service
        self._life = service.life
        self._records = records

    def bound(self) -> tuple[Bound, ...]:
        return (
            bind(routes.VM_LIST, self.list),
            bind_stream(routes.VM_CREATE, self.create),
            bind(routes.VM_SHOW, self.show),
            bind_stream(routes.VM_START, self.start),
            bind(routes.VM_STOP, self.stop),
            bind_stream(routes.VM_REBOOT, self.reboot),
            bind(suspending.VM_SUSPEND, self.suspend),
            bind(suspending.VM_RESUME, self.resume),
            bind(routes.VM_DESTROY, self.destroy),
            bind_download(routes.VM_USER_DATA, self.user_data),
            bind(changes.VM_CHANGE, self.change),
            bind(changes.VM_BECOME_PRIMARY_OWNER, self.become_primary_owner),
            bind(changes.VM_ACKNOWLEDGE, self.acknowledge),
            bind(changes.VM_ABANDON, self.abandon),
        )

    async def list(self, call: Call[None, VmFilter]) -> tuple[VM, ...]:
        see = seen_by(call.identity, "vm.list", self._service.operators)
        return see(selected(self._service.vms.list(), call.query, call.identity))

    def create(self, call: Call[CreateVm, None]) -> Lines:
        lines = self._service.creator.create(call.body, call.identity, call.notes.append)
        return self._shown("vm.create", call, lines)

    async def show(self, call: Call[None, None]) -> VM:
        return self._seen("vm.show", call, self._service.vms.show(reference(call)))

    def start(self, call: Call[Wait, None]) -> Lines:
        lines = self._life.start(permit_of(self._service, "vm.start", call), call.body)
        return self._shown("vm.start", call, lines)

    async def stop(self, call: Call[StopVm, None]) -> VM:
        return await self._life.stop(permit_of(self._service, "vm.stop", call), call.body.grace_s)

    def reboot(self, call: Call[Wait, None]) -> Lines:
        lines = self._life.reboot(permit_of(self._service, "vm.reboot", call), call.body)
        return self._shown("vm.reboot", call, lines)

    async def suspend(self, call: Call[SuspendVm, None]) -> VM:
        permit = permit_of(self._service, "vm.suspend", call)
        return await self._service.suspensions.suspend(permit, call.body.to)

    async def resume(self, call: Call[None, None]) -> VM:
        return await self._service.suspensions.resume(permit_of(self._service, "vm.resume", call))

    async def destroy(self, call: Call[None, None]) -> None:
        try:
            permit = permit_of(self._service, "vm.destroy", call)
        except NotFound:
            return
        await self._life.destroy(permit)

    async def _shown(self, method: str, call: Call[Any, Any], lines: Lines) -> Lines:
        """The lines; the VM in the last of them as the caller may see it, who may have lost it in a long wait."""
        async with aclosing(lines):
            async for line in lines:
                if isinstance(line, Done):
                    yield Done(self._seen(method, call, line.result))
                else:
                    yield line

    def _seen(self, method: str, call: Call[Any, Any], vm: VM) -> VM:
        return seen_by(call.identity, method, self._service.operators)((vm,))[0]

    async def user_data(self, call: Call[None, None]) -> AsyncGenerator[bytes, None]:
        yield self._records.user_data(permit_of(self._service, "vm.user-data", call).vm.ip)

    async def change(self, call: Call[ChangeVm, None]) -> VM:
        permit = permit_of(self._service, "vm.change", call)
        return await self._service.changes.change(permit, call.body, call.identity)

    async def become_primary_owner(self, call: Call[None, None]) -> VM:
        permit = permit_of(self._service, "vm.become-primary-owner", call)
        return await self._service.changes.become_primary_owner(permit, call.identity)

    async def acknowledge(self, call: Call[None, None]) -> VM:
        return await self._service.acknowledgements.take(permit_of(self._service, "vm.acknowledge", call))

    async def abandon(self, call: Call[None, None]) -> None:
        try:
            permit = permit_of(self._service, "vm.abandon", call)
        except NotFound:
            return
        await self._service.creator.abandon(permit, call.identity.user)
