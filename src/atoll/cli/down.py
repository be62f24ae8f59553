"""`atoll down`: stop the services of a cloud, or leave nothing of it. Effects: atoll.cli.cloud.steps."""

from __future__ import annotations

import argparse
import sys

from atoll.cli.arguments import Commands, add_verb
from atoll.cli.asking import add_yes_option, check_can_ask, confirm, vms_on_disk
from atoll.cli.context import cloud_dir


def register(commands: Commands) -> None:
    parser = add_verb(
        commands,
        "down",
        run,
        summary="Stop the services of the cloud on this machine; its VMs run on.",
        example="atoll down --destroy --yes",
    )
    parser.add_argument(
        "--destroy", action="store_true", help="destroy all VMs and leave nothing of the cloud"
    )
    add_yes_option(parser)


def run(options: argparse.Namespace) -> int:
    from atoll.cli.cloud import steps
    from atoll.cli.cloud.layout import Paths
    from atoll.errors import Unreachable

    directory = cloud_dir(options)
    paths = Paths(directory.absolute())
    if not options.destroy:
        stopped = steps.down(paths)
        sys.stdout.write(
            f"the cloud in {directory} is down; its VMs run on\n" if stopped else "it was down already\n"
        )
        return 0
    try:
        steps.load(paths)
    except Unreachable:
        sys.stdout.write(f"there is no cloud in {directory}\n")
        return 0
    check_can_ask(f"down --destroy of the cloud in {directory}", options)
    cache = steps.cache_of(paths)
    confirm(
        f"destroy the cloud in {directory}",
        [*vms_on_disk(paths.node / "vms"), f"{paths.directory}: images, certificates, CA, logs"],
        options,
        [] if cache.is_relative_to(paths.directory) else [f"{cache}: downloads"],
    )
    steps.destroy(paths)
    sys.stdout.write(f"the cloud in {directory} is gone\n")
    return 0
