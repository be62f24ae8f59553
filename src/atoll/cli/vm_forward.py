"""`atoll vm forward`: its options. Effects: those of forwarding.py."""

from __future__ import annotations

import argparse

from atoll.cli.arguments import Commands, add_verb
from atoll.cli.vm_ref import add_vm_argument, check_ref


def register(vm: Commands) -> None:
    add = add_verb(
        vm,
        "forward",
        forward,
        summary="Reach TCP ports of a guest at ports of this machine, through the API, until interrupted.",
        example="atoll vm forward web 8080:80 5432",
    )
    add_vm_argument(add)
    add.add_argument(
        "ports",
        nargs="+",
        metavar="[[ADDRESS:]HERE:]PORT",
        help="a port of the guest, and where it is to be had here (0: at a free port); default: at the same number"
        " of 127.0.0.1, for your own user alone",
    )


def forward(options: argparse.Namespace) -> int:
    from atoll.cli.context import find, tls_of
    from atoll.cli.forwarding import forward_all, parse_mapping

    ref, mappings = check_ref(options.vm), [parse_mapping(text) for text in options.ports]
    context = find(options)
    return forward_all(context.addresses, tls_of(context), ref, mappings, quiet=options.quiet)
