"""Suspending VMs, and letting them go on. Pure declarations."""

from __future__ import annotations

from msgspec import Struct

from atoll.api.access import Access
from atoll.api.route import NOTHING, Unary
from atoll.model.vm import VM, SuspendTo


class SuspendVm(Struct, frozen=True, forbid_unknown_fields=True):
    """Where its memory goes."""

    to: SuspendTo = SuspendTo.MEMORY


VM_SUSPEND = Unary(
    "vm.suspend",
    "POST",
    "/v1/vms/{vm}/suspend",
    summary="Hold a VM still: its memory stays, or goes to disk; suspended so already is a success",
    access=Access.OWNER,
    body=SuspendVm,
    query=NOTHING,
    result=VM,
)
VM_RESUME = Unary(
    "vm.resume",
    "POST",
    "/v1/vms/{vm}/resume",
    summary="Let a VM that is suspended go on; one that runs already is a success",
    access=Access.OWNER,
    body=NOTHING,
    query=NOTHING,
    result=VM,
)

ROUTES = (VM_SUSPEND, VM_RESUME)
