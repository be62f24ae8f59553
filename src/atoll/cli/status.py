"""`atoll status`: which cloud is in use, whether it is up, and what runs. Effects: asks the agent, prints."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atoll.cli import remotes
from atoll.cli.arguments import Commands, add_verb
from atoll.cli.choosing import choose
from atoll.cli.context import cloud_dir
from atoll.cli.output import Column, View, add_show_options, joined, render_one, style_of, write
from atoll.cli.vm_view import show_cpus
from atoll.model.size import show_mib

if TYPE_CHECKING:
    from atoll.cli.cloud.layout import Paths


def register(commands: Commands) -> None:
    parser = add_verb(
        commands,
        "status",
        run,
        summary="Which cloud is in use, and whether it is up. Exit status 0: it is; 7: it is not.",
        example="atoll status -o json",
    )
    add_show_options(parser)


def run(options: argparse.Namespace) -> int:
    style = style_of(options, VIEW)
    status = _status(options)
    write(render_one(VIEW, status, style))
    return 0 if status["agent"] == "up" else 7


def _status(options: argparse.Namespace) -> dict[str, Any]:
    from atoll.api.hypervisor import NODE_SHOW
    from atoll.cli.context import connect
    from atoll.errors import Unreachable

    choice = choose(options)
    is_local = choice.remote == remotes.LOCAL
    status: dict[str, Any] = {
        "remote": None if is_local else choice.remote,
        "chosen_by": choice.by,
        "dir": None,
        "agent": "down",
        "version": None,
        "pid": None,
        "keeper": None,
        "address": None,
        "listen": (),
        "namespace": None,
        "subnet": None,
        "nat": False,
        "vms": {},
        "free": None,
    } | (_of_this_machine(options) if is_local else _of_remote(choice.remote))
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


def _of_remote(name: str) -> dict[str, Any]:
    found = remotes.usable(name)
    return {"dir": str(found.directory), "address": ", ".join(found.record.addresses)}


def _of_this_machine(options: argparse.Namespace) -> dict[str, Any]:
    from atoll.cli.cloud import agent, keeper

    paths, known = _known(cloud_dir(options).absolute())
    pid, held = agent.running(paths), keeper.running(paths)
    return {
        "dir": str(paths.directory),
        "pid": pid.pid if pid else None,
        "keeper": held.pid if held else None,
    } | known


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
        "listen": cloud.listen,
        "namespace": cloud.namespace,
        "subnet": cloud.subnet.cidr,
        "nat": cloud.nat,
    }


def _free(free: dict[str, int] | None) -> str:
    if free is None:
        return "-"
    memory, disk = show_mib(free["memory_mib"]), show_mib(free["disk_mib"])
    return (
        f"{show_cpus(free['milli_cpus'])} CPUs, {memory} memory, {disk} disk, {free['addresses']} addresses"
    )


def _field(name: str) -> Column[dict[str, Any]]:
    return Column(name, lambda status: str(status.get(name) if status.get(name) is not None else "-"))


VIEW: View[dict[str, Any]] = View(
    name=lambda status: str(status["remote"] or status["dir"]),
    columns=(
        _field("remote"),
        Column("chosen-by", lambda status: str(status["chosen_by"])),
        *(_field(name) for name in ("dir", "agent", "version", "pid", "keeper", "address")),
        Column("listen", lambda status: ", ".join(status["listen"]) or "-"),
        *(_field(name) for name in ("namespace", "subnet", "nat")),
        Column("vms", lambda status: joined(f"{count} {state}" for state, count in status["vms"].items())),
        Column("free", lambda status: _free(status["free"])),
    ),
)
