"""`atoll vm`: VMs of a node. Effects: calls the Hypervisor, prints."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress

from atoll.api import hypervisor as api
from atoll.api.changes import VM_ACKNOWLEDGE
from atoll.api.client import Client
from atoll.api.route import Done, Stream
from atoll.cli import failure, vm_change, vm_top
from atoll.cli.arguments import Commands, add_noun, add_verb
from atoll.cli.context import connect, diagnosed
from atoll.cli.output import (
    Results,
    add_list_options,
    add_show_options,
    notice,
    render_list,
    render_one,
    style_of,
    write,
)
from atoll.cli.progress import Progress, stages_ahead
from atoll.cli.terminal import confirm
from atoll.cli.vm_console import add_console_verbs
from atoll.cli.vm_exec import add_exec_verbs
from atoll.cli.vm_forward import add_forward_verb
from atoll.cli.vm_request import (
    add_create_options,
    add_stop_options,
    add_vm_argument,
    add_wait_options,
    check_ref,
    create_request,
    read_user_data,
    replayed_request,
    stop_request,
    wait_request,
)
from atoll.cli.vm_view import vm_view
from atoll.errors import AtollError, Conflict, NotFound, TimedOut, Unreachable
from atoll.model.vm import STAGES, VM
from atoll.system import clock

START_STAGES = STAGES[STAGES.index("started") :]
STOP_MARGIN_S = 30.0
POLL_S = 0.5


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
    add = add_verb(vm, "list", list_, summary="List VMs.", example="atoll vm list -o wide --sort memory")
    add_list_options(add)
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
    add.add_argument("-y", "--yes", action="store_true", help="do not ask")
    vm_change.register(vm)
    vm_top.register(vm)
    add_console_verbs(vm)
    add_exec_verbs(vm)
    add_forward_verb(vm)
    add = add_verb(
        vm, "log", log, summary="Print what a guest wrote to its console.", example="atoll vm log -f web"
    )
    add_vm_argument(add)
    add.add_argument("-f", "--follow", action="store_true", help="go on with what it writes")
    add = add_verb(
        vm,
        "user-data",
        user_data,
        summary="Print the user data of a VM.",
        example="atoll vm user-data web > user-data",
    )
    add_vm_argument(add)


def create(options: argparse.Namespace) -> None:
    view = vm_view(clock.now())
    style = style_of(options, view)
    if options.request is not None:
        request = replayed_request(options)
    else:
        request = create_request(options, read_user_data(options.user_data))
    with connect(options) as client:
        with _progress(request.spec.name, options, stages_ahead(options.wait_for)) as progress:
            vm = _made(client, request, progress)
        Results(view, style, several=False).add(vm)
        # Told: from here on it stays. Until then the node undoes it, should we be gone.
        client.call(VM_ACKNOWLEDGE, {"vm": vm.ip})


def _made(client: Client, request: api.CreateVm, progress: Progress) -> VM:
    """The VM. One that runs, and did not come as far as was asked, stays: its creator is told so."""
    try:
        lines = client.stream(api.VM_CREATE, body=request)
        return follow(lines, progress)
    except (TimedOut, Conflict):
        if progress.ip:
            with suppress(AtollError):
                client.call(VM_ACKNOWLEDGE, {"vm": progress.ip})
        raise


def list_(options: argparse.Namespace) -> None:
    view = vm_view(clock.now())
    style = style_of(options, view)
    with connect(options) as client:
        vms = client.call(api.VM_LIST)
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

    return msgspec.json.format(msgspec.json.encode(as_request(vm, user_data)), indent=2).decode() + "\n"


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
            names = ", ".join(f"{vm.name} ({vm.ip}, {vm.state})" for vm in found.values())
            confirm(f"destroy {names} and all that is theirs?", options)
        failed = each(options, found, act)
        return status or failed


def log(options: argparse.Namespace) -> None:
    ref = check_ref(options.vm)
    with connect(options) as client:
        at = _print_log(client, ref, None, options)
        while options.follow:
            time.sleep(POLL_S)
            try:
                at = _print_log(client, ref, at, options)
            except NotFound:
                notice(f"{ref}: gone", options)
                return


def user_data(options: argparse.Namespace) -> None:
    ref = check_ref(options.vm)
    with connect(options) as client:
        for chunk in client.download(api.VM_USER_DATA, {"vm": ref}):
            sys.stdout.buffer.write(chunk)


def follow(lines: Iterator[api.Progress | Done[VM]], progress: Progress) -> VM:
    """The VM at the end of a stream whose stages go to the progress line."""
    for line in lines:
        if isinstance(line, Done):
            progress.done()
            return line.result
        progress.reached(line.stage, line.elapsed_s, line.ip)
    raise Unreachable("the stream ended before its result", hint="see: atoll status, then: atoll vm list")


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


def _print_log(client: Client, ref: str, at: int | None, options: argparse.Namespace) -> int:
    """Print what is new after a place in all that the guest ever wrote; the place behind it."""
    begin, chunks = client.download_part(api.VM_LOG, {"vm": ref}, query=api.LogFrom(at))
    if at is not None and begin > at:
        notice(f"… {begin - at:,} bytes are gone …", options)
    end = begin
    for chunk in chunks:
        sys.stdout.buffer.write(chunk)
        end += len(chunk)
    sys.stdout.buffer.flush()
    # The guest has not written that much: it is another one, and all of its log is new.
    return 0 if at is not None and begin < at else end
