"""`atoll vm top`: what VMs use. Effects: calls the Hypervisor, prints. Rates come of two looks at counters."""

from __future__ import annotations

import argparse
import sys
import time

from msgspec import Struct

from atoll.api.observing import UTILISATION
from atoll.cli.arguments import Commands, add_verb, parse_duration_s
from atoll.cli.context import connect
from atoll.cli.output import Column, View, add_list_options, ip_key, render_list, style_of, write
from atoll.errors import Invalid
from atoll.model.size import show_bytes, show_mib
from atoll.model.utilisation import Usage, Utilisation

LEAST_S, MOST_S = 0.1, 3600.0


class Rates(Struct, frozen=True):
    """What one used between two looks, a second, and has now."""

    name: str
    ip: str
    state: str
    cpus: float
    memory_mib: int
    disk_mib: int
    read_bytes_per_s: float
    written_bytes_per_s: float
    received_bytes_per_s: float
    sent_bytes_per_s: float


def register(vm: Commands) -> None:
    add = add_verb(
        vm,
        "top",
        top,
        summary="Show what VMs use: CPUs, memory, disk and network; live at a terminal. The node comes first.",
        example="atoll vm top --sort=-cpus",
    )
    add.add_argument("--for", dest="span", default="1s", metavar="TIME", help="between two looks; default 1s")
    add.add_argument(
        "--once", action="store_true", help="look once, also at a terminal, which else is followed"
    )
    add_list_options(add)


def top(options: argparse.Namespace) -> None:
    style = style_of(options, TOP_VIEW)
    span_s = parse_duration_s("for", options.span)
    if not LEAST_S <= span_s <= MOST_S:
        raise Invalid("for", options.span, f"must be from {LEAST_S:g} to {MOST_S:g} seconds")
    if style.is_text and not options.once and sys.stdin.isatty() and sys.stdout.isatty():
        from atoll.cli.vm_top_live import follow

        follow(options, span_s)
        return
    with connect(options) as client:
        first = client.call(UTILISATION)
        time.sleep(span_s)
        second = client.call(UTILISATION)
    write(render_list(TOP_VIEW, rates(first, second), style))


def rates(first: Utilisation, second: Utilisation) -> list[Rates]:
    """What was used between two looks. A VM that was not there at the first used nothing yet. Pure."""
    span_s = max((second.at - first.at).total_seconds(), 1e-6)
    before = {vm.ip: vm.usage for vm in first.vms}
    found = [_rates("(node)", "-", "-", first.node, second.node, span_s)]
    for vm in second.vms:
        found.append(_rates(vm.name, vm.ip, vm.state, before.get(vm.ip, vm.usage), vm.usage, span_s))
    return found


def _rates(name: str, ip: str, state: str, old: Usage, new: Usage, span_s: float) -> Rates:
    def rate(field: str) -> float:
        # A machine that was started again counts from nothing.
        return max(0.0, float(getattr(new, field) - getattr(old, field))) / span_s

    return Rates(
        name=name,
        ip=ip,
        state=state,
        cpus=round(rate("cpu_s"), 3),
        memory_mib=new.memory_mib,
        disk_mib=new.disk_mib,
        read_bytes_per_s=round(rate("disk_read_bytes")),
        written_bytes_per_s=round(rate("disk_written_bytes")),
        received_bytes_per_s=round(rate("received_bytes")),
        sent_bytes_per_s=round(rate("sent_bytes")),
    )


def show_rate(bytes_per_s: float) -> str:
    """In its largest unit: 1.5 MiB/s."""
    return f"{show_bytes(bytes_per_s)}/s"


TOP_VIEW: View[Rates] = View(
    name=lambda one: one.name,
    columns=(
        Column("name", lambda one: one.name, min_width=12),
        Column("ip", lambda one: one.ip, key=lambda one: ip_key(one.ip) if one.ip != "-" else (), rank=6),
        Column("state", lambda one: one.state, rank=7),
        Column("cpus", lambda one: f"{one.cpus:.2f}", key=lambda one: one.cpus),
        Column("memory", lambda one: show_mib(one.memory_mib), key=lambda one: one.memory_mib),
        Column("disk", lambda one: show_mib(one.disk_mib), key=lambda one: one.disk_mib, rank=5),
        Column(
            "read", lambda one: show_rate(one.read_bytes_per_s), key=lambda one: one.read_bytes_per_s, rank=4
        ),
        Column(
            "written",
            lambda one: show_rate(one.written_bytes_per_s),
            key=lambda one: one.written_bytes_per_s,
            rank=4,
        ),
        Column(
            "received",
            lambda one: show_rate(one.received_bytes_per_s),
            key=lambda one: one.received_bytes_per_s,
            rank=3,
        ),
        Column(
            "sent", lambda one: show_rate(one.sent_bytes_per_s), key=lambda one: one.sent_bytes_per_s, rank=3
        ),
    ),
)
