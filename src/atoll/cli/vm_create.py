"""`atoll vm create`. Effects: calls the Hypervisor, reads files, prints.

A create that is interrupted is undone at once: the first Ctrl-C gives it up and waits until nothing is left of it, a
second one leaves that to the agent, which undoes by itself what its creator was not told of.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import suppress

from msgspec import structs

from atoll.api import hypervisor as api
from atoll.api.changes import VM_ABANDON, VM_ACKNOWLEDGE
from atoll.api.client import Client
from atoll.cli import failure
from atoll.cli.arguments import Commands, add_verb
from atoll.cli.context import connect
from atoll.cli.output import Results, Style, View, add_show_options, notice, style_of
from atoll.cli.progress import Progress, follow, stages_ahead
from atoll.cli.vm_request import (
    add_create_options,
    create_request,
    parse_count,
    read_user_data,
    replayed_request,
)
from atoll.cli.vm_view import vm_view
from atoll.errors import AtollError, Conflict, Malformed, TimedOut
from atoll.model.image import Image
from atoll.model.vm import VM
from atoll.system import clock

DEFAULT_IMAGE = "appliance"


def register(vm: Commands) -> None:
    add = add_verb(
        vm,
        "create",
        create,
        summary="Create and start VMs, and wait until they are of use.",
        example="atoll vm create --name web --memory 256MiB --wait-for port:80 --count 3",
    )
    add_create_options(add)
    add_show_options(add)


def create(options: argparse.Namespace) -> int:
    view = vm_view(clock.now())
    style = style_of(options, view)
    count = parse_count(options.count)
    if options.request is not None:
        request = replayed_request(options)
    else:
        request = create_request(options, read_user_data(options.user_data))
    if count > 1 and options.request_id is not None:
        raise Malformed("vm create: --count and --request-id cannot be combined", hint="an id is for one VM")
    with connect(options) as client:
        request = filled_in(client, request, options)
        if count > 1:
            return _create_several(options, client, numbered(request, count), (view, style))
        return _create_one(options, client, request, (view, style))


def filled_in(client: Client, request: api.CreateVm, options: argparse.Namespace) -> api.CreateVm:
    """What was not said: a name that nobody has on the node, and the image that there is for it."""
    spec = request.spec
    if options.name is None and options.request is None:
        from random import choice

        from atoll.cli.names import readable

        taken = {vm.name for vm in client.call(api.VM_LIST)}
        # Also where several get a number behind it.
        bases = {name.rpartition("-")[0] for name in taken}
        spec = structs.replace(spec, name=readable(taken | bases, choice))
    if options.image is None and options.request is None:
        images = client.call(api.IMAGE_LIST)
        spec = structs.replace(spec, image=default_image(images, spec.driver))
    return structs.replace(request, spec=spec)


def default_image(images: Sequence[Image], kind: str) -> str:
    """The image of a VM that was not given one: ours, or the only one that there is for its kind. Pure."""
    fitting = [image.name for image in images if kind in image.kinds]
    if DEFAULT_IMAGE in fitting:
        return DEFAULT_IMAGE
    if len(fitting) == 1:
        return fitting[0]
    known = f"one of: {', '.join(fitting)}" if fitting else f"there is none for {kind}; see: atoll image list"
    raise Malformed("vm create: which image? say --image", hint=known)


def numbered(request: api.CreateVm, count: int) -> dict[str, api.CreateVm]:
    """The same VM so many times: web-1, web-2, web-3. Pure."""
    names = [f"{request.spec.name}-{number}" for number in range(1, count + 1)]
    return {name: structs.replace(request, spec=structs.replace(request.spec, name=name)) for name in names}


Look = tuple[View[VM], Style[VM]]


def _create_one(options: argparse.Namespace, client: Client, request: api.CreateVm, look: Look) -> int:
    name = request.spec.name
    progress = Progress(name, sys.stderr, ahead=stages_ahead(options.wait_for), quiet=options.quiet)
    try:
        with progress:
            vm = made(client, request, progress)
        Results(*look, several=False).add(vm)
        # Told: from here on it stays. Until then the node undoes it, should we be gone.
        client.call(VM_ACKNOWLEDGE, {"vm": vm.ip})
    except KeyboardInterrupt:
        return give_up(client, {name: progress.ip or name}, options)
    return 0


def _create_several(
    options: argparse.Namespace, client: Client, wanted: dict[str, api.CreateVm], look: Look
) -> int:
    """A few at a time. Each of them is told as it comes, and stays from then on."""
    from atoll.cli import several

    under_way: dict[str, Progress] = {}

    def act(own: Client, name: str) -> VM:
        progress = under_way[name] = Progress(name, sys.stderr, quiet=True)
        try:
            with progress:
                vm = made(own, wanted[name], progress)
            own.call(VM_ACKNOWLEDGE, {"vm": vm.ip})
        except AtollError:
            del under_way[name]
            raise
        del under_way[name]
        return vm

    try:
        outcome = several.run(options, list(wanted), act, "made")
    except KeyboardInterrupt:
        return give_up(client, {name: one.ip or name for name, one in list(under_way.items())}, options)
    results = Results(*look, several=True)
    for vm in outcome.done.values():
        results.add(vm)
    results.close()
    return outcome.status


def made(client: Client, request: api.CreateVm, progress: Progress) -> VM:
    """The VM. One that runs, and did not come as far as was asked, stays: its creator is told so."""
    try:
        lines = client.stream(api.VM_CREATE, body=request)
        return follow(lines, progress)
    except (TimedOut, Conflict):
        if progress.ip:
            with suppress(AtollError):
                client.call(VM_ACKNOWLEDGE, {"vm": progress.ip})
        raise


def give_up(client: Client, refs: dict[str, str], options: argparse.Namespace) -> int:
    """Undo what was interrupted, by name and by what the node knows it by; say what came of it. The exit status."""
    names = ", ".join(refs)
    try:
        # The stream that was being read is over; this is another connection.
        client.close()
        notice(f"interrupted: undoing VM {names}; Ctrl-C again leaves that to the agent", options)
        kept = [name for name, ref in refs.items() if not _abandoned(client, ref)]
        told = AtollError(undone_text([name for name in refs if name not in kept], kept))
    except KeyboardInterrupt:
        told = AtollError(
            f"interrupted twice: left VM {names} to the agent, which undoes it by itself",
            hint="to see what becomes of it: atoll vm list",
        )
    except AtollError as error:
        told = AtollError(
            f"interrupted: undoing VM {names}: {error.brief}",
            hint="the agent undoes it by itself; to see what becomes of it: atoll vm list",
        )
    failure.tell(told)
    return failure.INTERRUPTED


def _abandoned(client: Client, ref: str) -> bool:
    """Whether nothing is left of it. Not so of one that was told of in the last moment."""
    try:
        client.call(VM_ABANDON, {"vm": ref})
    except Conflict:
        return False
    return True


def undone_text(undone: Sequence[str], kept: Sequence[str]) -> str:
    """What came of an interrupt. Pure."""
    words = [f"undone VM {', '.join(undone)}: nothing is left"] if undone else []
    words += [f"VM {', '.join(kept)} was made already, and stays"] if kept else []
    return f"interrupted: {'; '.join(words) or 'nothing was under way'}"
