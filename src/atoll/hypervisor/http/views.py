"""A VM as somebody sees it: what is its owners' alone is shown to them and to operators. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import structs

from atoll.api.hypervisor import VmFilter
from atoll.identity.access import Operators, operates
from atoll.model.event import Event
from atoll.model.identity import Identity
from atoll.model.vm import VM

_HIDDEN: dict[str, Any] = {
    # A hash tells whether a guess at the user data is right, and there are passwords in user data.
    "user_data_sha256": "",
    "previous_user_data_sha256": None,
    "request_id": "",
    "ssh_keys": (),
    "kernel_options": "",
    "role_problem": "",
    "role_cloud": "",
    "role_credential_expires_at": None,
}

See = Callable[[tuple[VM, ...]], tuple[VM, ...]]


def seen_by(identity: Identity, method: str, operators: Operators) -> See:
    """How this caller of this method sees VMs."""

    def see(vms: tuple[VM, ...]) -> tuple[VM, ...]:
        if operates(identity, method, operators):
            return vms
        return tuple(
            vm if identity.among(vm.owner_users, vm.owner_groups) else without_secrets(vm) for vm in vms
        )

    return see


def selected(vms: tuple[VM, ...], wanted: VmFilter, identity: Identity) -> tuple[VM, ...]:
    """Those that are asked for."""
    tags = wanted.wanted_tags().items()

    def is_wanted(vm: VM) -> bool:
        return (
            (wanted.owner is None or wanted.owner in vm.owner_users)
            and (not wanted.mine or identity.among(vm.owner_users, vm.owner_groups))
            and (wanted.state is None or vm.state is wanted.state)
            and (wanted.kind is None or vm.driver == wanted.kind)
            and tags <= vm.tags.items()
        )

    return vms if wanted == VmFilter() else tuple(filter(is_wanted, vms))


def without_secrets(vm: VM) -> VM:
    running = None if vm.running is None else structs.replace(vm.running, kernel_options="")
    return structs.replace(vm, running=running, **_HIDDEN)


def event_as_seen(event: Event, see: See) -> Event:
    if event.vm is None:
        return structs.replace(event, vms=see(event.vms)) if event.vms else event
    return structs.replace(event, vm=see((event.vm,))[0])
