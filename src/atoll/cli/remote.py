"""`atoll remote`: clouds elsewhere, by name. Effects: files in the user's configuration directory.

`add` is in remote_add.py; what is done on the machine of a CA, to invite somebody, in remote_invite.py.
"""

from __future__ import annotations

import argparse
from datetime import datetime

from msgspec import Struct

from atoll.cli import remote_add, remote_invite, remotes
from atoll.cli.arguments import Commands, add_noun, add_verb
from atoll.cli.asking import add_yes_option, confirm
from atoll.cli.choosing import choose
from atoll.cli.output import (
    Column,
    View,
    add_list_options,
    add_show_options,
    joined,
    render_list,
    render_one,
    style_of,
    write,
)
from atoll.errors import AtollError, Malformed
from atoll.identity import fingerprints
from atoll.identity.inspection import Description, describe
from atoll.system import clock


class Row(Struct, frozen=True):
    """What is known of a remote without asking it."""

    name: str
    in_use: bool
    """Commands are about it, unless they say otherwise."""
    addresses: tuple[str, ...] = ()
    user: str = ""
    state: str = ""
    """`ready`, `waiting` for its certificate, `expired`, or `broken`."""
    ends_at: datetime | None = None
    groups: tuple[str, ...] = ()
    grants: tuple[str, ...] = ()
    limit: tuple[str, ...] | None = None
    fingerprint: str = ""
    """Of the CA that is trusted."""
    directory: str = ""


def register(commands: Commands) -> None:
    remote = add_noun(
        commands, "remote", "Clouds elsewhere: invite somebody to this one, add and use others."
    )
    remote_invite.register(remote)
    remote_add.register(remote)
    verb = add_verb(remote, "list", list_, summary="List the remotes.", example="atoll remote list")
    add_list_options(verb)
    verb = add_verb(
        remote,
        "show",
        show,
        summary="Show a remote: addresses, user, fingerprint of its CA.",
        example="atoll remote show prod",
    )
    verb.add_argument("name", nargs="?", metavar="REMOTE", help="default: the one in use")
    add_show_options(verb)
    verb = add_verb(
        remote,
        "use",
        use,
        summary="Let commands be about this remote from now on; local: about the cloud on this machine.",
        example="atoll remote use prod",
    )
    verb.add_argument("name", metavar="REMOTE|local")
    verb = add_verb(
        remote,
        "remove",
        remove,
        summary="Forget a remote, its key and its certificate.",
        example="atoll remote remove prod --yes",
    )
    verb.add_argument("name", metavar="REMOTE")
    add_yes_option(verb)


def list_(options: argparse.Namespace) -> None:
    style = style_of(options, REMOTE_VIEW)
    current = choose(options).remote
    write(render_list(REMOTE_VIEW, [row_of(name, current) for name in remotes.names()], style))


def show(options: argparse.Namespace) -> None:
    style = style_of(options, REMOTE_VIEW)
    current = choose(options).remote
    name = options.name or current
    if name == remotes.LOCAL:
        raise Malformed("remote show: the cloud in use is the one on this machine", hint="see: atoll status")
    remotes.load(name)
    write(render_one(REMOTE_VIEW, row_of(name, current), style))


def use(options: argparse.Namespace) -> None:
    remotes.use(options.name)


def remove(options: argparse.Namespace) -> None:
    found = remotes.load(options.name)
    row = row_of(options.name, "")
    going = [
        f"{found.directory}: the key and certificate of {row.user or 'nobody'} at {joined(row.addresses)}"
    ]
    confirm(f"remove remote {options.name}", going, options)
    remotes.remove(options.name)


def row_of(name: str, current: str) -> Row:
    """One that is broken is listed too, so that it can be removed."""
    in_use = name == current
    try:
        found = remotes.load(name)
        fingerprint = fingerprints.show(fingerprints.of_pem(found.ca.read_bytes()))
        certificate = describe(found.cert.read_bytes())[0] if found.is_whole else None
    except (AtollError, OSError):
        return Row(name, in_use, state="broken", directory=str(remotes.place_of(name)))
    return Row(
        name,
        in_use,
        found.record.addresses,
        certificate.subject if certificate else found.record.user,
        _state(certificate),
        certificate.not_after if certificate else None,
        certificate.groups if certificate else (),
        certificate.methods if certificate else (),
        certificate.limit if certificate else None,
        fingerprint,
        str(found.directory),
    )


def _state(certificate: Description | None) -> str:
    if certificate is None:
        return "waiting"
    return "expired" if clock.now() > certificate.not_after else "ready"


_COLOURS = {"ready": "32", "waiting": "33", "expired": "31", "broken": "31"}
REMOTE_VIEW: View[Row] = View(
    name=lambda row: row.name,
    columns=(
        Column("name", lambda row: row.name),
        Column("in-use", lambda row: "yes" if row.in_use else "-", rank=1),
        Column("user", lambda row: row.user or "-"),
        Column("state", lambda row: row.state, paint=lambda row: _COLOURS.get(row.state, "")),
        Column("ends", lambda row: f"{row.ends_at:%Y-%m-%d %H:%MZ}" if row.ends_at else "-", rank=2),
        Column("addresses", lambda row: joined(row.addresses), rank=3, is_long=True),
        Column("groups", lambda row: joined(row.groups), detail=True),
        Column("grants", lambda row: joined(row.grants), detail=True),
        Column("limit", lambda row: "-" if row.limit is None else joined(row.limit), detail=True),
        Column("fingerprint", lambda row: row.fingerprint or "-", detail=True),
        Column("directory", lambda row: row.directory, detail=True),
    ),
)
