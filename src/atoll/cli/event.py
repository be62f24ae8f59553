"""`atoll event`: what happened on a node, and the stream of what happens. Effects: calls the Hypervisor, prints."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from datetime import datetime, timedelta

from msgspec import Struct

from atoll.api import hypervisor as api
from atoll.api.codec import encode
from atoll.api.observing import HISTORY, HistoryQuery
from atoll.api.route import Done
from atoll.cli.arguments import VM_METAVAR, Commands, add_noun, add_verb, parse_duration_s
from atoll.cli.audit import parse_limit
from atoll.cli.context import connect
from atoll.cli.output import (
    Column,
    Results,
    Style,
    View,
    add_show_options,
    render_list,
    shown_json,
    style_of,
    write,
)
from atoll.cli.vm_ref import check_ref
from atoll.errors import Invalid
from atoll.model.event import Event, EventKind
from atoll.model.history import FieldChange, HistoryEntry
from atoll.model.size import show_mib
from atoll.model.vm import VM
from atoll.system import clock


class Row(Struct, frozen=True):
    """A line of the table: an event, and the VM of it that the line is about."""

    event: Event
    vm: VM | None


EVENT_VIEW: View[Row] = View(
    name=lambda row: f"{row.event.epoch}:{row.event.sequence}",
    columns=(
        Column("at", lambda row: f"{row.event.at:%Y-%m-%d %H:%M:%SZ}"),
        Column("sequence", lambda row: str(row.event.sequence), rank=4),
        Column("kind", lambda row: row.event.kind, min_width=9),
        Column("name", lambda row: row.vm.name if row.vm else "-", min_width=12),
        Column("ip", lambda row: row.vm.ip if row.vm else "-", min_width=13, rank=3),
        Column("state", lambda row: row.vm.state if row.vm else "-", min_width=8),
        Column("reason", lambda row: (row.vm.reason if row.vm else "") or "-", rank=2, is_long=True),
        Column("epoch", lambda row: row.event.epoch, wide=True, rank=5),
    ),
)


HISTORY_VIEW: View[HistoryEntry] = View(
    name=lambda entry: entry.name,
    columns=(
        Column("at", lambda entry: f"{entry.at:%Y-%m-%d %H:%M:%SZ}", min_width=20),
        Column("kind", lambda entry: entry.kind, min_width=9, rank=2),
        Column("name", lambda entry: entry.name, min_width=12, rank=1),
        Column("ip", lambda entry: entry.ip, min_width=13, rank=4),
        Column("what", lambda entry: what_changed(entry), min_width=16, rank=1, is_long=True),
        Column("state", lambda entry: entry.state, wide=True, rank=3),
    ),
)


def register(commands: Commands) -> None:
    event = add_noun(commands, "event", "Events: what happened to the VMs of a node.")
    verb = add_verb(
        event,
        "list",
        list_,
        summary="List what happened, with what changed, the oldest first; kept for 30 days, across restarts.",
        example="atoll event list --vm web --since 2h -f",
    )
    verb.add_argument("--vm", metavar=VM_METAVAR, help="only what happened to this VM, also one that is gone")
    verb.add_argument("--since", metavar="TIME", help="only what happened within so long: 30m, 2h, 7d")
    verb.add_argument(
        "--limit", default="1000", metavar="N", help="at most so many, the latest; default 1000"
    )
    verb.add_argument("-f", "--follow", action="store_true", help="go on with what happens")
    add_show_options(verb)
    verb.add_argument("--no-header", action="store_true", help="rows only")
    verb = add_verb(
        event,
        "stream",
        stream,
        summary="Print the state of the node, then every change of it, or what came after an event; for programs.",
        example="atoll event stream --follow -o json",
    )
    verb.add_argument("-f", "--follow", action="store_true", help="go on with what happens")
    verb.add_argument(
        "--since", metavar="EPOCH:SEQUENCE", help="resume after this event, as -o name shows it"
    )
    add_show_options(verb)
    verb.add_argument("--no-header", action="store_true", help="rows only")


def list_(options: argparse.Namespace) -> None:
    style = style_of(options, HISTORY_VIEW)
    query = HistoryQuery(
        limit=parse_limit(options.limit),
        target=None if options.vm is None else check_ref(options.vm),
        since=None if options.since is None else _moment_before(options.since),
        follow=options.follow,
    )
    with connect(options) as client:
        entries = (line for line in client.stream(HISTORY, query=query) if not isinstance(line, Done))
        if not options.follow:
            write(render_list(HISTORY_VIEW, entries, style))
            return
        results = Results(HISTORY_VIEW, style, several=False)
        for entry in entries:
            if style.format == "json":
                write(shown_json(encode(entry)) + "\n")
            else:
                results.add(entry)


def _moment_before(text: str) -> datetime:
    return clock.now() - timedelta(seconds=parse_duration_s("since", text))


def what_changed(entry: HistoryEntry) -> str:
    """state running → stopped; memory 128 MiB → 256 MiB. Pure."""
    words = [_change_text(change) for change in entry.changes if change.field != "reason"]
    if entry.reason:
        words.append(entry.reason)
    return "; ".join(words) or ("-" if entry.kind is not EventKind.CREATED else f"state {entry.state}")


def _change_text(change: FieldChange) -> str:
    name = change.field.removesuffix("_mib").removesuffix("_sha256").replace("_", "-")
    if not change.old and not change.new:
        return f"{name} changed"
    if change.field == "pending":
        return (
            "nothing waits for its next start"
            if change.new == "-"
            else f"waits for its next start: {change.new}"
        )
    if change.field.endswith("_mib"):
        return f"{name} {_mib(change.old)} → {_mib(change.new)}"
    if change.field == "milli_cpus":
        return f"cpus {_cpus(change.old)} → {_cpus(change.new)}"
    return f"{name} {change.old} → {change.new}"


def _mib(text: str) -> str:
    return show_mib(int(text)) if text.isdecimal() else text


def _cpus(text: str) -> str:
    return f"{int(text) / 1000:g}" if text.isdecimal() else text


def stream(options: argparse.Namespace) -> None:
    style = style_of(options, EVENT_VIEW)
    since = parse_since(options.since, follow=options.follow)
    results = Results(EVENT_VIEW, style, several=False)
    with connect(options) as client:
        for line in client.stream(api.EVENTS, query=since):
            if not isinstance(line, Done):
                _print(line, style, results)


def parse_since(text: str | None, *, follow: bool) -> api.Since:
    if text is None:
        return api.Since(follow=follow)
    match = re.fullmatch(r"([A-Za-z0-9._-]{1,64}):(\d{1,15})", text)
    if match is None:
        raise Invalid("since", text, "is not EPOCH:SEQUENCE", hint="atoll event stream -o name shows it")
    return api.Since(epoch=match[1], sequence=int(match[2]), follow=follow)


def rows_of(event: Event) -> Iterator[Row]:
    """One line per VM of the full state; one for anything else."""
    for vm in event.vms or (event.vm,):
        yield Row(event, vm)


def _print(event: Event, style: Style[Row], results: Results[Row]) -> None:
    if style.format == "json":
        write(shown_json(encode(event)) + "\n")
    elif style.format == "yaml":
        from msgspec import to_builtins

        from atoll.cli.yamltext import to_yaml

        write("---\n" + to_yaml(to_builtins(event)))
    elif style.format == "name":
        write(f"{event.epoch}:{event.sequence}\n")
    else:
        for row in rows_of(event):
            results.add(row)
