"""`atoll vm start`, `stop`, `reboot` and `destroy`: one VM, or several at once. Effects: calls the node, prints."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from atoll.api import hypervisor as api
from atoll.api.client import Client
from atoll.api.route import Stream
from atoll.cli.arguments import Commands, add_verb
from atoll.cli.asking import add_yes_option, check_can_ask, confirm, vm_going
from atoll.cli.context import connect
from atoll.cli.output import Results, add_show_options, notice, style_of
from atoll.cli.progress import Progress, follow, stages_ahead
from atoll.cli.vm_ref import add_vm_argument, check_ref
from atoll.cli.vm_request import add_stop_options, add_wait_options, stop_request, wait_request
from atoll.cli.vm_view import vm_view
from atoll.errors import NotFound
from atoll.model.vm import STAGES, VM
from atoll.plan.kept import lost_at_stop
from atoll.system import clock

START_STAGES = STAGES[STAGES.index("started") :]
STOP_MARGIN_S = 30.0

Act = Callable[[Client, str, Progress], VM]


def register(vm: Commands) -> None:
    add = add_verb(
        vm, "start", start, summary="Start stopped VMs.", example="atoll vm start web db --wait-for dhcp"
    )
    add_vm_argument(add, several=True)
    add_wait_options(add)
    add_show_options(add, quiet=True)
    add = add_verb(vm, "stop", stop, summary="Stop VMs.", example="atoll vm stop web --grace 30s")
    add_vm_argument(add, several=True)
    add_stop_options(add)
    add_show_options(add, quiet=True)
    add = add_verb(
        vm, "reboot", reboot, summary="Shut guests down and start them again.", example="atoll vm reboot web"
    )
    add_vm_argument(add, several=True)
    add_wait_options(add)
    add_show_options(add, quiet=True)
    add = add_verb(
        vm,
        "destroy",
        destroy,
        summary="Destroy VMs and all that is theirs. One that is gone already is a success.",
        example="atoll vm destroy web db --yes",
    )
    add_vm_argument(add, several=True)
    add_yes_option(add)


def start(options: argparse.Namespace) -> int:
    return _started(options, api.VM_START, "started")


def reboot(options: argparse.Namespace) -> int:
    return _started(options, api.VM_REBOOT, "rebooted")


def _started(options: argparse.Namespace, route: Stream[api.Wait, None, api.Progress, VM], word: str) -> int:
    wait = wait_request(options)

    def act(client: Client, ref: str, progress: Progress) -> VM:
        lines = client.stream(route, {"vm": ref}, body=wait)
        vm = follow(lines, progress)
        if route is api.VM_REBOOT:
            _tell_lost(vm, options)
        return vm

    return for_all(options, act, stages_ahead(options.wait_for, START_STAGES), word)


def stop(options: argparse.Namespace) -> int:
    request = stop_request(options)

    def act(client: Client, ref: str, progress: Progress) -> VM:
        began = clock.monotonic()
        timeout_s = request.grace_s + STOP_MARGIN_S
        vm = client.call(api.VM_STOP, {"vm": ref}, body=request, timeout_s=timeout_s)
        progress.reached(vm.state, clock.monotonic() - began, vm.ip)
        progress.done()
        _tell_lost(vm, options)
        return vm

    return for_all(options, act, ("stopped",), "stopped")


def _tell_lost(vm: VM, options: argparse.Namespace) -> None:
    """People are told what their VM has lost; scripts can ask."""
    lost = lost_at_stop(vm.kept)
    if lost and sys.stderr.isatty():
        notice(f"{vm.name}: gone with the stop: what was on {', '.join(lost)} (in memory)", options)


def for_all(options: argparse.Namespace, act: Act, ahead: Sequence[str], word: str) -> int:
    """One VM has a line of progress; several are worked on a few at a time, and summed up."""
    view = vm_view(clock.now())
    refs = _refs(options)
    results = Results(view, style_of(options, view), several=len(refs) > 1)
    if len(refs) == 1:
        with connect(options) as client, _progress(refs[0], options, ahead) as progress:
            vm = act(client, refs[0], progress)
        results.add(vm)
        return 0
    from atoll.cli import several

    def quietly(client: Client, ref: str) -> VM:
        with Progress(ref, sys.stderr, quiet=True) as progress:
            return act(client, ref, progress)

    outcome = several.run(options, refs, quietly, word)
    for vm in outcome.done.values():
        results.add(vm)
    results.close()
    return outcome.status


def destroy(options: argparse.Namespace) -> int:
    refs = _refs(options)
    check_can_ask(f"vm destroy {' '.join(refs)}", options)
    with connect(options) as client:
        found = _found(client, refs)
        for ref in refs:
            if ref not in found:
                notice(f"{ref}: gone already", options)
        if not found:
            return 0
        what = f"VM {next(iter(found.values())).name}" if len(found) == 1 else f"{len(found)} VMs"
        confirm(f"destroy {what}", map(vm_going, found.values()), options)
        if len(found) == 1:
            ((ref, vm),) = found.items()
            with _progress(ref, options, ("destroyed",)) as progress:
                began = clock.monotonic()
                client.call(api.VM_DESTROY, {"vm": vm.ip})
                progress.reached("destroyed", clock.monotonic() - began, vm.ip)
                progress.done()
            return 0
    from atoll.cli import several

    def act(own: Client, ref: str) -> None:
        own.call(api.VM_DESTROY, {"vm": found[ref].ip})

    return several.run(options, list(found), act, "destroyed").status


def _found(client: Client, refs: Sequence[str]) -> dict[str, VM]:
    """Those of them that are there."""
    if len(refs) == 1:
        try:
            return {refs[0]: client.call(api.VM_SHOW, {"vm": refs[0]})}
        except NotFound:
            return {}
    vms = client.call(api.VM_LIST)
    known = {vm.name: vm for vm in vms} | {vm.ip: vm for vm in vms}
    return {ref: known[ref] for ref in refs if ref in known}


def _refs(options: argparse.Namespace) -> list[str]:
    return list(dict.fromkeys(check_ref(ref) for ref in options.vm))


def _progress(name: str, options: argparse.Namespace, ahead: Sequence[str]) -> Progress:
    return Progress(name, sys.stderr, ahead=ahead, quiet=options.quiet)
