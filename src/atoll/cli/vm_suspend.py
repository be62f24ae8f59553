"""`atoll vm suspend` and `resume`: one VM, or several at once. Effects: calls the node, prints."""

from __future__ import annotations

import argparse

from atoll.api.client import Client
from atoll.api.suspending import VM_RESUME, VM_SUSPEND, SuspendVm
from atoll.cli.arguments import Commands, add_verb
from atoll.cli.output import add_show_options
from atoll.cli.progress import Progress
from atoll.cli.vm_life import for_all
from atoll.cli.vm_ref import add_vm_argument
from atoll.model.vm import VM, SuspendTo
from atoll.system import clock

TO_DISK_S = 600.0
"""For memory that is written to a slow disk, or read from one."""


def register(vm: Commands) -> None:
    add = add_verb(
        vm,
        "suspend",
        suspend,
        summary="Hold VMs still, as they are, until vm resume. They keep their addresses and use no CPU.",
        example="atoll vm suspend web --to-disk",
    )
    add_vm_argument(add, several=True)
    add.add_argument(
        "--to-disk",
        action="store_true",
        help="write memory to disk: it is free for others, and survives a reboot of the host; not for containers",
    )
    add_show_options(add, quiet=True)
    add = add_verb(vm, "resume", resume, summary="Let suspended VMs go on.", example="atoll vm resume web db")
    add_vm_argument(add, several=True)
    add_show_options(add, quiet=True)


def suspend(options: argparse.Namespace) -> int:
    request = SuspendVm(SuspendTo.DISK if options.to_disk else SuspendTo.MEMORY)

    def act(client: Client, ref: str, progress: Progress) -> VM:
        began = clock.monotonic()
        return _told(client.call(VM_SUSPEND, {"vm": ref}, body=request, timeout_s=TO_DISK_S), began, progress)

    return for_all(options, act, ("suspended",), "suspended")


def resume(options: argparse.Namespace) -> int:
    def act(client: Client, ref: str, progress: Progress) -> VM:
        began = clock.monotonic()
        return _told(client.call(VM_RESUME, {"vm": ref}, timeout_s=TO_DISK_S), began, progress)

    return for_all(options, act, ("running",), "resumed")


def _told(vm: VM, began: float, progress: Progress) -> VM:
    progress.reached(vm.state, clock.monotonic() - began, vm.ip)
    progress.done()
    return vm
