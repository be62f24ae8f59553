"""`atoll node`: the node, who operates it, and the leases of other machines. Effects: calls the Hypervisor, prints."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import TypeVar

from atoll.api import given
from atoll.api import hypervisor as api
from atoll.api.route import Unary
from atoll.cli import node_install
from atoll.cli.arguments import Commands, add_noun, add_verb, plain_mac
from atoll.cli.context import connect
from atoll.cli.output import Column, Style, View, add_show_options, joined, render_one, style_of, table, write
from atoll.cli.pool_view import POOL_COLUMNS
from atoll.cli.vm_view import show_cpus
from atoll.errors import Invalid
from atoll.model.checks import check_ip
from atoll.model.lease import Boot, Reservation
from atoll.model.node import DriverInfo, Node
from atoll.model.size import show_mib

T = TypeVar("T")

NONE = "none"


def register(commands: Commands) -> None:
    node = add_noun(commands, "node", "The node: what it has, what is free, and who operates it.")
    verb = add_verb(node, "show", show, summary="Show the node.", example="atoll node show -o json")
    add_show_options(verb)
    for name, run, summary in (
        ("drain", drain, "Make and start no more VMs here, and offer no address. Those that run run on."),
        ("undrain", undrain, "Make and start VMs here again."),
    ):
        verb = add_verb(node, name, run, summary=summary, example=f"atoll node {name}")
        add_show_options(verb, quiet=True)
    verb = add_verb(
        node,
        "add-lease",
        add_lease,
        summary="Reserve an address for a machine that is not a VM, and say what it boots from.",
        example="atoll node add-lease 10.2.0.9 52:54:00:12:34:56 --subnet blue --name rack1 --image x",
    )
    verb.add_argument("ip", metavar="IP")
    verb.add_argument("mac", metavar="MAC")
    verb.add_argument("--subnet", required=True, metavar="ID")
    verb.add_argument("--name", required=True, metavar="HOSTNAME")
    verb.add_argument("--image", metavar="IMAGE", help="what it boots when it asks the network")
    verb.add_argument("--boot-file", default="", metavar="FILE|URL", help="what its firmware loads")
    verb.add_argument("--boot-script", default="", metavar="FILE|URL", help="what iPXE loads")
    verb.add_argument("--boot-server", metavar="IP", help="a TFTP server; default: the node's own")
    add_show_options(verb, quiet=True)
    verb = add_verb(
        node,
        "delete-lease",
        delete_lease,
        summary="Take the leases of machines away.",
        example="atoll node delete-lease 10.2.0.9",
    )
    verb.add_argument("ips", nargs="+", metavar="IP")
    verb.add_argument("--subnet", metavar="ID", help="of which subnet, where several have that address")
    verb = add_verb(
        node,
        "change",
        change,
        summary="Change how often the node's CPUs and memory may be promised. VMs that are there stay.",
        example="atoll node change --cpu-overcommit 4",
    )
    for kind in ("cpu", "memory"):
        verb.add_argument(
            f"--{kind}-overcommit", metavar="TIMES", help="from 1 to 64; none: as the configuration says"
        )
    add_show_options(verb, quiet=True)
    verb = add_verb(
        node,
        "set-owners",
        set_owners,
        summary="Say who operates the node, beside those whom its configuration names. Naming nobody: they alone.",
        example="atoll node set-owners --user ann --group ops",
    )
    verb.add_argument("--user", action="append", default=[], metavar="USER", help="may be repeated")
    verb.add_argument("--group", action="append", default=[], metavar="GROUP", help="may be repeated")
    add_show_options(verb, quiet=True)
    node_install.register(node)


def show(options: argparse.Namespace) -> None:
    style = style_of(options, NODE_VIEW)
    with connect(options) as client:
        node = client.call(api.NODE_SHOW)
    write(node_text(node, style))


def change(options: argparse.Namespace) -> None:
    style = style_of(options, NODE_VIEW)
    request = node_change_of(options)
    with connect(options) as client:
        node = client.call(given.NODE_CHANGE, body=request)
    write(node_text(node, style))


def node_change_of(options: argparse.Namespace) -> given.ChangeNode:
    asked = {"cpu_overcommit": options.cpu_overcommit, "memory_overcommit": options.memory_overcommit}
    changes = {name: parse_ratio(name, text) for name, text in asked.items() if text is not None}
    if not changes:
        raise Invalid("change", "", "nothing is asked for", hint="see: atoll node change --help")
    return given.ChangeNode(**changes)


def parse_ratio(field: str, text: str) -> float | None:
    """How many times; None: as the configuration says."""
    if text == NONE:
        return None
    try:
        return float(text)
    except ValueError:
        raise Invalid(
            field.replace("_", "-"), text, "is not a number of times", hint="write 4, 1.5 or none"
        ) from None


def drain(options: argparse.Namespace) -> None:
    _set_drained(options, api.NODE_DRAIN)


def undrain(options: argparse.Namespace) -> None:
    _set_drained(options, api.NODE_UNDRAIN)


def _set_drained(options: argparse.Namespace, route: Unary[None, None, Node]) -> None:
    style = style_of(options, NODE_VIEW)
    with connect(options) as client:
        node = client.call(route)
    write(node_text(node, style))


def add_lease(options: argparse.Namespace) -> None:
    style = style_of(options, NODE_VIEW)
    lease = Reservation(
        ip=options.ip,
        mac=plain_mac(options.mac),
        hostname=options.name,
        subnet=options.subnet,
        boot=Boot(
            file=options.boot_file,
            script=options.boot_script,
            server=options.boot_server,
            image=options.image,
        ),
    )
    with connect(options) as client:
        node = client.call(api.NODE_ADD_LEASE, body=lease)
    write(node_text(node, style))


def delete_lease(options: argparse.Namespace) -> None:
    ips = [check_ip("ip", ip) for ip in options.ips]
    with connect(options) as client:
        for ip in ips:
            client.call(api.NODE_DELETE_LEASE, params={"ip": ip}, query=api.InSubnet(options.subnet))


def set_owners(options: argparse.Namespace) -> None:
    style = style_of(options, NODE_VIEW)
    owners = given.SetOwners(users=tuple(options.user), groups=tuple(options.group))
    with connect(options) as client:
        node = client.call(given.NODE_SET_OWNERS, body=owners)
    write(node_text(node, style))


def node_text(node: Node, style: Style[Node]) -> str:
    """The node; as text also the tables of what it holds."""
    text = render_one(NODE_VIEW, node, style)
    if not style.is_text or style.columns:
        return text
    colour, limit = style.colour, style.width
    text += "\n" + table(_columns(POOL_COLUMNS, style), node.pools, colour=colour, limit=limit)
    text += "\n" + table(DRIVER_COLUMNS, node.drivers, colour=colour, limit=limit, wraps=True)
    confined = confinements(node.drivers)
    return text + "\n" + table(CONFINEMENT_COLUMNS, confined, colour=colour, limit=limit, wraps=True)


def confinements(drivers: Sequence[DriverInfo]) -> list[tuple[str, str, str]]:
    """How each kind confines what it runs: driver, by what, how."""
    return [(driver.name, key, value) for driver in drivers for key, value in driver.confinement.items()]


def _columns(columns: tuple[Column[T], ...], style: Style[Node]) -> list[Column[T]]:
    return [column for column in columns if style.format == "wide" or not column.wide]


def _stores(node: Node) -> str:
    return joined(
        f"{one.name} is not used: {one.problem}"
        if one.problem
        else f"{one.name} {show_free(show_mib, one.free_mib, one.total_mib)}"
        for one in node.stores
    )


def _unclaimed(node: Node) -> str:
    return joined(f"{one.name} in {one.store} until {one.until:%Y-%m-%d}" for one in node.unclaimed)


def show_free(show: Callable[[int], str], free: int, total: int) -> str:
    """Over-commit that was made smaller can leave more promised than there is."""
    if free < 0:
        return f"none of {show(total)} free, {show(-free)} too much promised"
    return f"{show(free)} of {show(total)} free"


NODE_VIEW: View[Node] = View(
    name=lambda node: node.name,
    columns=(
        Column("name", lambda node: node.name),
        Column("ip", lambda node: node.ip),
        Column("version", lambda node: f"{node.version} (records of format {node.record_format})"),
        Column("cpus", lambda node: show_free(show_cpus, node.free.milli_cpus, node.total.milli_cpus)),
        Column("memory", lambda node: show_free(show_mib, node.free.memory_mib, node.total.memory_mib)),
        Column("disk", lambda node: show_free(show_mib, node.free.disk_mib, node.total.disk_mib)),
        Column(
            "overcommit",
            lambda node: f"cpus {node.overcommit.cpus:g} times, memory {node.overcommit.memory:g} times",
        ),
        Column("stores", _stores),
        Column("unclaimed", _unclaimed),
        Column("drained", lambda node: "yes" if node.drained else "no"),
        Column("vms", lambda node: joined(f"{count} {state}" for state, count in node.vms.items())),
        Column("templates", lambda node: str(node.templates)),
        Column("hot-pool", lambda node: str(node.pooled)),
        Column(
            "owners",
            lambda node: joined([*node.owner_users, *(f"group {group}" for group in node.owner_groups)]),
        ),
        Column("boot", lambda node: node.boot_id),
    ),
)

DRIVER_COLUMNS: tuple[Column[DriverInfo], ...] = (
    Column("driver", lambda driver: driver.name),
    Column("accelerator", lambda driver: driver.accelerator or "-"),
    Column("capabilities", lambda driver: joined(driver.capabilities)),
)

CONFINEMENT_COLUMNS: tuple[Column[tuple[str, str, str]], ...] = (
    Column("driver", lambda row: row[0]),
    Column("confined by", lambda row: row[1]),
    Column("how", lambda row: row[2]),
)
