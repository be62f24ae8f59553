"""Which kinds of machine this host can run, and what they leave with others than us.

Effects: looks for programs and for a container engine; removes containers from it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from atoll.drivers.machine.docker.socket import find_engine
from atoll.errors import AtollError
from atoll.system import host

log = logging.getLogger(__name__)


def offered() -> tuple[tuple[str, ...], Path | None]:
    """The kinds that are offered here, and the socket of the container engine if there is one."""
    engine = find_engine()
    lxc = ("lxc",) if host.find_tool("lxc-start") is not None else ()
    return ("qemu", *lxc, *(("docker",) if engine is not None else ())), engine


def remove_leftovers(told: Mapping[str, Any], cgroup: str) -> None:
    """What would outlive the end of all processes and namespaces of a node: containers in an engine.

    `told` is the configuration of its agent.
    """
    engine = told.get("container_engine")
    if "docker" not in told.get("drivers", ()) or not isinstance(engine, str):
        return
    from atoll.drivers.machine.docker.driver import remove_containers

    try:
        asyncio.run(remove_containers(Path(engine), cgroup))
    except AtollError as error:
        log.warning("containers of this node may be left: %s", error)
