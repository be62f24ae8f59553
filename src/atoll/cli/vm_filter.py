"""Which VMs a user asks for: the options of `vm list`, as a filter that the node applies. Pure."""

from __future__ import annotations

import argparse

from atoll.api.hypervisor import VmFilter
from atoll.cli.arguments import Parser, parse_tags
from atoll.model.checks import check_name, check_principal
from atoll.model.vm import VmState


def add_filter_options(parser: Parser) -> None:
    parser.add_argument(
        "--tag", action="append", default=[], metavar="KEY=VALUE", help="only with this tag; may be repeated"
    )
    parser.add_argument("--owner", metavar="USER", help="only of this user")
    parser.add_argument("--mine", action="store_true", help="only those that you own, by name or by group")
    states = [str(state) for state in VmState]
    parser.add_argument("--state", choices=states, metavar="STATE", help=f"only {', '.join(states)}")
    parser.add_argument("--kind", metavar="KIND", help="only of this kind: qemu, lxc, docker")


def filter_of(options: argparse.Namespace) -> VmFilter | None:
    """None: all of them."""
    tags = parse_tags(options.tag)
    if tags:
        from msgspec import json

        encoded = json.encode(tags).decode()
    wanted = VmFilter(
        owner=None if options.owner is None else check_principal("owner", options.owner),
        mine=options.mine,
        state=options.state and VmState(options.state),
        kind=options.kind and check_name("kind", options.kind),
        tags=encoded if tags else None,
    )
    return None if wanted == VmFilter() else wanted
