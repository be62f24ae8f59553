"""`atoll vm change` and `atoll vm become-primary-owner`. Effects: calls the Hypervisor, prints."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from datetime import datetime
from typing import Any

from atoll.api.changes import VM_BECOME_PRIMARY_OWNER, VM_CHANGE, ChangeVm
from atoll.api.hypervisor import VM_SHOW
from atoll.cli.arguments import Commands, Parser, add_verb, parse_tags
from atoll.cli.context import connect
from atoll.cli.output import Results, add_show_options, joined, notice, style_of
from atoll.cli.vm_policies import (
    NEVER,
    add_hardware_options,
    add_policy_options,
    hardware_of,
    parse_expiry,
    parse_share,
)
from atoll.cli.vm_ref import add_vm_argument, check_ref
from atoll.cli.vm_request import read_ssh_keys, read_user_data
from atoll.cli.vm_view import show_cpus, vm_view, waiting
from atoll.errors import Invalid, Malformed
from atoll.model.size import parse_mib, parse_milli_cpus, show_mib
from atoll.model.vm import VM, ConsoleKind, MachineType, RestartPolicy, VmState
from atoll.system import clock


def register(vm: Commands) -> None:
    """The verbs that change a VM."""
    add = add_verb(
        vm,
        "change",
        change,
        summary="Change a VM. What cannot be changed while it runs waits for its next start.",
        example="atoll vm change web --memory 256MiB --tag tier=front --expires 2h",
    )
    add_vm_argument(add)
    add_change_options(add)
    add_show_options(add, quiet=True)
    add = add_verb(
        vm,
        "become-primary-owner",
        become_primary_owner,
        summary="Become the first of the owners of a VM.",
        example="atoll vm become-primary-owner web",
    )
    add_vm_argument(add)
    add_show_options(add, quiet=True)


def add_change_options(parser: Parser) -> None:
    parser.add_argument(
        "--hostname", "--name", dest="hostname", metavar="NAME", help="its name, and its guest's"
    )
    parser.add_argument(
        "--memory", metavar="SIZE", help="at once for containers, else from its next start on"
    )
    parser.add_argument("--cpus", metavar="N", help="2, 0.5 or 250m")
    parser.add_argument(
        "--machine-type",
        choices=[str(kind) for kind in MachineType],
        metavar="TYPE",
        help="auto, q35 or microvm",
    )
    parser.add_argument(
        "--console", choices=[str(kind) for kind in ConsoleKind], metavar="KIND", help="none, serial or vnc"
    )
    add_hardware_options(parser)
    parser.add_argument("--subnet", metavar="ID", help="gives it a new address there; only while it is down")
    parser.add_argument(
        "--tag", action="append", default=[], metavar="KEY=VALUE", help="set; may be repeated"
    )
    parser.add_argument("--untag", action="append", default=[], metavar="KEY", help="remove; may be repeated")
    parser.add_argument("--owner-user", action="append", metavar="USER", help="all of them; may be repeated")
    parser.add_argument(
        "--owner-group", action="append", metavar="GROUP", help="all of them; may be repeated"
    )
    parser.add_argument("--ssh-key", action="append", metavar="FILE|KEY", help="all of them; may be repeated")
    parser.add_argument(
        "--share",
        action="append",
        metavar="NAME:PATH[:ro]",
        help="give it a folder of the node, or put it elsewhere; from its next start on; may be repeated",
    )
    parser.add_argument(
        "--no-share",
        action="append",
        metavar="NAME",
        help="take one away; from its next start on; may be repeated",
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--user-data", metavar="FILE", help="at most 1 MiB; - is standard input")
    which.add_argument(
        "--previous-user-data", action="store_true", help="change it back to what it was before"
    )
    add_policy_options(parser, changing=True)


def change_request(options: argparse.Namespace, now: datetime) -> ChangeVm:
    """What was typed, and nothing else."""
    tags: dict[str, str | None] = {**parse_tags(options.tag)}
    for key in options.untag:
        if key in tags:
            raise Invalid("untag", key, "is set and removed at once")
        tags[key] = None
    given: dict[str, Any] = {
        "name": options.hostname,
        "memory_mib": options.memory and parse_mib("memory", options.memory),
        "milli_cpus": options.cpus and parse_milli_cpus("cpus", options.cpus),
        "machine_type": options.machine_type and MachineType(options.machine_type),
        "console": options.console and ConsoleKind(options.console),
        "subnet": options.subnet,
        "tags": tags or None,
        "owner_users": options.owner_user and tuple(options.owner_user),
        "owner_groups": options.owner_group and tuple(options.owner_group),
        "ssh_keys": options.ssh_key and read_ssh_keys(options.ssh_key),
        "add_shares": options.share and tuple(parse_share(text) for text in options.share),
        "remove_shares": options.no_share and tuple(options.no_share),
        "user_data": None if options.user_data is None else read_user_data(options.user_data),
        "previous_user_data": options.previous_user_data or None,
        "restart": options.restart and RestartPolicy(options.restart),
        "destroy_on_power_down": options.destroy_on_power_down,
        "protected": options.protect,
    }
    given = {name: value for name, value in given.items() if value is not None} | hardware_of(options)
    if options.expires is not None:
        given["expires_at"] = None if options.expires == NEVER else parse_expiry(options.expires, now)
    if not given:
        raise Malformed("vm change: nothing to change is given", hint="see: atoll vm change --help")
    return ChangeVm(**given)


def change(options: argparse.Namespace) -> None:
    view = vm_view(clock.now())
    style = style_of(options, view)
    ref, request = check_ref(options.vm), change_request(options, clock.now())
    with connect(options) as client:
        before = client.call(VM_SHOW, {"vm": ref})
        vm = client.call(VM_CHANGE, {"vm": ref}, body=request)
    for line in changes_text(before, vm):
        notice(line, options)
    Results(view, style, several=False).add(vm)


def changes_text(before: VM, after: VM) -> list[str]:
    """What is different now, what waits, and for what. Pure."""
    lines = []
    for name, show in _SETTINGS.items():
        old, new = show(before), show(after)
        if old != new and name not in _OF_START:
            lines.append(f"{after.name}: {name} {old} → {new}")
    if before.name != after.name and after.state is VmState.RUNNING:
        lines.append(f"{after.name}: its guest learns its name with its next lease, or when it starts again")
    if after.pending:
        lines += [f"{after.name}: at its next start: {text}" for text in waiting(after)]
        lines.append(f"{after.name}: runs on as it was until then: atoll vm reboot {after.name}")
    else:
        # Nothing runs that would be another than it says, or it took hold at once.
        lines += [
            f"{after.name}: {name} {show(before)} → {show(after)}"
            for name, show in _SETTINGS.items()
            if name in _OF_START and show(before) != show(after)
        ]
    return lines or [f"{after.name}: is so already"]


_OF_START = frozenset(
    {"memory", "machine-type", "console", "kernel-options", "watchdog", "watchdog-action", "netboot", "share"}
)
_SETTINGS: dict[str, Callable[[VM], str]] = {
    "name": lambda vm: vm.name,
    "ip": lambda vm: vm.ip,
    "subnet": lambda vm: vm.subnet,
    "cpus": lambda vm: show_cpus(vm.milli_cpus),
    "memory": lambda vm: show_mib(vm.memory_mib),
    "machine-type": lambda vm: vm.machine_type,
    "console": lambda vm: vm.console,
    "kernel-options": lambda vm: vm.kernel_options or "-",
    "watchdog": lambda vm: vm.watchdog,
    "watchdog-action": lambda vm: vm.watchdog_action,
    "netboot": lambda vm: vm.netboot,
    "share": lambda vm: joined(map(str, vm.shares)),
    "tags": lambda vm: joined(f"{key}={value}" for key, value in vm.tags.items()),
    "owner-users": lambda vm: joined(vm.owner_users),
    "owner-groups": lambda vm: joined(vm.owner_groups),
    "ssh-keys": lambda vm: str(len(vm.ssh_keys)),
    "user-data": lambda vm: vm.user_data_sha256[:12] or "-",
    "restart": lambda vm: vm.restart,
    "destroy-on-power-down": lambda vm: "yes" if vm.destroy_on_power_down else "no",
    "protect": lambda vm: "yes" if vm.protected else "no",
    "expires": lambda vm: f"{vm.expires_at:%Y-%m-%d %H:%M:%SZ}" if vm.expires_at else "never",
}
"""What can be changed, by the names of the options that do it."""


def become_primary_owner(options: argparse.Namespace) -> None:
    view = vm_view(clock.now())
    style = style_of(options, view)
    ref = check_ref(options.vm)
    with connect(options) as client:
        vm = client.call(VM_BECOME_PRIMARY_OWNER, {"vm": ref})
    Results(view, style, several=False).add(vm)
