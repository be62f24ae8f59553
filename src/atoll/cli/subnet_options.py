"""The options of `atoll subnet add` and `atoll subnet change`, and what they ask for. Pure."""

from __future__ import annotations

import argparse

from atoll.api import given
from atoll.cli.addresses import parse_addresses
from atoll.cli.arguments import Commands, Run, add_verb
from atoll.cli.cloud.layout import pool_for
from atoll.cli.output import add_show_options
from atoll.errors import Invalid
from atoll.model.checks import network6_of, network_of
from atoll.model.network import Address, Subnet

NONE = "none"


def register_add(subnet: Commands, run: Run) -> None:
    verb = add_verb(
        subnet,
        "add",
        run,
        summary="Add a subnet for VMs, with a pool of its addresses.",
        example="atoll subnet add blue 10.2.0.0/24",
    )
    verb.add_argument("id", metavar="ID")
    verb.add_argument("cidr", metavar="CIDR")
    which = verb.add_mutually_exclusive_group()
    which.add_argument(
        "--pool",
        action="extend",
        nargs="+",
        metavar="IP[-IP]|IP MAC",
        help="the addresses that VMs may have; default: all that it has, up to 1024. Needed with --bridge, where other"
        " machines have some",
    )
    which.add_argument("--no-pool", action="store_true", help="none yet: see subnet change --add")
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


def register_change(subnet: Commands, run: Run) -> None:
    verb = add_verb(
        subnet,
        "change",
        run,
        summary="Change what a subnet tells its guests, who may use it, and which addresses it has for VMs.",
        example="atoll subnet change blue --dns 10.2.0.1 --add 10.2.0.10-10.2.0.40",
    )
    verb.add_argument("id", metavar="ID")
    verb.add_argument(
        "--add",
        action="extend",
        nargs="+",
        default=[],
        metavar="IP[-IP]|IP MAC",
        help="addresses for its pool; the MAC follows from the IP where none is given",
    )
    verb.add_argument(
        "--remove",
        action="extend",
        nargs="+",
        default=[],
        metavar="IP[-IP]",
        help="addresses that nobody has, from its pool",
    )
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


def _add_reaches(verb: argparse.ArgumentParser, how_often: str) -> None:
    verb.add_argument(
        "--reaches",
        action="append",
        metavar="ID|CIDR",
        help=f"another subnet, or a network outside, that its guests may connect to; {how_often}",
    )


def change_of(options: argparse.Namespace) -> given.ChangeSubnet | None:
    """What is asked for, and no more; None: nothing but addresses. Either some are allowed, or everybody is."""
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
    if not changes and not options.add and not options.remove:
        raise Invalid("change", "", "nothing is asked for", hint="see: atoll subnet change --help")
    return given.ChangeSubnet(**changes) if changes else None


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


def pool_of(options: argparse.Namespace, subnet: Subnet) -> tuple[Address, ...]:
    """The addresses that VMs may have there. Nobody knows which of a network of others are free."""
    if options.pool:
        return parse_addresses(options.pool)
    if options.no_pool:
        return ()
    if subnet.bridge:
        raise Invalid(
            "pool",
            "",
            f"is needed on bridge {subnet.bridge}: other machines may have addresses of {subnet.cidr}",
            hint=f"say which are for VMs: --pool {subnet.network[100]}-{subnet.network[199]}; or --no-pool"
            if subnet.network.num_addresses > 200
            else "say which are for VMs: --pool FIRST-LAST; or --no-pool",
        )
    return pool_for(subnet)
