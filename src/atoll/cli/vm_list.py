"""`atoll vm list` and `atoll vm show`. Effects: calls the Hypervisor, prints."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from atoll.api import hypervisor as api
from atoll.api.client import Client
from atoll.api.publishing import VM_PUBLISHED
from atoll.cli.arguments import Commands, add_verb
from atoll.cli.context import connect
from atoll.cli.output import (
    add_list_options,
    add_show_options,
    render_list,
    render_one,
    shown_json,
    style_of,
    write,
)
from atoll.cli.vm_filter import add_filter_options, filter_of
from atoll.cli.vm_ref import add_vm_argument, check_ref
from atoll.cli.vm_view import vm_view
from atoll.errors import Denied
from atoll.model.publishing import PublishedPort
from atoll.model.vm import VM
from atoll.system import clock


def register(vm: Commands) -> None:
    add = add_verb(
        vm, "list", list_, summary="List VMs.", example="atoll vm list --mine --state running --sort=-memory"
    )
    add_list_options(add)
    add_filter_options(add)
    add.add_argument("-w", "--watch", action="store_true", help="follow what happens; q or Ctrl-C ends it")
    add.set_defaults(sort="ip")
    add = add_verb(vm, "show", show, summary="Show one VM.", example="atoll vm show web -o yaml")
    add_vm_argument(add)
    add.add_argument(
        "--as-request",
        action="store_true",
        help="print what vm create --request takes to make it again; with -o yaml to be read",
    )
    add_show_options(add)


def list_(options: argparse.Namespace) -> None:
    view = vm_view(clock.now())
    style, wanted = style_of(options, view), filter_of(options)
    if options.watch:
        from atoll.cli.vm_watch import watch

        watch(options, wanted)
        return
    with connect(options) as client:
        vms = client.call(api.VM_LIST, query=wanted)
    write(render_list(view, vms, style))


def show(options: argparse.Namespace) -> None:
    view = vm_view(clock.now())
    style = style_of(options, view)
    ref = check_ref(options.vm)
    with connect(options) as client:
        vm = client.call(api.VM_SHOW, {"vm": ref})
        if options.as_request:
            user_data = (
                b"".join(client.download(api.VM_USER_DATA, {"vm": vm.ip})) if vm.user_data_sha256 else b""
            )
            write(request_text(vm, user_data, options.output))
            return
        if vm.published and style.is_text:
            view = vm_view(clock.now(), published_ports(client, vm))
            style = style_of(options, view)
    write(render_one(view, vm, style))


def published_ports(client: Client, vm: VM) -> Sequence[PublishedPort]:
    """What was carried to it, for those who may know."""
    try:
        return client.call(VM_PUBLISHED, {"vm": vm.ip})
    except Denied:
        return ()


def request_text(vm: VM, user_data: bytes, output: str) -> str:
    """What makes a VM like this one: in JSON as `vm create --request` takes it, in YAML to be read."""
    import msgspec

    from atoll.api.replay import as_request
    from atoll.cli.yamltext import to_yaml

    request = as_request(vm, user_data)
    if output == "yaml":
        return to_yaml(msgspec.to_builtins(request))
    return shown_json(msgspec.json.format(msgspec.json.encode(request), indent=2)) + "\n"
