"""`atoll quota`: what users and groups may have of a node. Effects: calls the Hypervisor, prints."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

from atoll.api import quotas as api
from atoll.api.client import Client
from atoll.cli.arguments import Commands, Parser, add_noun, add_verb
from atoll.cli.context import connect
from atoll.cli.output import Column, View, add_list_options, notice, render_list, style_of, write
from atoll.errors import Invalid
from atoll.model.quota import Holder, HolderKind, QuotaUse, Resource
from atoll.model.size import parse_mib, parse_milli_cpus

NONE = "none"
Ask = Callable[[Client], Sequence[QuotaUse]]
Row = tuple[QuotaUse, Resource]


def register(commands: Commands) -> None:
    quota = add_noun(commands, "quota", "What users and groups may have of a node: limit, used and free.")
    verb = add_verb(
        quota,
        "list",
        list_,
        summary="List everybody who has a quota or owns something (for operators).",
        example="atoll quota list",
    )
    add_list_options(verb)
    verb = add_verb(
        quota,
        "show",
        show,
        summary="Show your own quota and those of your groups; of others, for operators.",
        example="atoll quota show",
    )
    whose = verb.add_mutually_exclusive_group()
    whose.add_argument("--user", metavar="USER")
    whose.add_argument("--group", metavar="GROUP")
    add_list_options(verb)
    verb = add_verb(
        quota,
        "set",
        set_,
        summary="Limit what a user or a group may have (for operators). What they have, they keep.",
        example="atoll quota set --user alice --vms 5 --cpus 4 --memory 8GiB",
    )
    _add_holder(verb)
    for resource, metavar in (
        (Resource.VMS, "N"),
        (Resource.CPUS, "CPUS"),
        (Resource.MEMORY, "SIZE"),
        (Resource.DISK, "SIZE"),
        (Resource.ADDRESSES, "N"),
    ):
        verb.add_argument(
            f"--{resource.word}", metavar=metavar, help="at most; none: no limit; left out: as before"
        )
    add_list_options(verb)
    verb = add_verb(
        quota,
        "delete",
        delete,
        summary="Take a quota away; for a user, the default holds then (for operators).",
        example="atoll quota delete --user alice",
    )
    _add_holder(verb)


def _add_holder(verb: Parser) -> None:
    whose = verb.add_mutually_exclusive_group(required=True)
    whose.add_argument("--user", metavar="USER")
    whose.add_argument("--group", metavar="GROUP")
    whose.add_argument("--default", action="store_true", help="each user who has no quota of their own")


def list_(options: argparse.Namespace) -> None:
    _print(options, lambda client: client.call(api.QUOTA_LIST))


def show(options: argparse.Namespace) -> None:
    query = api.QuotaQuery(options.user, options.group)
    _print_rows(options, lambda client: client.call(api.QUOTA_SHOW, query=query))


def set_(options: argparse.Namespace) -> None:
    request = set_of(options)
    _print_rows(options, lambda client: (client.call(api.QUOTA_SET, body=request),))


def delete(options: argparse.Namespace) -> None:
    holder = holder_of(options)
    with connect(options) as client:
        client.call(api.QUOTA_DELETE, query=api.OfHolder(holder.kind, holder.name))
    notice(f"{holder}: no quota of their own", options)


def _print_rows(options: argparse.Namespace, ask: Ask) -> None:
    """For people a line for each resource: limit, used and free. For programs the same as in a list."""
    if options.output not in ("table", "wide"):
        _print(options, ask)
        return
    style = style_of(options, ROW_VIEW)
    with connect(options) as client:
        rows = [(use, resource) for use in ask(client) for resource in Resource]
    write(render_list(ROW_VIEW, rows, style))


def _print(options: argparse.Namespace, ask: Ask) -> None:
    style = style_of(options, QUOTA_VIEW)
    with connect(options) as client:
        uses = ask(client)
    write(render_list(QUOTA_VIEW, uses, style))


def holder_of(options: argparse.Namespace) -> Holder:
    if options.default:
        return Holder(HolderKind.DEFAULT)
    if options.user is not None:
        return Holder(HolderKind.USER, options.user)
    return Holder(HolderKind.GROUP, options.group)


def set_of(options: argparse.Namespace) -> api.SetQuota:
    holder = holder_of(options)
    given = {each: getattr(options, each.word) for each in Resource}
    limits = {str(each): parse_limit(each, text) for each, text in given.items() if text is not None}
    if not limits:
        raise Invalid("quota", "", "nothing is asked for", hint="see: atoll quota set --help")
    return api.SetQuota(holder.kind, holder.name, **limits)


def parse_limit(resource: Resource, text: str) -> int | None:
    """An amount as people write it; None: no limit."""
    if text == NONE:
        return None
    if resource is Resource.CPUS:
        return parse_milli_cpus(resource.word, text)
    if resource in (Resource.MEMORY, Resource.DISK):
        return parse_mib(resource.word, text)
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise Invalid(resource.word, text, "is not a number", hint="write 5, or none for no limit")
    return int(text)


def _column(resource: Resource) -> Column[QuotaUse]:
    return Column(resource.word, lambda use: _cell(use, resource), key=lambda use: use.used.of(resource))


def _cell(use: QuotaUse, resource: Resource) -> str:
    """What is used of what; `-` where nothing limits it."""
    limit = use.limits.of(resource)
    most = "-" if limit is None else resource.show(limit)
    return most if use.kind is HolderKind.DEFAULT else f"{resource.show(use.used.of(resource))} of {most}"


def _free(use: QuotaUse) -> str:
    if use.kind is HolderKind.DEFAULT:
        return "-"
    left = [(each, use.free.of(each)) for each in Resource]
    return ", ".join(f"{each.word} {each.show(free)}" for each, free in left if free is not None) or "-"


def _source(use: QuotaUse) -> str:
    limited = any(use.limits.of(each) is not None for each in Resource)
    return ("default" if use.by_default else "own") if limited else "none"


def _amount(resource: Resource, amount: int | None) -> str:
    return "-" if amount is None else resource.show(amount)


QUOTA_VIEW: View[QuotaUse] = View(
    name=lambda use: str(Holder(use.kind, use.name)),
    columns=(
        Column("kind", lambda use: use.kind),
        Column("name", lambda use: use.name or "-"),
        *(_column(resource) for resource in Resource),
        Column("quota", _source),
        Column("free", _free, wide=True),
    ),
)
ROW_VIEW: View[Row] = View(
    name=lambda row: str(Holder(row[0].kind, row[0].name)),
    columns=(
        Column("kind", lambda row: row[0].kind),
        Column("name", lambda row: row[0].name or "-"),
        Column("resource", lambda row: row[1].word),
        Column("limit", lambda row: _amount(row[1], row[0].limits.of(row[1]))),
        Column("used", lambda row: _amount(row[1], row[0].used.of(row[1]))),
        Column("free", lambda row: _amount(row[1], row[0].free.of(row[1]))),
        Column("quota", lambda row: _source(row[0])),
    ),
)
