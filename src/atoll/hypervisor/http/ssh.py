"""Handlers of SSH certificates."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from atoll.api.route import Bound, Call, bind
from atoll.api.ssh import VM_SSH, AskSsh, SshAccess
from atoll.errors import Conflict
from atoll.hypervisor.http.calls import permit_of
from atoll.hypervisor.service import Hypervisor
from atoll.model.lifecycle import how_to_run
from atoll.model.vm import VmState
from atoll.plan.honours import check_ssh

Note = Callable[[Call[AskSsh, None], str], Awaitable[None]]
"""Puts what was given into the audit log."""


class SshHandlers:
    def __init__(self, service: Hypervisor, note: Note) -> None:
        self._service = service
        self._note = note

    def bound(self) -> tuple[Bound, ...]:
        return (bind(VM_SSH, self.ssh),)

    async def ssh(self, call: Call[AskSsh, None]) -> SshAccess:
        permit = permit_of(self._service, VM_SSH.name, call)
        vm = permit.vm
        if vm.state is not VmState.RUNNING:
            raise Conflict(f"vm ssh: VM {vm.name} is {vm.state}", hint=how_to_run(vm))
        check_ssh(vm, self._service.image_of(vm))
        admitted = await self._service.ssh.admit(vm, call.identity.user, call.body.key)
        # While it was signed, the caller may have lost the VM.
        self._service.vms.permitted(permit)
        await self._note(call, f"certificate {admitted.serial} until {admitted.access.expires_at:%H:%M:%SZ}")
        return admitted.access
