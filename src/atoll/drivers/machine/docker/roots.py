"""Roots of containers, which the engine keeps: held to their size by its storage, or watched by us.

Where the engine's file system has project quotas, the engine limits a container's root by itself. Elsewhere it
cannot. There we look how much each container has changed, and end one that changed too much: it may get some way
beyond its size before, by what it can write in a moment. Effects: reads the engine's files.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from atoll.drivers.machine.docker.parse import Info
from atoll.errors import HostFailure
from atoll.system import aside, clock, mounts, tree_size

LOOK_EVERY_S = 0.1
MEASURE_EVERY_S = 10.0
START_SLACK = 1 << 20
"""One that is too large already may be started, to be tidied up: as long as it grows by no more than this."""
_MIB = 1 << 20


def has_quotas(info: Info) -> bool:
    """Whether the engine can limit roots: overlays on a file system with project quotas. Looks at mounts."""
    if info.driver not in ("overlay2", "overlay") or not info.docker_root_dir:
        return False
    try:
        kind, options = mounts.options_of(Path(info.docker_root_dir))
    except HostFailure:  # it is not in mounts that we see
        return False
    return kind == "xfs" and not options.isdisjoint({"prjquota", "pquota"})


def storage_options(root_mib: int) -> dict[str, str]:
    """As a create request says it. Pure."""
    return {"size": f"{root_mib}M"}


def limit_for(size: int, found: int) -> int:
    """What a container may hold until it is stopped, of which so much was found when it was started. Pure."""
    return max(size, min(found + START_SLACK, 2 * size))


async def until_overfull(changes: Path, root_mib: int) -> int:
    """Returns when there is more in this directory than may be: how much, in bytes."""
    size = root_mib * _MIB
    used = await aside.run(tree_size.measure, changes, 2 * size)
    limit = limit_for(size, used)
    measured_at, free = clock.monotonic(), _free(changes)
    while used <= limit:
        await asyncio.sleep(LOOK_EVERY_S)
        # It has not grown by more than its file system lost: to look for that is quick.
        is_late = clock.monotonic() - measured_at > MEASURE_EVERY_S
        if is_late or free - _free(changes) > (limit - used) // 2:
            measured_at, free = clock.monotonic(), _free(changes)
            used = await aside.run(tree_size.measure, changes, limit)
    return used


def _free(path: Path) -> int:
    """Bytes that are free where this is, those that free inodes count for at least."""
    found = os.statvfs(path)
    return found.f_bfree * found.f_frsize + found.f_ffree * tree_size.LEAST_BYTES
