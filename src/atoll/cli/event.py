"""`atoll event`: what happens on a node. Effects: calls the Hypervisor, prints."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator

from msgspec import Struct

from atoll.api import hypervisor as api
from atoll.api.codec import encode
from atoll.api.route import Done
from atoll.cli.arguments import Commands, add_noun, add_verb
from atoll.cli.context import connect
from atoll.cli.output import Column, Results, Style, View, add_show_options, shown_json, style_of, write
from atoll.errors import Invalid
from atoll.model.event import Event
from atoll.model.vm import VM


class Row(Struct, frozen=True):
    """A line of the table: an event, and the VM of it that the line is about."""

    event: Event
    vm: VM | None


EVENT_VIEW: View[Row] = View(
    name=lambda row: f"{row.event.epoch}:{row.event.sequence}",
    columns=(
        Column("at", lambda row: f"{row.event.at:%Y-%m-%d %H:%M:%SZ}"),
        Column("sequence", lambda row: str(row.event.sequence)),
        Column("kind", lambda row: row.event.kind, min_width=9),
        Column("name", lambda row: row.vm.name if row.vm else "-", min_width=12),
        Column("ip", lambda row: row.vm.ip if row.vm else "-", min_width=13),
        Column("state", lambda row: row.vm.state if row.vm else "-", min_width=8),
        Column("reason", lambda row: (row.vm.reason if row.vm else "") or "-"),
        Column("epoch", lambda row: row.event.epoch, wide=True),
    ),
)


def register(commands: Commands) -> None:
    event = add_noun(commands, "event", "Events: the full state of a node, then every change of it.")
    verb = add_verb(
        event,
        "list",
        list_,
        summary="Print the state of the node, or what happened since an event; -o json prints JSON lines.",
        example="atoll event list --follow -o json",
    )
    verb.add_argument("-f", "--follow", action="store_true", help="go on with what happens")
    verb.add_argument(
        "--since", metavar="EPOCH:SEQUENCE", help="resume after this event, as -o name shows it"
    )
    add_show_options(verb)
    verb.add_argument("--no-header", action="store_true", help="rows only")


def list_(options: argparse.Namespace) -> None:
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
        raise Invalid("since", text, "is not EPOCH:SEQUENCE", hint="atoll event list -o name shows it")
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
