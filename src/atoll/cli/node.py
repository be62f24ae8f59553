"""`atoll node`: the node, its subnets and addresses. Effects: calls the Hypervisor, prints."""

from __future__ import annotations

import argparse
import ipaddress
import re
from collections.abc import Callable, Sequence
from typing import TypeVar

from atoll.api import given
from atoll.api import hypervisor as api
from atoll.api.route import Unary
from atoll.cli import node_install
from atoll.cli.arguments import Commands, add_noun, add_verb, plain_mac
from atoll.cli.context import connect
from atoll.cli.output import Column, Style, View, add_show_options, joined, render_one, style_of, table, write
from atoll.cli.vm_view import show_cpus
from atoll.errors import Invalid
from atoll.model.checks import MAC_PATTERN, check_ip, check_name, network6_of, network_of
from atoll.model.lease import Boot, Reservation
from atoll.model.network import Address, Subnet, mac_for
from atoll.model.node import DriverInfo, Node, Pool
from atoll.model.size import show_mib

T = TypeVar("T")

MAX_RANGE = 65536
NONE = "none"


def register(commands: Commands) -> None:
    node = add_noun(commands, "node", "The node: what it has, what is free, and its addresses.")
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
        "add-subnet",
        add_subnet,
        summary="Add a subnet for VMs.",
        example="atoll node add-subnet blue 10.2.0.0/24 --dns 10.2.0.1",
    )
    verb.add_argument("id", metavar="ID")
    verb.add_argument("cidr", metavar="CIDR")
    verb.add_argument("--gateway", metavar="IP", help="default: the first address of the subnet")
    verb.add_argument(
        "--bridge", default="", metavar="LINK", help="an existing bridge; default: one of our own"
    )
    verb.add_argument("--vlan", type=int, metavar="ID", help="its tag (802.1Q) on the port of that bridge")
    verb.add_argument(
        "--dns", action="append", default=[], metavar="IP", help="may be repeated; default: the node itself"
    )
    verb.add_argument("--domain", default="", help="the guests' domain")
    verb.add_argument("--mtu", type=int, default=1500, help="default 1500")
    verb.add_argument("--allow-user", action="append", default=[], metavar="USER", help="default: everybody")
    verb.add_argument("--allow-group", action="append", default=[], metavar="GROUP", help="may be repeated")
    verb.add_argument("--no-metadata", action="store_true", help="tell VMs nothing at 169.254.169.254")
    verb.add_argument(
        "--no-resolver", action="store_true", help="answer no DNS at 169.254.169.254, and hand out none"
    )
    _add_reaches(verb, "may be repeated; default: none")
    verb.add_argument(
        "--private",
        action="store_true",
        help="only for interfaces beside the first; may overlap other subnets",
    )
    verb.add_argument(
        "--service-ip", metavar="IP", help="where machines that are not VMs find DHCP, TFTP and HTTP"
    )
    verb.add_argument("--cidr6", metavar="CIDR", help="its IPv6 network, a /64")
    verb.add_argument("--gateway6", metavar="IP", help="default: the first address of the IPv6 network")
    verb.add_argument(
        "--autoconf6",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="guests make up their IPv6 address by themselves; otherwise by DHCPv6 only",
    )
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
        "add-address",
        add_address,
        summary="Add addresses to the pool of a subnet; the MAC follows from the IP where none is given.",
        example="atoll node add-address --subnet blue 10.2.0.10-10.2.0.40 10.2.0.50 52:54:00:12:34:56",
    )
    verb.add_argument("--subnet", required=True, metavar="ID")
    verb.add_argument("addresses", nargs="+", metavar="IP[-IP]|IP MAC")
    add_show_options(verb, quiet=True)
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
    _register_changes(node)
    node_install.register(node)


def _register_changes(node: Commands) -> None:
    """What was given, changed or taken away."""
    verb = add_verb(
        node,
        "remove-address",
        remove_address,
        summary="Take addresses that nobody has from the pool of a subnet.",
        example="atoll node remove-address --subnet blue 10.2.0.10-10.2.0.40 10.2.0.50",
    )
    verb.add_argument("--subnet", required=True, metavar="ID")
    verb.add_argument("ips", nargs="+", metavar="IP[-IP]")
    add_show_options(verb, quiet=True)
    verb = add_verb(
        node,
        "change-subnet",
        change_subnet,
        summary="Change what a subnet tells its guests, and who may use it.",
        example="atoll node change-subnet blue --dns 10.2.0.1 --dns 10.2.0.2 --no-metadata",
    )
    verb.add_argument("id", metavar="ID")
    verb.add_argument("--gateway", metavar="IP", help="only while nobody has an address there")
    verb.add_argument("--dns", action="append", metavar="IP", help="may be repeated; none: no server")
    verb.add_argument("--domain", help="the guests' domain; none: without one")
    verb.add_argument("--allow-user", action="append", metavar="USER", help="may be repeated")
    verb.add_argument("--allow-group", action="append", metavar="GROUP", help="may be repeated")
    verb.add_argument("--allow-everybody", action="store_true", help="whoever was allowed so far")
    verb.add_argument(
        "--metadata", action=argparse.BooleanOptionalAction, help="tell VMs of themselves at 169.254.169.254"
    )
    verb.add_argument(
        "--autoconf6",
        action=argparse.BooleanOptionalAction,
        help="guests make up their IPv6 address by themselves; otherwise by DHCPv6 only",
    )
    _add_reaches(verb, "may be repeated; none: nothing but itself")
    add_show_options(verb, quiet=True)
    verb = add_verb(
        node,
        "remove-subnet",
        remove_subnet,
        summary="Take away subnets that nobody uses, with their addresses.",
        example="atoll node remove-subnet blue",
    )
    verb.add_argument("ids", nargs="+", metavar="ID")
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


def _add_reaches(verb: argparse.ArgumentParser, how_often: str) -> None:
    verb.add_argument(
        "--reaches",
        action="append",
        metavar="ID|CIDR",
        help=f"another subnet, or a network outside, that its guests may connect to; {how_often}",
    )


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


def add_subnet(options: argparse.Namespace) -> None:
    style = style_of(options, NODE_VIEW)
    subnet = subnet_of(options)
    with connect(options) as client:
        node = client.call(api.NODE_ADD_SUBNET, body=subnet)
    write(node_text(node, style))


def add_address(options: argparse.Namespace) -> None:
    style = style_of(options, NODE_VIEW)
    request = api.AddAddress(
        subnet=check_name("subnet", options.subnet), addresses=parse_addresses(options.addresses)
    )
    with connect(options) as client:
        node = client.call(api.NODE_ADD_ADDRESS, body=request)
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


def remove_address(options: argparse.Namespace) -> None:
    style = style_of(options, NODE_VIEW)
    ips = tuple(ip for word in options.ips for ip in _parse_ips(word))
    request = given.RemoveAddress(subnet=options.subnet, ips=ips)
    with connect(options) as client:
        node = client.call(given.NODE_REMOVE_ADDRESS, body=request)
    write(node_text(node, style))


def change_subnet(options: argparse.Namespace) -> None:
    style = style_of(options, NODE_VIEW)
    params, change = {"subnet": check_name("subnet", options.id)}, change_of(options)
    with connect(options) as client:
        node = client.call(given.NODE_CHANGE_SUBNET, params=params, body=change)
    write(node_text(node, style))


def remove_subnet(options: argparse.Namespace) -> None:
    ids = [check_name("subnet", one) for one in options.ids]
    with connect(options) as client:
        for one in ids:
            client.call(given.NODE_REMOVE_SUBNET, params={"subnet": one})


def set_owners(options: argparse.Namespace) -> None:
    style = style_of(options, NODE_VIEW)
    owners = given.SetOwners(users=tuple(options.user), groups=tuple(options.group))
    with connect(options) as client:
        node = client.call(given.NODE_SET_OWNERS, body=owners)
    write(node_text(node, style))


def change_of(options: argparse.Namespace) -> given.ChangeSubnet:
    """What is asked for, and no more. Either some are allowed, or everybody is."""
    allowed: dict[str, tuple[str, ...]] = {}
    if options.allow_user or options.allow_group:
        if options.allow_everybody:
            raise Invalid("allow-everybody", True, "contradicts allow-user and allow-group")
        allowed = {
            "allowed_users": tuple(options.allow_user or ()),
            "allowed_groups": tuple(options.allow_group or ()),
        }
    elif options.allow_everybody:
        allowed = {"allowed_users": (), "allowed_groups": ()}
    asked = {
        "gateway": options.gateway,
        "dns": None if options.dns is None else tuple(ip for ip in options.dns if ip != NONE),
        "domain": "" if options.domain == NONE else options.domain,
        "metadata": options.metadata,
        "autoconf6": options.autoconf6,
        "reaches": None if options.reaches is None else tuple(one for one in options.reaches if one != NONE),
    }
    changes = {name: value for name, value in asked.items() if value is not None} | allowed
    if not changes:
        raise Invalid("change", "", "nothing is asked for", hint="see: atoll node change-subnet --help")
    return given.ChangeSubnet(**changes)


def subnet_of(options: argparse.Namespace) -> Subnet:
    return Subnet(
        id=options.id,
        cidr=options.cidr,
        gateway=options.gateway or str(network_of("cidr", options.cidr)[1]),
        bridge=options.bridge,
        dns=tuple(options.dns),
        domain=options.domain,
        mtu=options.mtu,
        allowed_users=tuple(options.allow_user),
        allowed_groups=tuple(options.allow_group),
        service_ip=options.service_ip,
        cidr6=options.cidr6,
        gateway6=options.gateway6 or (str(network6_of("cidr6", options.cidr6)[1]) if options.cidr6 else None),
        autoconf6=options.autoconf6,
        metadata=not options.no_metadata,
        resolver=not options.no_resolver,
        private=options.private,
        vlan=options.vlan,
        reaches=tuple(options.reaches or ()),
    )


def parse_addresses(words: Sequence[str]) -> tuple[Address, ...]:
    """IP, IP MAC and FIRST-LAST, mixed as they come."""
    found: dict[str, str] = {}
    last = ""
    for word in map(plain_mac, words):
        if ":" in word:
            if not last or not re.fullmatch(MAC_PATTERN, word):
                why = "must be a unicast MAC address, behind the IP that it belongs to"
                raise Invalid("mac", word, why)
            found[last], last = word, ""
            continue
        ips = _parse_ips(word)
        for ip in ips:
            if ip in found:
                raise Invalid("ip", ip, "is given twice")
            found[ip] = mac_for(ip)
        last = ips[0] if len(ips) == 1 else ""
    return tuple(Address(ip=ip, mac=mac) for ip, mac in found.items())


def _parse_ips(word: str) -> list[str]:
    first, dash, last = word.partition("-")
    low = int(ipaddress.IPv4Address(check_ip("ip", first)))
    high = int(ipaddress.IPv4Address(check_ip("ip", last))) if dash else low
    if not low <= high < low + MAX_RANGE:
        raise Invalid("ip", word, f"must go upwards, over at most {MAX_RANGE} addresses")
    return [str(ipaddress.IPv4Address(number)) for number in range(low, high + 1)]


def node_text(node: Node, style: Style[Node]) -> str:
    """The node; as text also the tables of what it holds."""
    text = render_one(NODE_VIEW, node, style)
    if not style.is_text or style.columns:
        return text
    text += "\n" + table(_columns(POOL_COLUMNS, style), node.pools, colour=style.colour)
    text += "\n" + table(_columns(DRIVER_COLUMNS, style), node.drivers, colour=style.colour)
    return text + "\n" + table(CONFINEMENT_COLUMNS, confinements(node.drivers), colour=style.colour)


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

POOL_COLUMNS: tuple[Column[Pool], ...] = (
    Column("subnet", lambda pool: pool.subnet.id),
    Column("cidr", lambda pool: pool.subnet.cidr),
    Column("gateway", lambda pool: pool.subnet.gateway),
    Column("cidr6", lambda pool: pool.subnet.cidr6 or "-", wide=True),
    Column("free", lambda pool: str(len(pool.free))),
    Column("used", lambda pool: str(pool.used)),
    Column("dns", lambda pool: joined(pool.subnet.name_servers)),
    Column("bridge", lambda pool: pool.subnet.bridge or "-", wide=True),
    Column("private", lambda pool: "yes" if pool.subnet.private else "no", wide=True),
    Column("vlan", lambda pool: str(pool.subnet.vlan or "-"), wide=True),
    Column("mtu", lambda pool: str(pool.subnet.mtu), wide=True),
    Column("domain", lambda pool: pool.subnet.domain or "-", wide=True),
    Column(
        "allowed",
        lambda pool: (
            ", ".join(
                [*pool.subnet.allowed_users, *(f"group {group}" for group in pool.subnet.allowed_groups)]
            )
            or "everybody"
        ),
        wide=True,
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
