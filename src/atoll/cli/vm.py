"""`atoll vm`: VMs of a node. Effects: calls the Hypervisor, prints."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence

from atoll.api import hypervisor as api
from atoll.api.client import Client
from atoll.api.route import Stream
from atoll.cli import failure, vm_change, vm_log, vm_top
from atoll.cli.arguments import Commands, add_noun, add_verb
from atoll.cli.asking import add_yes_option, check_can_ask, confirm, vm_going
from atoll.cli.context import connect, diagnosed
from atoll.cli.output import (
    Results,
    add_list_options,
    add_show_options,
    notice,
    render_list,
    render_one,
    shown_json,
    style_of,
    write,
)
from atoll.cli.progress import Progress, follow, stages_ahead
from atoll.cli.vm_console import add_console_verbs
from atoll.cli.vm_create import create
from atoll.cli.vm_filter import add_filter_options, filter_of
from atoll.cli.vm_request import (
    add_create_options,
    add_stop_options,
    add_vm_argument,
    add_wait_options,
    check_ref,
    stop_request,
    wait_request,
)
from atoll.cli.vm_view import vm_view
from atoll.errors import NotFound
from atoll.model.vm import STAGES, VM
from atoll.system import clock

START_STAGES = STAGES[STAGES.index("started") :]
STOP_MARGIN_S = 30.0


def register(commands: Commands) -> None:
    vm = add_noun(commands, "vm", "VMs: what a user runs, whatever runs it.")
    add = add_verb(
        vm,
        "create",
        create,
        summary="Create and start a VM, and wait until it is of use.",
        example="atoll vm create --name web --image appliance --memory 256MiB --wait-for port:80",
    )
    add_create_options(add)
    add_show_options(add)
    add = add_verb(
        vm, "list", list_, summary="List VMs.", example="atoll vm list --mine --state running --sort=-memory"
    )
    add_list_options(add)
    add_filter_options(add)
    add.add_argument("-w", "--watch", action="store_true", help="follow what happens; q or Ctrl-C ends it")
    add.set_defaults(sort="ip")
    add = add_verb(vm, "show", show, summary="Show one VM.", example="atoll vm show web -o yaml")
    add_vm_argument(add)
    add.add_argument(
        "--as-request", action="store_true", help="print what vm create --request takes to make it again"
    )
    add_show_options(add)
    add = add_verb(
        vm, "start", start, summary="Start stopped VMs.", example="atoll vm start web db --wait-for dhcp"
    )
    add_vm_argument(add, several=True)
    add_wait_options(add)
    add_show_options(add)
    add = add_verb(vm, "stop", stop, summary="Stop VMs.", example="atoll vm stop web --grace 30")
    add_vm_argument(add, several=True)
    add_stop_options(add)
    add_show_options(add)
    add = add_verb(
        vm, "reboot", reboot, summary="Shut guests down and start them again.", example="atoll vm reboot web"
    )
    add_vm_argument(add, several=True)
    add_wait_options(add)
    add_show_options(add)
    add = add_verb(
        vm,
        "destroy",
        destroy,
        summary="Destroy VMs and all that is theirs. One that is gone already is a success.",
        example="atoll vm destroy web db --yes",
    )
    add_vm_argument(add, several=True)
    add_yes_option(add)
    vm_change.register(vm)
    vm_top.register(vm)
    add_console_verbs(vm)
    vm_log.register(vm)


def list_(options: argparse.Namespace) -> None:
    view = vm_view(clock.now())
    style, wanted = style_of(options, view), filter_of(options)
    if options.watch:
        from atoll.cli.vm_watch import watch

        watch(options, wanted)
        return
    with connect(options) as client:
        vms = client.call(api.VM_LIST, query=wanted)
    write(render_list(view, vms, style))


def show(options: argparse.Namespace) -> None:
    view = vm_view(clock.now())
    style = style_of(options, view)
    ref = check_ref(options.vm)
    with connect(options) as client:
        vm = client.call(api.VM_SHOW, {"vm": ref})
        if options.as_request:
            user_data = (
                b"".join(client.download(api.VM_USER_DATA, {"vm": vm.ip})) if vm.user_data_sha256 else b""
            )
            write(request_text(vm, user_data))
            return
    write(render_one(view, vm, style))


def request_text(vm: VM, user_data: bytes) -> str:
    """What makes a VM like this one, as `vm create --request` takes it."""
    import msgspec

    from atoll.api.replay import as_request

    return shown_json(msgspec.json.format(msgspec.json.encode(as_request(vm, user_data)), indent=2)) + "\n"


def start(options: argparse.Namespace) -> int:
    return _each_started(options, api.VM_START)


def reboot(options: argparse.Namespace) -> int:
    return _each_started(options, api.VM_REBOOT)


def stop(options: argparse.Namespace) -> int:
    request = stop_request(options)

    def act(client: Client, ref: str) -> VM:
        with _progress(ref, options, ("stopped",)) as progress:
            began = clock.monotonic()
            timeout_s = request.grace_s + STOP_MARGIN_S
            vm = client.call(api.VM_STOP, {"vm": ref}, body=request, timeout_s=timeout_s)
            progress.reached(vm.state, clock.monotonic() - began, vm.ip)
            progress.done()
            return vm

    return _each_result(options, act)


def destroy(options: argparse.Namespace) -> int:
    refs = [check_ref(ref) for ref in options.vm]
    check_can_ask(f"vm destroy {' '.join(refs)}", options)
    with connect(options) as client:
        found: dict[str, VM] = {}

        def look(ref: str) -> None:
            try:
                found[ref] = client.call(api.VM_SHOW, {"vm": ref})
            except NotFound:
                notice(f"{ref}: gone already", options)

        def act(ref: str) -> None:
            with _progress(ref, options, ("destroyed",)) as progress:
                began = clock.monotonic()
                client.call(api.VM_DESTROY, {"vm": ref})
                progress.reached("destroyed", clock.monotonic() - began, found[ref].ip)
                progress.done()

        status = each(options, refs, look)
        if found:
            what = f"VM {next(iter(found.values())).name}" if len(found) == 1 else f"{len(found)} VMs"
            confirm(f"destroy {what}", map(vm_going, found.values()), options)
        failed = each(options, found, act)
        return status or failed


def each(options: argparse.Namespace, refs: Iterable[str], act: Callable[[str], None]) -> int:
    """Act on every one even if one fails; the exit status of the first failure."""
    status = 0
    for ref in refs:
        try:
            act(ref)
        except BrokenPipeError:
            raise
        except Exception as error:
            told = diagnosed(failure.as_atoll_error(error), options)
            failure.tell(told)
            status = status or told.exit_status
    return status


def _each_started(options: argparse.Namespace, route: Stream[api.Wait, None, api.Progress, VM]) -> int:
    wait = wait_request(options)
    ahead = stages_ahead(options.wait_for, START_STAGES)

    def act(client: Client, ref: str) -> VM:
        with _progress(ref, options, ahead) as progress:
            lines = client.stream(route, {"vm": ref}, body=wait)
            return follow(lines, progress)

    return _each_result(options, act)


def _each_result(options: argparse.Namespace, act: Callable[[Client, str], VM]) -> int:
    view = vm_view(clock.now())
    refs = [check_ref(ref) for ref in options.vm]
    results = Results(view, style_of(options, view), several=len(refs) > 1)
    with connect(options) as client:
        status = each(options, refs, lambda ref: results.add(act(client, ref)))
    results.close()
    return status


def _progress(name: str, options: argparse.Namespace, ahead: Sequence[str]) -> Progress:
    return Progress(name, sys.stderr, ahead=ahead, quiet=options.quiet)
