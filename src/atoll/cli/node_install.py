"""`atoll node install`, `uninstall` and `check-config`: a node as a service of this machine.

Effects: those of atoll.cli.install.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.cli.arguments import Commands, add_verb
from atoll.cli.asking import add_yes_option, check_can_ask, confirm, vms_on_disk
from atoll.cli.context import cloud_dir
from atoll.cli.output import notice
from atoll.errors import Conflict, Invalid, Malformed, NotFound

if TYPE_CHECKING:
    from atoll.cli.install.wish import Certificates, Wish

CONFIG = "/etc/atoll/node.toml"


def register(node: Commands) -> None:
    verb = add_verb(
        node,
        "install",
        install,
        summary="Make this machine a node: certificates, configuration, a service that starts at boot, a subnet."
        " Again: bring it up to date with its configuration file; VMs run on.",
        example="atoll node install --subnet 10.9.0.0/24 --port eth1 --addresses 10.9.0.50-10.9.0.99",
    )
    verb.add_argument("--name", help="the node's name (default: the host's)")
    verb.add_argument(
        "--ip", metavar="IP", help="the node's own address (default: that of the default route)"
    )
    verb.add_argument(
        "--subnet", metavar="CIDR", help="a network for VMs (default: none; see: atoll subnet add)"
    )
    where = verb.add_mutually_exclusive_group()
    where.add_argument("--bridge", metavar="LINK", help="the subnet is on this bridge, which exists")
    where.add_argument("--port", metavar="LINK", help="the subnet is on a bridge that is made over this link")
    verb.add_argument("--vlan", type=int, metavar="ID", help="the subnet's tag (802.1Q) on that port")
    verb.add_argument("--gateway", metavar="IP", help="of the subnet (default: its first address)")
    verb.add_argument(
        "--addresses",
        action="append",
        default=[],
        metavar="IP[-IP]",
        help="addresses for VMs; may be repeated (default: all, where the subnet is on no bridge of yours)",
    )
    verb.add_argument("--node-ca", metavar="FILE", help="the CA of your organisation (default: one is made)")
    verb.add_argument("--node-crl", metavar="FILE", help="its revocation list")
    verb.add_argument("--node-cert", metavar="FILE", help="a server certificate of that CA for this node")
    verb.add_argument("--node-key", metavar="FILE", help="its private key")
    verb.add_argument(
        "--operator",
        action="append",
        default=[],
        metavar="USER",
        help="who may do everything here, by the name in their certificate; may be repeated",
    )
    verb.add_argument("--dry-run", action="store_true", help="say what would be done, and do nothing")
    verb = add_verb(
        node,
        "uninstall",
        uninstall,
        summary="Remove the node from this machine, and leave nothing of it.",
        example="atoll node uninstall --destroy --yes",
    )
    verb.add_argument("--destroy", action="store_true", help="destroy the VMs that there are")
    add_yes_option(verb)
    verb = add_verb(
        node,
        "check-config",
        check_config,
        summary="Say what is wrong with a configuration file. Exit status 2: something is.",
        example=f"atoll node check-config {CONFIG}",
    )
    verb.add_argument("file", nargs="?", default=CONFIG, metavar="FILE", help=f"default {CONFIG}")


def install(options: argparse.Namespace) -> int:
    from atoll.cli.install import steps

    wish = wish_of(options)
    directory = cloud_dir(options).absolute()
    if options.dry_run:
        planned = steps.plan(directory, wish)
        sys.stdout.write("".join(f"{step}\n" for step in planned.words))
        return 0
    began = time.monotonic()
    planned = steps.install(
        directory, wish, lambda text: notice(f"{time.monotonic() - began:6.2f} s  {text}", options)
    )
    _write_pages(options)
    host, port = planned.address
    sys.stdout.write(f"node {planned.settings['name']} is up at {host}:{port}\n")
    return 0


def _write_pages(options: argparse.Namespace) -> None:
    """For man, where there is one. They go where the program is, and with it."""
    import shutil

    from atoll.cli.man import default_directory, write_pages

    if shutil.which("man") is None:
        return
    try:
        write_pages(default_directory())
    except OSError as error:
        notice(f"no man pages in {default_directory()}: {error.strerror or error}", options)


def wish_of(options: argparse.Namespace) -> Wish:
    """What the words ask for, as far as it makes sense by itself."""
    from atoll.cli.addresses import parse_addresses
    from atoll.cli.install import wish

    addresses = parse_addresses(options.addresses)
    subnet, pool = wish.subnet_of(
        options.subnet,
        gateway=options.gateway,
        bridge=options.bridge,
        port=options.port,
        vlan=options.vlan,
        addresses=addresses,
    )
    certificates = _certificates(options)
    if certificates is not None and subnet is not None:
        raise Malformed(
            "a subnet is given to the node by an operator, and their certificate is not on this machine",
            hint="leave out --subnet here, and call atoll subnet add with that certificate",
        )
    return wish.Wish(
        name=options.name,
        ip=options.ip,
        port=options.port,
        subnet=subnet,
        addresses=pool,
        certificates=certificates,
        operators=tuple(options.operator),
    )


def _certificates(options: argparse.Namespace) -> Certificates | None:
    from atoll.cli.install.wish import Certificates

    given = {name: getattr(options, f"node_{name}") for name in ("ca", "crl", "cert", "key")}
    if not any(given.values()):
        return None
    for name, value in given.items():
        if value is None:
            raise Invalid(f"node-{name}", "", "is needed with the others", hint=f"add --node-{name} FILE")
        if not Path(value).is_file():
            raise NotFound(f"--node-{name} {value}: there is no such file", hint="check the path")
    if not options.operator:
        raise Invalid("operator", "", "nobody could use the node", hint="add --operator USER")
    ca, crl, certificate, key = (Path(value).absolute() for value in given.values())
    return Certificates(ca, crl, certificate, key)


def uninstall(options: argparse.Namespace) -> int:
    from atoll.cli.cloud.layout import Paths
    from atoll.cli.cloud.steps import check_root
    from atoll.cli.install import record, removal
    from atoll.system import files

    check_root("atoll node uninstall")
    directory = cloud_dir(options).absolute()
    try:
        node = record.load(directory)
    except NotFound:
        sys.stdout.write(f"no node is installed in {directory}\n")
        return 0
    check_can_ask(f"node uninstall of the node in {directory}", options)
    paths = Paths(directory)
    vms = removal.vms_of(paths)
    if vms and not options.destroy:
        raise Conflict(
            f"uninstalling the node in {directory}: it has {len(vms)} VMs: {', '.join(vms[:5])}"
            + (", …" if len(vms) > 5 else ""),
            hint="move or destroy them first; --destroy destroys them all",
        )
    confirm(
        f"remove the node in {directory}",
        [*vms_on_disk(paths.node / "vms"), f"{directory}: images, certificates, logs"],
        options,
    )
    with files.exclusive(paths.lock):
        removal.remove(directory, node)
    sys.stdout.write(f"the node in {directory} is gone\n")
    return 0


def check_config(options: argparse.Namespace) -> int:
    from atoll.cli.cloud import settings
    from atoll.cli.failure import tell

    path = Path(options.file).absolute()
    found = settings.problems(path)
    for problem in found:
        place = f"{path}: {problem.key}: " if problem.key else ""
        tell(Malformed(f"{place}{problem.why}", hint=problem.hint))
    if not found:
        sys.stdout.write(f"{path} is fine\n")
    return 2 if found else 0
