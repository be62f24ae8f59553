"""`atoll subnet`: the networks of VMs on a node. Effects: calls the Hypervisor, prints.

What changes them is for operators of the node, and asks its routes `node.*`: they are what the node was given.
"""

from __future__ import annotations

import argparse
import contextlib

from atoll.api import given
from atoll.api import hypervisor as api
from atoll.api.client import Client
from atoll.cli import subnet_options
from atoll.cli.addresses import parse_addresses, parse_ips
from atoll.cli.arguments import Commands, add_noun, add_verb
from atoll.cli.asking import add_yes_option, check_can_ask, confirm
from atoll.cli.context import connect
from atoll.cli.output import (
    add_list_options,
    add_show_options,
    notice,
    render_list,
    render_one,
    style_of,
    write,
)
from atoll.cli.pool_view import POOL_VIEW
from atoll.errors import AtollError, NotFound
from atoll.model.checks import check_name
from atoll.model.network import Address, Subnet
from atoll.model.node import Pool


def register(commands: Commands) -> None:
    subnet = add_noun(commands, "subnet", "Networks that VMs have addresses in.")
    add_list_options(
        add_verb(subnet, "list", list_, summary="List subnets.", example="atoll subnet list -o wide")
    )
    verb = add_verb(subnet, "show", show, summary="Show one subnet.", example="atoll subnet show default")
    verb.add_argument("id", metavar="ID")
    add_show_options(verb)
    subnet_options.register_add(subnet, add)
    subnet_options.register_change(subnet, change)
    verb = add_verb(
        subnet,
        "delete",
        delete,
        summary="Delete subnets that nobody uses, with their addresses.",
        example="atoll subnet delete blue",
    )
    verb.add_argument("ids", nargs="+", metavar="ID")
    add_yes_option(verb)


def list_(options: argparse.Namespace) -> None:
    style = style_of(options, POOL_VIEW)
    with connect(options) as client:
        pools = client.call(api.NODE_SHOW).pools
    write(render_list(POOL_VIEW, pools, style))


def show(options: argparse.Namespace) -> None:
    style = style_of(options, POOL_VIEW)
    name = check_name("subnet", options.id)
    with connect(options) as client:
        write(render_one(POOL_VIEW, _pool(client, name), style))


def add(options: argparse.Namespace) -> None:
    style = style_of(options, POOL_VIEW)
    subnet = subnet_options.subnet_of(options)
    addresses = subnet_options.pool_of(options, subnet)
    with connect(options) as client:
        known = [pool.subnet.id for pool in client.call(api.NODE_SHOW).pools]
        client.call(api.NODE_ADD_SUBNET, body=subnet)
        _fill(client, subnet, addresses, is_new=subnet.id not in known)
        pool = _pool(client, subnet.id)
    more = "" if addresses else f" yet: atoll subnet change {subnet.id} --add"
    notice(f"subnet {subnet.id}: {_count(len(addresses))}{more}", options)
    write(render_one(POOL_VIEW, pool, style))


def _fill(client: Client, subnet: Subnet, addresses: tuple[Address, ...], *, is_new: bool) -> None:
    """All of it, or no new subnet."""
    if not addresses:
        return
    try:
        client.call(api.NODE_ADD_ADDRESS, body=api.AddAddress(subnet.id, addresses))
    except AtollError:
        if is_new:
            with contextlib.suppress(AtollError):  # why there is no pool is what counts
                client.call(given.NODE_REMOVE_SUBNET, {"subnet": subnet.id})
        raise


def change(options: argparse.Namespace) -> None:
    style = style_of(options, POOL_VIEW)
    name, asked = check_name("subnet", options.id), subnet_options.change_of(options)
    added = parse_addresses(options.add)
    removed = tuple(ip for word in options.remove for ip in parse_ips(word))
    with connect(options) as client:
        if asked is not None:
            client.call(given.NODE_CHANGE_SUBNET, {"subnet": name}, body=asked)
        if added:
            client.call(api.NODE_ADD_ADDRESS, body=api.AddAddress(name, added))
        if removed:
            client.call(given.NODE_REMOVE_ADDRESS, body=given.RemoveAddress(name, removed))
        write(render_one(POOL_VIEW, _pool(client, name), style))


def delete(options: argparse.Namespace) -> None:
    names = list(dict.fromkeys(check_name("subnet", one) for one in options.ids))
    check_can_ask(f"subnet delete {' '.join(names)}", options)
    with connect(options) as client:
        known = {pool.subnet.id: pool for pool in client.call(api.NODE_SHOW).pools}
        for name in names:
            if name not in known:
                notice(f"{name}: gone already", options)
        going = [known[name] for name in names if name in known]
        if not going:
            return
        what = f"subnet {going[0].subnet.id}" if len(going) == 1 else f"{len(going)} subnets"
        confirm(f"delete {what}", map(pool_going, going), options)
        for pool in going:
            client.call(given.NODE_REMOVE_SUBNET, {"subnet": pool.subnet.id})


def pool_going(pool: Pool) -> str:
    """A subnet that is to be deleted: blue (10.2.0.0/24): 253 addresses."""
    used = f", {pool.used} in use: will be refused" if pool.used else ""
    return f"{pool.subnet.id} ({pool.subnet.cidr}): {_count(len(pool.free) + pool.used)}{used}"


def _count(addresses: int) -> str:
    return "1 address" if addresses == 1 else f"{addresses or 'no'} addresses"


def _pool(client: Client, name: str) -> Pool:
    pools = client.call(api.NODE_SHOW).pools
    for pool in pools:
        if pool.subnet.id == name:
            return pool
    there = ", ".join(pool.subnet.id for pool in pools) or "none"
    raise NotFound(f"subnet {name!r}: there is none on this node", hint=f"there are: {there}")
