"""`atoll lease`: who has which address by DHCP. Effects: calls the Hypervisor, prints."""

from __future__ import annotations

import argparse

from atoll.api import hypervisor as api
from atoll.api.codec import encode
from atoll.api.route import Done
from atoll.cli.arguments import Commands, add_noun, add_verb
from atoll.cli.context import connect
from atoll.cli.output import Column, Results, View, add_list_options, render_list, shown_json, style_of, write
from atoll.model.lease import Lease

LEASE_VIEW: View[Lease] = View(
    name=lambda lease: lease.ip,
    columns=(
        Column("ip", lambda lease: lease.ip, min_width=13),
        Column("mac", lambda lease: lease.mac, min_width=17, rank=2),
        Column("hostname", lambda lease: lease.hostname, min_width=12, rank=1, is_long=True),
        Column("subnet", lambda lease: lease.subnet, min_width=8, rank=4),
        Column("holder", lambda lease: lease.holder, min_width=7, rank=3),
        Column("state", lambda lease: lease.state, min_width=8, rank=1),
        Column(
            "since",
            lambda lease: f"{lease.changed_at:%Y-%m-%d %H:%M:%SZ}" if lease.changed_at else "-",
            min_width=20,
            rank=5,
        ),
        Column("image", lambda lease: (lease.boot.image if lease.boot else None) or "-", wide=True, rank=6),
    ),
)


def register(commands: Commands) -> None:
    lease = add_noun(commands, "lease", "Leases: which machine has which address by DHCP.")
    verb = add_verb(
        lease,
        "list",
        list_,
        summary="List the leases of VMs and other machines; --follow with -o json prints JSON lines.",
        example="atoll lease list --follow",
    )
    verb.add_argument("-f", "--follow", action="store_true", help="go on with what happens")
    add_list_options(verb)


def list_(options: argparse.Namespace) -> None:
    style = style_of(options, LEASE_VIEW)
    results = Results(LEASE_VIEW, style, several=False)
    leases: list[Lease] = []
    with connect(options) as client:
        for line in client.stream(api.LEASE_LIST, query=api.Follow(follow=options.follow)):
            if isinstance(line, Done):
                continue
            if not options.follow:
                leases.append(line)
            elif style.format == "json":
                write(shown_json(encode(line)) + "\n")
            else:
                results.add(line)
    if not options.follow:
        write(render_list(LEASE_VIEW, leases, style))
