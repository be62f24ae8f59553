"""`atoll remote invite`: a token with which somebody elsewhere gets a certificate. Effects: files of the CA.

Works on the files of this machine, as `atoll ca` does: whoever owns the CA decides who is invited.
"""

from __future__ import annotations

import argparse
from datetime import timedelta
from pathlib import Path

from msgspec import Struct

from atoll.api.hypervisor import PORT
from atoll.api.reaching import Address, parse, show
from atoll.cli.arguments import Commands, add_verb, parse_duration_s
from atoll.cli.ca_sign import LIFETIME
from atoll.cli.context import cloud_dir
from atoll.cli.output import Column, View, add_list_options, joined, notice, render_list, style_of, write
from atoll.cli.rights import add_ca_dir, add_rights, ca_dir, claims_of_user, handed_out
from atoll.errors import Conflict, Invalid, NotFound
from atoll.identity import fingerprints, tokens
from atoll.identity.authority import Authority, locked
from atoll.identity.invitations import Invitation, Invitations
from atoll.identity.tokens import MAX_ADDRESSES, Token
from atoll.system import clock


def register(remote: Commands) -> None:
    verb = add_verb(
        remote,
        "invite",
        invite,
        summary="Print a token with which a user elsewhere gets a certificate: good once, and not for long.",
        example="atoll remote invite alice --group web --for 1h",
    )
    verb.add_argument("user", metavar="USER")
    add_rights(verb)
    verb.add_argument(
        "--for", dest="valid_for", default="1h", metavar="TIME", help="of the token; default 1h"
    )
    verb.add_argument(
        "--lifetime", default=LIFETIME, metavar="TIME", help=f"of the certificate; default {LIFETIME}"
    )
    verb.add_argument(
        "--address",
        action="append",
        default=[],
        metavar="HOST[:PORT]",
        help="where they reach this cloud; default: where it listens",
    )
    add_ca_dir(verb)
    verb = add_verb(
        remote,
        "invitations",
        list_,
        summary="List the invitations that nobody has used yet.",
        example="atoll remote invitations",
    )
    add_ca_dir(verb)
    add_list_options(verb)
    verb = add_verb(
        remote,
        "withdraw",
        withdraw,
        summary="Withdraw invitations: one, or all of a user.",
        example="atoll remote withdraw alice",
    )
    verb.add_argument("which", metavar="ID|USER")
    add_ca_dir(verb)


def invite(options: argparse.Namespace) -> None:
    claims = claims_of_user(options)
    lifetime = timedelta(seconds=parse_duration_s("lifetime", options.lifetime))
    valid_for = timedelta(seconds=parse_duration_s("for", options.valid_for))
    directory = cloud_dir(options).absolute()
    addresses = tuple(map(show, addresses_of(options, directory)))
    authority = _authority(options)
    with locked(authority.directory):
        made, secret = Invitations(authority.directory).add(claims, lifetime, valid_for, clock.now())
    token = Token(addresses, fingerprints.of_pem(authority.cert_pem), bytes.fromhex(made.id), secret)
    for said in handed_out(claims):
        notice(said, options)
    notice(
        f"the token is good once, until {made.expires_at:%Y-%m-%d %H:%MZ}; whoever has it first is {options.user};"
        " on their machine: atoll remote add NAME",
        options,
    )
    write(f"{tokens.write(token)}\n")


def addresses_of(options: argparse.Namespace, directory: Path) -> tuple[Address, ...]:
    """Where others reach the cloud of this directory, or the installed node."""
    from atoll.cli.cloud import listen, settings, steps
    from atoll.cli.cloud.layout import Paths
    from atoll.cli.install import record

    if options.address:
        found = tuple(parse("address", text, PORT) for text in options.address)
        if len(found) > MAX_ADDRESSES:
            raise Invalid("address", f"{len(found)} addresses", f"must be at most {MAX_ADDRESSES}")
        return found
    if Paths(directory).installed.exists():
        told = settings.read(record.paths_of(directory, record.load(directory)).agent)
        return ((str(told["ip"]), int(told.get("port", PORT))),)
    cloud = steps.load(Paths(directory))
    if not cloud.listen:
        raise Conflict(
            f"the cloud in {directory} is reached from this machine only",
            hint="let others reach it first: atoll up --listen ADDRESS",
        )
    return listen.reached_at(cloud.listen, cloud.known_as)[:MAX_ADDRESSES]


def list_(options: argparse.Namespace) -> None:
    style = style_of(options, INVITATION_VIEW)
    found = Invitations(_authority(options).directory).all(clock.now())
    write(render_list(INVITATION_VIEW, [Row.of(one) for one in found], style))


def withdraw(options: argparse.Namespace) -> None:
    directory = _authority(options).directory
    kept = Invitations(directory)
    with locked(directory):
        going = [one for one in kept.all(clock.now()) if options.which in (one.id, one.claims.subject)]
        for one in going:
            kept.withdraw(one.id)
    if not going:
        raise NotFound(
            f"withdrawing {options.which}: there is no such invitation", hint="see: atoll remote invitations"
        )
    notice(f"withdrawn: {joined(one.id for one in going)}", options)


def _authority(options: argparse.Namespace) -> Authority:
    return Authority.open(ca_dir(options))


class Row(Struct, frozen=True):
    """An invitation without its hash."""

    id: str
    user: str
    expires_at: str
    groups: tuple[str, ...]
    grants: tuple[str, ...]
    limit: tuple[str, ...] | None
    made_at: str

    @classmethod
    def of(cls, one: Invitation) -> Row:
        claims = one.claims
        made, expires = (f"{when:%Y-%m-%d %H:%M:%SZ}" for when in (one.made_at, one.expires_at))
        return cls(one.id, claims.subject, expires, claims.groups, claims.methods, claims.limit, made)


INVITATION_VIEW: View[Row] = View(
    name=lambda row: row.id,
    columns=(
        Column("id", lambda row: row.id),
        Column("user", lambda row: row.user),
        Column("expires", lambda row: row.expires_at),
        Column("groups", lambda row: joined(row.groups), rank=1, is_long=True),
        Column("grants", lambda row: joined(row.grants), rank=2, is_long=True),
        Column("limit", lambda row: "-" if row.limit is None else joined(row.limit), rank=3, is_long=True),
        Column("made", lambda row: row.made_at, wide=True),
    ),
)
