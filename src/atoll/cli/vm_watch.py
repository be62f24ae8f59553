"""`atoll vm list --watch`: the list as it changes. Effects: calls the Hypervisor, draws on the terminal."""

from __future__ import annotations

import argparse

from atoll.api.client import Client
from atoll.api.hypervisor import VM_LIST, VmFilter
from atoll.cli.context import connect, find
from atoll.cli.live import SETTLE_S, Screen, check_terminal, wake_on_events
from atoll.cli.output import render_list, style_of, write
from atoll.cli.vm_view import vm_view
from atoll.errors import Malformed, TimedOut, TooMany, Unreachable
from atoll.system import clock

TICK_S = 1.0
"""Ages grow also when nothing happens."""


def watch(options: argparse.Namespace, wanted: VmFilter | None) -> None:
    check_terminal("vm list --watch", "atoll event stream --follow -o json")
    if options.output not in ("table", "wide"):
        raise Malformed(f"vm list --watch: -o {options.output} cannot be drawn", hint="leave out one of them")
    picture = ""
    with connect(options) as client:
        try:
            with Screen() as screen:
                wake_on_events(find(options), screen)
                while True:
                    picture = _picture(client, options, wanted)
                    screen.draw([*picture.splitlines(), "", "q: quit"])
                    if "q" in (screen.key(SETTLE_S, wakes=False), screen.key(TICK_S)):
                        break
        except KeyboardInterrupt:
            pass  # the other way to end it
    # What was last seen stays on the screen.
    write(picture)


def _picture(client: Client, options: argparse.Namespace, wanted: VmFilter | None) -> str:
    view = vm_view(clock.now())
    try:
        vms = client.call(VM_LIST, query=wanted)
    except (Unreachable, TimedOut, TooMany) as error:
        # It may be back in a moment.
        return f"{error.brief}\n"
    return render_list(view, vms, style_of(options, view))
