"""`atoll audit`: who did what on a node. Effects: calls the Hypervisor, prints."""

from __future__ import annotations

import argparse

from atoll.api.observing import AUDIT, MAX_ENTRIES, AuditQuery
from atoll.api.route import Done
from atoll.cli.arguments import Commands, add_noun, add_verb
from atoll.cli.context import connect
from atoll.cli.output import Column, View, add_list_options, render_list, style_of, write
from atoll.errors import Invalid
from atoll.model.audit import AuditEntry


def register(commands: Commands) -> None:
    audit = add_noun(commands, "audit", "The audit log: who did what, to which VM, with which result.")
    add = add_verb(
        audit,
        "list",
        list_,
        summary="List what was done, the oldest first. For operators of the node.",
        example="atoll audit list --user alice --limit 20",
    )
    add.add_argument("--user", metavar="USER", help="only what this user did")
    add.add_argument("--target", metavar="IP|NAME", help="only what was done to this VM")
    add.add_argument("--method", metavar="METHOD", help="only this, such as vm.destroy")
    add.add_argument("--limit", default="1000", metavar="N", help="at most so many, the latest; default 1000")
    add_list_options(add)


def list_(options: argparse.Namespace) -> None:
    style = style_of(options, AUDIT_VIEW)
    query = AuditQuery(
        limit=parse_limit(options.limit), user=options.user, target=options.target, method=options.method
    )
    with connect(options) as client:
        lines = client.stream(AUDIT, query=query)
        entries = [line for line in lines if not isinstance(line, Done)]
    write(render_list(AUDIT_VIEW, entries, style))


def parse_limit(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text[:9]) <= MAX_ENTRIES:
        raise Invalid("limit", text, f"must be a whole number from 1 to {MAX_ENTRIES}")
    return int(text)


AUDIT_VIEW: View[AuditEntry] = View(
    name=lambda entry: f"{entry.at:%Y-%m-%dT%H:%M:%S.%fZ}",
    columns=(
        Column("at", lambda entry: f"{entry.at:%Y-%m-%d %H:%M:%SZ}", key=lambda entry: entry.at),
        Column("user", lambda entry: entry.user, rank=1, is_long=True),
        Column("method", lambda entry: entry.method, rank=1, is_long=True),
        Column("target", lambda entry: entry.target or "-", rank=3, is_long=True),
        Column("name", lambda entry: entry.name or "-", rank=2, is_long=True),
        Column("result", lambda entry: entry.result, rank=1),
        Column("calls", lambda entry: str(entry.count), key=lambda entry: entry.count, wide=True, rank=5),
        Column("took", lambda entry: f"{entry.elapsed_s:.2f}s", key=lambda entry: entry.elapsed_s, rank=4),
        Column("detail", lambda entry: entry.detail or "-", wide=True, rank=6, is_long=True),
        Column("brief", lambda entry: entry.brief or "-", wide=True, rank=2, is_long=True),
    ),
)
