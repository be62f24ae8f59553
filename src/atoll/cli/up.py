"""`atoll up`: a one-node cloud in the background. Effects: those of atoll.cli.cloud.steps."""

from __future__ import annotations

import argparse
import sys
import time

from atoll.cli.arguments import Commands, add_verb
from atoll.cli.context import cloud_dir
from atoll.cli.output import notice


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


def run(options: argparse.Namespace) -> int:
    from atoll.cli.cloud import steps
    from atoll.cli.cloud.layout import Paths

    began = time.monotonic()

    def say(text: str) -> None:
        notice(f"{time.monotonic() - began:6.2f} s  {text}", options)

    directory = cloud_dir(options)
    cloud = steps.up(Paths(directory.absolute()), subnet=options.subnet, nat=options.nat, say=say)
    sys.stdout.write(f"the cloud in {directory} is up at {cloud.node_ip}\n")
    return 0
