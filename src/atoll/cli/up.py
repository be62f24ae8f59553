"""`atoll up`: a one-node cloud in the background. Effects: those of atoll.cli.cloud.steps."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from atoll.cli.arguments import Commands, add_verb
from atoll.cli.context import cloud_dir
from atoll.cli.output import notice
from atoll.errors import Malformed
from atoll.model.checks import check_range


def register(commands: Commands) -> None:
    parser = add_verb(
        commands,
        "up",
        run,
        summary="Start a cloud on this machine, or find it again.",
        example="atoll up && atoll vm create --name web --image appliance",
    )
    parser.add_argument("--subnet", metavar="CIDR", help="the network of the VMs (default: one that is free)")
    parser.add_argument(
        "--nat",
        action=argparse.BooleanOptionalAction,
        help="let guests out through this host, under its address",
    )
    parser.add_argument(
        "--ipv6",
        action=argparse.BooleanOptionalAction,
        help="give VMs an IPv6 address as well, from a private network of the cloud's own",
    )
    parser.add_argument(
        "--listen",
        action="append",
        metavar="ADDRESS[:PORT]",
        help="be reached from other machines at this address of the host; may be repeated; see docs/remote.md",
    )
    parser.add_argument(
        "--known-as",
        action="append",
        metavar="NAME|IP",
        help="another name by which other machines reach it there, for its certificate; may be repeated",
    )
    parser.add_argument("--no-listen", action="store_true", help="be reached from this machine only")
    parser.add_argument(
        "--hot-pool",
        type=int,
        metavar="N",
        help="let up to N copies of a template run ahead of demand, for creates in no time (default: 0)",
    )
    parser.add_argument(
        "--templates",
        type=int,
        metavar="N",
        help="keep up to N templates, from which VMs are forked; 0: every VM boots (default: 8)",
    )
    parser.add_argument(
        "--foreground",
        action="store_true",
        help="stay, and keep it up until told to stop, for service managers; see atoll service",
    )
    parser.add_argument(
        "--hooks",
        type=Path,
        metavar="FILE",
        help="tell the commands and web services in this file of VMs that come, change and go; see docs/hooks.md",
    )


def run(options: argparse.Namespace) -> int:
    from atoll.cli.cloud import keeper, steps
    from atoll.cli.cloud.layout import Paths
    from atoll.cli.cloud.listen import checked_names, parsed
    from atoll.system.service_manager import ServiceManager

    began = time.monotonic()

    def say(text: str) -> None:
        notice(f"{time.monotonic() - began:6.2f} s  {text}", options)

    directory = cloud_dir(options)
    settings = {"hot_pool": options.hot_pool, "templates": options.templates}
    for name, value in settings.items():
        if value is not None:
            check_range(name, value, 0, 1000)
    if (options.listen or options.known_as) and options.no_listen:
        raise Malformed(
            "up: --listen, --known-as and --no-listen contradict each other", hint="say one of them"
        )
    paths = Paths(directory.absolute())
    manager = ServiceManager() if options.foreground else None
    cloud = steps.up(
        paths,
        subnet=options.subnet,
        nat=options.nat,
        say=say,
        ipv6=options.ipv6,
        agent_settings={name: value for name, value in settings.items() if value is not None},
        hooks=options.hooks,
        known_as=checked_names(options.known_as or ()) if options.known_as or options.no_listen else None,
        listen_at=parsed(options.listen or ()) if options.listen or options.no_listen else None,
        foreground=options.foreground,
    )
    for_others = f", for other machines at {', '.join(cloud.listen)}" if cloud.listen else ""
    sys.stdout.write(f"the cloud in {directory} is up at {cloud.node_ip}{for_others}\n")
    if manager is not None:
        sys.stdout.flush()
        keeper.hold(paths, lambda: manager.tell("READY=1"))
        sys.stdout.write(f"the cloud in {directory} is down; its VMs run on\n")
    return 0
