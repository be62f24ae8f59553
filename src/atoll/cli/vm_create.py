"""`atoll vm create`. Effects: calls the Hypervisor, reads files, prints.

A create that is interrupted is undone at once: the first Ctrl-C gives it up and waits until nothing is left of it, a
second one leaves that to the agent, which undoes by itself what its creator was not told of.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress

from atoll.api import hypervisor as api
from atoll.api.changes import VM_ABANDON, VM_ACKNOWLEDGE
from atoll.api.client import Client
from atoll.cli import failure
from atoll.cli.context import connect
from atoll.cli.output import Results, notice, style_of
from atoll.cli.progress import Progress, follow, stages_ahead
from atoll.cli.vm_request import create_request, read_user_data, replayed_request
from atoll.cli.vm_view import vm_view
from atoll.errors import AtollError, Conflict, TimedOut
from atoll.model.vm import VM
from atoll.system import clock


def create(options: argparse.Namespace) -> int:
    view = vm_view(clock.now())
    style = style_of(options, view)
    if options.request is not None:
        request = replayed_request(options)
    else:
        request = create_request(options, read_user_data(options.user_data))
    name = request.spec.name
    with connect(options) as client:
        progress = Progress(name, sys.stderr, ahead=stages_ahead(options.wait_for), quiet=options.quiet)
        try:
            with progress:
                vm = made(client, request, progress)
            Results(view, style, several=False).add(vm)
            # Told: from here on it stays. Until then the node undoes it, should we be gone.
            client.call(VM_ACKNOWLEDGE, {"vm": vm.ip})
        except KeyboardInterrupt:
            return give_up(client, name, progress.ip or name, options)
    return 0


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


def give_up(client: Client, name: str, ref: str, options: argparse.Namespace) -> int:
    """Undo what was interrupted, and say what came of it. The exit status."""
    try:
        # The stream that was being read is over; this is another connection.
        client.close()
        notice(f"interrupted: undoing VM {name}; Ctrl-C again leaves that to the agent", options)
        client.call(VM_ABANDON, {"vm": ref})
        told = AtollError(f"interrupted: VM {name} is undone: nothing is left")
    except KeyboardInterrupt:
        told = AtollError(
            f"interrupted twice: VM {name} is left to the agent, which undoes it by itself",
            hint=f"to see what becomes of it: atoll vm show {name}",
        )
    except Conflict as error:
        told = AtollError(f"interrupted: {error.brief}", hint=error.hint)
    except AtollError as error:
        told = AtollError(
            f"interrupted: undoing VM {name}: {error.brief}",
            hint=f"the agent undoes it by itself; to see what becomes of it: atoll vm show {name}",
        )
    failure.tell(told)
    return failure.INTERRUPTED
