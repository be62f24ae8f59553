"""`atoll up`: a one-node cloud in the background. Effects: those of atoll.cli.cloud.steps."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from atoll.cli.arguments import Commands, add_verb
from atoll.cli.context import cloud_dir
from atoll.cli.output import notice
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
        "--hooks",
        type=Path,
        metavar="FILE",
        help="tell the commands and web services in this file of VMs that come, change and go; see docs/hooks.md",
    )


def run(options: argparse.Namespace) -> int:
    from atoll.cli.cloud import steps
    from atoll.cli.cloud.layout import Paths

    began = time.monotonic()

    def say(text: str) -> None:
        notice(f"{time.monotonic() - began:6.2f} s  {text}", options)

    directory = cloud_dir(options)
    settings = {"hot_pool": options.hot_pool, "templates": options.templates}
    for name, value in settings.items():
        if value is not None:
            check_range(name, value, 0, 1000)
    cloud = steps.up(
        Paths(directory.absolute()),
        subnet=options.subnet,
        nat=options.nat,
        say=say,
        ipv6=options.ipv6,
        agent_settings={name: value for name, value in settings.items() if value is not None},
        hooks=options.hooks,
    )
    sys.stdout.write(f"the cloud in {directory} is up at {cloud.node_ip}\n")
    return 0
