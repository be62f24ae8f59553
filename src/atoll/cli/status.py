"""`atoll status`: whether the cloud on this machine is up, and what runs. Effects: asks the agent, prints."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atoll.cli.arguments import Commands, add_verb
from atoll.cli.context import cloud_dir
from atoll.cli.output import Column, View, add_show_options, render_one, style_of, write

if TYPE_CHECKING:
    from atoll.cli.cloud.layout import Paths


def register(commands: Commands) -> None:
    parser = add_verb(
        commands,
        "status",
        run,
        summary="Whether the cloud on this machine is up. Exit status 0: it is; 7: it is not.",
        example="atoll status -o json",
    )
    add_show_options(parser)


def run(options: argparse.Namespace) -> int:
    status = _status(options)
    write(render_one(_VIEW, status, style_of(options, _VIEW)))
    return 0 if status["agent"] == "up" else 7


def _status(options: argparse.Namespace) -> dict[str, Any]:
    from atoll.api.hypervisor import NODE_SHOW
    from atoll.cli.cloud import agent, keeper
    from atoll.cli.context import connect
    from atoll.errors import Unreachable

    paths, known = _known(cloud_dir(options).absolute())
    pid, held = agent.running(paths), keeper.running(paths)
    status: dict[str, Any] = {
        "dir": str(paths.directory),
        "agent": "down",
        "version": None,
        "pid": pid.pid if pid else None,
        "keeper": held.pid if held else None,
        "address": None,
        "namespace": None,
        "subnet": None,
        "nat": False,
        "vms": {},
        "free": None,
    } | known
    try:
        with connect(options) as client:
            node = client.call(NODE_SHOW, timeout_s=5)
    except Unreachable:
        return status
    free = {
        "memory_mib": node.free.memory_mib,
        "milli_cpus": node.free.milli_cpus,
        "disk_mib": node.free.disk_mib,
        "addresses": sum(len(pool.free) for pool in node.pools),
    }
    return status | {"agent": "up", "vms": node.vms, "free": free, "version": node.version}


def _known(directory: Path) -> tuple[Paths, dict[str, Any]]:
    """What there is in a directory, a cloud or an installed node, and what is known of it without its agent."""
    from atoll.cli.cloud import settings, steps
    from atoll.cli.cloud.layout import Paths
    from atoll.cli.install import record

    if Paths(directory).installed.exists():
        paths = record.paths_of(directory, record.load(directory))
        return paths, {"address": settings.read(paths.agent).get("ip")}
    cloud = steps.load(Paths(directory))
    return Paths(directory), {
        "address": cloud.node_ip,
        "namespace": cloud.namespace,
        "subnet": cloud.subnet.cidr,
        "nat": cloud.nat,
    }


def _words(counts: dict[str, Any] | None) -> str:
    return ", ".join(f"{value} {key}" for key, value in (counts or {}).items()) or "-"


def _field(name: str) -> Column[dict[str, Any]]:
    return Column(name, lambda status: str(status.get(name) if status.get(name) is not None else "-"))


_VIEW: View[dict[str, Any]] = View(
    name=lambda status: str(status["dir"]),
    columns=(
        *(
            _field(name)
            for name in ("dir", "agent", "version", "pid", "keeper", "address", "namespace", "subnet", "nat")
        ),
        Column("vms", lambda status: _words(status["vms"])),
        Column("free", lambda status: _words(status["free"])),
    ),
)
