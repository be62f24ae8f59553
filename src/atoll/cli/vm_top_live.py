"""`atoll vm top` at a terminal: what VMs use, as it changes, with keys. Effects: calls the Hypervisor, draws.

What a key does is decided in `pressed`, which is pure.
"""

from __future__ import annotations

import argparse

from msgspec import Struct, structs

from atoll.api.observing import UTILISATION
from atoll.cli.context import connect
from atoll.cli.live import Screen
from atoll.cli.output import render_list, style_of, write
from atoll.cli.vm_top import TOP_VIEW, Rates, rates
from atoll.system import clock

SORTS = {"n": "name", "c": "cpus", "m": "memory", "d": "disk", "w": "written", "s": "sent", "i": "ip"}
"""Keys, and the columns that they sort by. The same again turns the order round."""
KEYS = "q quit  n/c/m/d/w/s/i sort by name, cpus, memory, disk, written, sent, ip  / filter"
ENTER, ESCAPE, ERASE = "\r\n", "\x1b", "\x7f\b"
MOST_TYPED = 64


class Looks(Struct, frozen=True):
    """How the list is shown."""

    sort: str = "cpus"
    descending: bool = True
    filter: str = ""
    """Only VMs that have this in their names."""
    typing: bool = False
    """Keys go into the filter."""
    is_over: bool = False


def pressed(looks: Looks, key: str) -> Looks:
    """How it is shown after a key. Pure."""
    if looks.typing:
        if key in ENTER:
            return structs.replace(looks, typing=False)
        if key == ESCAPE:
            return structs.replace(looks, typing=False, filter="")
        if key in ERASE:
            return structs.replace(looks, filter=looks.filter[:-1])
        if key.isprintable() and len(looks.filter) < MOST_TYPED:
            return structs.replace(looks, filter=looks.filter + key)
        return looks
    if key in ("q", "Q"):
        return structs.replace(looks, is_over=True)
    if key == "/":
        return structs.replace(looks, typing=True, filter="")
    if key == ESCAPE:
        return structs.replace(looks, filter="")
    if (column := SORTS.get(key)) is not None:
        # Names begin with the first, amounts with the most.
        turned = not looks.descending if column == looks.sort else column not in ("name", "ip")
        return structs.replace(looks, sort=column, descending=turned)
    return looks


def shown(all_of_them: list[Rates], looks: Looks) -> list[Rates]:
    """The node, and those that are looked for. Pure."""
    node, *vms = all_of_them
    return [node, *(vm for vm in vms if looks.filter in vm.name)]


def picture(found: list[Rates], looks: Looks, options: argparse.Namespace) -> str:
    style = structs.replace(
        style_of(options, TOP_VIEW), sort=TOP_VIEW.pick([looks.sort])[0], descending=looks.descending
    )
    node, *vms = shown(found, looks)
    # The node stays on top: it is no VM among others.
    ordered = render_list(TOP_VIEW, vms, structs.replace(style, format="name")).split()
    by_name = {vm.name: vm for vm in vms}
    rows = [node, *(by_name[name] for name in ordered)]
    return render_list(TOP_VIEW, rows, structs.replace(style, sort=None))


def last_line(looks: Looks) -> str:
    if looks.typing:
        return f"filter: {looks.filter}_   Enter keeps it, Esc drops it"
    order = "most first" if looks.descending else "least first"
    sorted_by = f"by {looks.sort}, {order}" if looks.sort not in ("name", "ip") else f"by {looks.sort}"
    only = f", only *{looks.filter}*" if looks.filter else ""
    return f"{sorted_by}{only}   {KEYS}"


def follow(options: argparse.Namespace, span_s: float) -> None:
    looks, text = Looks(), ""
    if options.sort:
        looks = Looks(options.sort.lstrip("-").lower().replace("_", "-"), options.sort.startswith("-"))
    with connect(options) as client:
        last, due = client.call(UTILISATION), clock.monotonic() + span_s
        found = rates(last, last)
        try:
            with Screen() as screen:
                while not looks.is_over:
                    text = picture(found, looks, options)
                    screen.draw([*text.splitlines(), "", last_line(looks)])
                    if key := screen.key(max(0.0, due - clock.monotonic())):
                        looks = pressed(looks, key)
                        continue
                    now = client.call(UTILISATION)
                    found, last, due = rates(last, now), now, clock.monotonic() + span_s
        except KeyboardInterrupt:
            pass  # the other way to end it
    write(text)
