"""Which kinds of machine this host can run, and what they leave with others than us.

Effects: looks for programs and for a container engine; removes containers from it.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import msgspec
from msgspec import Struct

from atoll.cli.cloud.layout import Cloud, Paths
from atoll.drivers.machine.docker.socket import find_engine
from atoll.errors import AtollError
from atoll.system import host

log = logging.getLogger(__name__)


class _Told(Struct, frozen=True):
    """What an agent was told of kinds."""

    drivers: tuple[str, ...] = ()
    container_engine: str = ""


def offered() -> tuple[tuple[str, ...], Path | None]:
    """The kinds that are offered here, and the socket of the container engine if there is one."""
    engine = find_engine()
    lxc = ("lxc",) if host.find_tool("lxc-start") is not None else ()
    return ("qemu", *lxc, *(("docker",) if engine is not None else ())), engine


def remove_leftovers(paths: Paths, cloud: Cloud) -> None:
    """What would outlive the end of all processes and namespaces of a cloud: containers in an engine."""
    try:
        told = msgspec.json.decode(paths.agent.read_bytes(), type=_Told)
    except (OSError, msgspec.MsgspecError):
        return
    if "docker" not in told.drivers or not told.container_engine:
        return
    from atoll.drivers.machine.docker.driver import remove_containers

    try:
        asyncio.run(remove_containers(Path(told.container_engine), cloud.cgroup))
    except AtollError as error:
        log.warning("containers of this cloud may be left: %s", error)
