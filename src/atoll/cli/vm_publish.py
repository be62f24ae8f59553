"""`atoll vm publish` and `atoll vm unpublish`. Effects: calls the Hypervisor, prints."""

from __future__ import annotations

import argparse

from atoll.api.publishing import VM_PUBLISH, VM_PUBLISHED, VM_UNPUBLISH, Publish, Unpublish
from atoll.cli.arguments import Commands, add_verb
from atoll.cli.context import connect
from atoll.cli.output import Column, View, add_list_options, notice, render_list, style_of, write
from atoll.cli.port_mapping import parse_mapping, parse_place
from atoll.cli.vm_ref import add_vm_argument, check_ref
from atoll.errors import Invalid
from atoll.model.publishing import Publication, PublishedPort
from atoll.model.size import show_bytes


def register(vm: Commands) -> None:
    add = add_verb(
        vm,
        "publish",
        publish,
        summary="Have TCP ports of the node lead to ports of a guest, for as long as there is the VM; without ports,"
        " list them.",
        example="atoll vm publish web 8080:80",
    )
    add_vm_argument(add)
    add.add_argument(
        "ports",
        nargs="*",
        metavar="[[ADDRESS:]PORT:]GUEST_PORT",
        help="a port of the guest, and where it is to be had on the node; default: at the same number, of all of its"
        " addresses",
    )
    add.add_argument(
        "--proxy-protocol",
        action="store_true",
        help="tell the guest who connects, in a first line of its own (PROXY protocol, version 1)",
    )
    add_list_options(add)
    # A change prints nothing unless it is asked to; a list is asked for.
    add.set_defaults(output=None)
    add = add_verb(
        vm,
        "unpublish",
        unpublish,
        summary="Take published ports back, with their connections.",
        example="atoll vm unpublish web 8080",
    )
    add_vm_argument(add)
    add.add_argument("ports", nargs="+", metavar="[ADDRESS:]PORT", help="a port of the node")


def publish(options: argparse.Namespace) -> None:
    ref, wanted = check_ref(options.vm), tuple(parse_publication(text, options) for text in options.ports)
    if not wanted:
        options.output = options.output or "table"
    style = style_of(options, PUBLISHED_VIEW)
    with connect(options) as client:
        if wanted:
            vm = client.call(VM_PUBLISH, {"vm": ref}, body=Publish(wanted))
            asked = {(one.port, one.guest_port) for one in wanted}
            for one in vm.published:
                if (one.port, one.guest_port) in asked:
                    notice(f"{one.key} leads to port {one.guest_port} of {vm.name}", options)
        if options.output:
            ports = client.call(VM_PUBLISHED, {"vm": ref})
            write(render_list(PUBLISHED_VIEW, ports, style))


def unpublish(options: argparse.Namespace) -> None:
    ref, places = check_ref(options.vm), [parse_place(text) for text in options.ports]
    with connect(options) as client:
        for address, port in places:
            client.call(VM_UNPUBLISH, {"vm": ref}, query=Unpublish(port, address or None))


def parse_publication(text: str, options: argparse.Namespace) -> Publication:
    mapping = parse_mapping(text, default_host="")
    if not mapping.here:
        raise Invalid(
            "port", text, "must name the port of the node", hint=f"for example 8080:{mapping.guest}"
        )
    return Publication(mapping.here, mapping.guest, mapping.host, options.proxy_protocol)


PUBLISHED_VIEW: View[PublishedPort] = View(
    name=lambda port: port.publication.key,
    columns=(
        Column("at", lambda port: port.publication.key, key=lambda port: port.publication.port),
        Column(
            "guest-port",
            lambda port: str(port.publication.guest_port),
            key=lambda port: port.publication.guest_port,
        ),
        Column("open", lambda port: str(port.open), key=lambda port: port.open),
        Column("connections", lambda port: str(port.connections), key=lambda port: port.connections),
        Column("in", lambda port: show_bytes(port.received_bytes), key=lambda port: port.received_bytes),
        Column("out", lambda port: show_bytes(port.sent_bytes), key=lambda port: port.sent_bytes),
        Column("refused", lambda port: str(port.refused), key=lambda port: port.refused, wide=True),
        Column("failed", lambda port: str(port.failed), key=lambda port: port.failed, wide=True),
        Column("proxy-protocol", lambda port: "yes" if port.publication.proxy_protocol else "no", wide=True),
        Column("problem", lambda port: port.problem or "-", is_long=True, rank=1),
    ),
)
