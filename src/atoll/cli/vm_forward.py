"""`atoll vm forward`: its options. Effects: those of forwarding.py."""

from __future__ import annotations

import argparse

from atoll.cli.arguments import Commands, add_verb
from atoll.cli.vm_ref import add_vm_argument, check_ref
from atoll.errors import Malformed


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
    add.add_argument(
        "--stdio",
        action="store_true",
        help="one connection to one PORT, which is our standard input and output: for ProxyCommand of ssh",
    )


def forward(options: argparse.Namespace) -> int:
    if options.stdio:
        return forward_stdio(options)
    from atoll.cli.context import find, tls_of
    from atoll.cli.forwarding import forward_all
    from atoll.cli.local_port import HOST
    from atoll.cli.port_mapping import parse_mapping

    ref, mappings = check_ref(options.vm), [parse_mapping(text, HOST) for text in options.ports]
    context = find(options)
    return forward_all(context.addresses, tls_of(context), ref, mappings, quiet=options.quiet)


def forward_stdio(options: argparse.Namespace) -> int:
    from atoll.api.carrying import carry
    from atoll.cli.context import connect
    from atoll.cli.port_mapping import parse_place

    ref = check_ref(options.vm)
    if len(options.ports) != 1:
        raise Malformed("vm forward --stdio: it takes one port", hint=f"for example: {ref} --stdio 22")
    host, port = parse_place(options.ports[0])
    if host:
        raise Malformed("vm forward --stdio: the port is the guest's, and takes no address")
    with connect(options) as client:
        carry(client, ref, port)
    return 0
