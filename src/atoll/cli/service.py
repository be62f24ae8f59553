"""`atoll service`: the cloud on this machine as a service that starts at boot. Effects: atoll.cli.cloud.service."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from atoll.cli.arguments import Commands, add_noun, add_verb
from atoll.cli.context import cloud_dir
from atoll.cli.output import Column, View, add_show_options, notice, render_one, style_of, write


def register(commands: Commands) -> None:
    noun = add_noun(commands, "service", "The cloud on this machine as a service that starts at boot.")
    verb = add_verb(
        noun,
        "install",
        install,
        summary="Have systemd start the cloud on this machine at every boot, and keep it up. VMs run on.",
        example="atoll up && atoll service install",
    )
    verb.add_argument("--print", action="store_true", help="print the unit, and do nothing")
    add_verb(
        noun,
        "uninstall",
        uninstall,
        summary="Stop the service and remove it. The cloud stays, and its VMs run on.",
        example="atoll service uninstall",
    )
    verb = add_verb(
        noun, "show", show, summary="Show the service, and where its log is.", example="atoll service show"
    )
    add_show_options(verb)


def install(options: argparse.Namespace) -> None:
    from atoll.cli.cloud import service, steps
    from atoll.cli.cloud.layout import Paths
    from atoll.cli.install import unit

    directory = cloud_dir(options).absolute()
    text = unit.of_cloud(Path(sys.executable), directory, service.variables(os.environ))
    if options.print:
        write(text)
        return
    steps.check_root("atoll service install")
    wanted = service.of(directory, steps.load(Paths(directory)).id)
    if service.install(wanted, text):
        notice(f"{wanted.name} is up, and starts at every boot", options)
    else:
        notice(f"{wanted.name} starts at the next boot: systemd does not run here now", options)


def uninstall(options: argparse.Namespace) -> None:
    from atoll.cli.cloud import service, steps
    from atoll.cli.cloud.layout import Paths

    steps.check_root("atoll service uninstall")
    directory = cloud_dir(options).absolute()
    found = service.of(directory, steps.load(Paths(directory)).id)
    if service.uninstall(found):
        notice(f"{found.name} is gone; the cloud in {directory} is there, and starts with: atoll up", options)
    else:
        notice(f"{found.name} is not installed", options)


def show(options: argparse.Namespace) -> None:
    style = style_of(options, VIEW)
    write(render_one(VIEW, _found(cloud_dir(options).absolute()), style))


def _found(directory: Path) -> dict[str, Any]:
    from atoll.cli.cloud import keeper, service, steps
    from atoll.cli.cloud.layout import Paths
    from atoll.cli.install import record
    from atoll.system import host

    paths = Paths(directory)
    is_node = paths.installed.exists()
    one = service.Service(record.UNIT_NAME) if is_node else service.of(directory, steps.load(paths).id)
    has_systemd = host.find_tool("systemctl") is not None
    runs = service.SYSTEMD.is_dir()
    held = keeper.running(paths)
    log = str(paths.log)
    if one.is_installed and runs:
        log = f"journalctl -u {one.name}"
    elif held is not None and held.foreground:
        log = f"what process {held.pid} writes to standard error"
    return {
        "unit": one.name,
        "installed": one.is_installed,
        "at_boot": one.is_installed and has_systemd and service.starts_at_boot(one),
        "state": service.state_of(one.name) if runs else "systemd does not run here",
        "file": str(one.path) if one.is_installed else None,
        "dir": str(directory),
        "log": log,
    }


def _yes(name: str) -> Column[dict[str, Any]]:
    return Column(name.replace("_", "-"), lambda found: "yes" if found[name] else "no")


VIEW: View[dict[str, Any]] = View(
    name=lambda found: str(found["unit"]),
    columns=(
        Column("unit", lambda found: str(found["unit"])),
        _yes("installed"),
        _yes("at_boot"),
        Column("state", lambda found: str(found["state"])),
        Column("file", lambda found: str(found["file"] or "-")),
        Column("dir", lambda found: str(found["dir"])),
        Column("log", lambda found: str(found["log"])),
    ),
)
