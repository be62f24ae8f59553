"""`atoll share`: folders of a node that guests may have. Effects: calls the Hypervisor, prints."""

from __future__ import annotations

import argparse

from atoll.api.shares import SHARE_ALLOW, SHARE_DENY, SHARE_LIST, ShareName
from atoll.cli.arguments import Commands, add_noun, add_verb
from atoll.cli.context import connect
from atoll.cli.output import (
    Column,
    Results,
    View,
    add_list_options,
    add_show_options,
    joined,
    notice,
    render_list,
    style_of,
    write,
)
from atoll.model.checks import check_name
from atoll.model.share import Share, ShareUse


def register(commands: Commands) -> None:
    share = add_noun(commands, "share", "Folders of a node that guests may have.")
    verb = add_verb(
        share,
        "list",
        list_,
        summary="List the folders that you may have in guests; operators see all, and where they are.",
        example="atoll share list -o wide",
    )
    add_list_options(verb)
    verb = add_verb(
        share,
        "allow",
        allow,
        summary="Let guests have a folder of the node (for operators). Without users, for operators alone.",
        example="atoll share allow data /srv/data --user alice --read-only",
    )
    verb.add_argument("name", metavar="NAME", help="what it is called from now on")
    verb.add_argument("path", metavar="PATH", help="the folder on the node; no link is followed")
    verb.add_argument(
        "--read-only", action="store_true", help="guests only read; default: they write as its owner"
    )
    verb.add_argument("--user", action="append", default=[], metavar="USER", help="for whom; may be repeated")
    verb.add_argument(
        "--group", action="append", default=[], metavar="GROUP", help="for whom; may be repeated"
    )
    verb.add_argument("--everyone", action="store_true", help="for all users of the node")
    add_show_options(verb, quiet=True)
    verb = add_verb(
        share,
        "deny",
        deny,
        summary="Let no guest have a folder any longer (for operators). Refused while VMs have it.",
        example="atoll share deny data",
    )
    verb.add_argument("name", metavar="SHARE")


def list_(options: argparse.Namespace) -> None:
    style = style_of(options, SHARE_VIEW)
    with connect(options) as client:
        uses = client.call(SHARE_LIST)
    write(render_list(SHARE_VIEW, uses, style))


def allow(options: argparse.Namespace) -> None:
    style = style_of(options, SHARE_VIEW)
    share = share_of(options)
    with connect(options) as client:
        use = client.call(SHARE_ALLOW, body=share)
    notice(f"share {use.name}: {use.path}, {share.access}, for {_for(use)}", options)
    Results(SHARE_VIEW, style, several=False).add(use)


def deny(options: argparse.Namespace) -> None:
    name = check_name("share", options.name)
    with connect(options) as client:
        client.call(SHARE_DENY, query=ShareName(name))


def share_of(options: argparse.Namespace) -> Share:
    """What was typed."""
    return Share(
        options.name,
        options.path,
        options.read_only,
        tuple(options.user),
        tuple(options.group),
        options.everyone,
    )


def _for(use: ShareUse) -> str:
    if use.everyone:
        return "everyone"
    return ", ".join([*use.users, *(f"group {group}" for group in use.groups)]) or "operators"


SHARE_VIEW: View[ShareUse] = View(
    name=lambda use: use.name,
    columns=(
        Column("name", lambda use: use.name),
        Column("path", lambda use: use.path or "-", is_long=True, rank=1),
        Column("access", lambda use: "read-only" if use.read_only else "read-write", rank=2),
        Column("for", lambda use: _for(use) if use.path else "you", is_long=True, rank=3),
        Column("vms", lambda use: joined(use.vms), is_long=True, rank=4),
        Column("problem", lambda use: use.problem or "-", is_long=True, rank=5),
        Column("origin", lambda use: use.origin, wide=True),
    ),
)
