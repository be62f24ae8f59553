"""The process that keeps a container: it starts LXC's monitor, again after a reset, and keeps its last words.

The monitor tells why its container ended in its messages only. A guest can make it talk as much as it likes,
by rebooting, so only the end is kept. Pure, but for `launch`, which starts it in mounts of its own.
"""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path

from atoll.drivers.machine.base import Machine
from atoll.drivers.machine.lxc import record, roots
from atoll.drivers.machine.lxc.config import STAGE, container_name, keeper_group
from atoll.drivers.machine.lxc.parse import MONITOR_ENDED
from atoll.system import mounts, namespaces, processes

KEPT_BYTES = 16_384

# $1 lxc-start, $2 name, $3 its path, $4 configuration, $5 whether to begin anew, $6 where the last words go.
# PATH: with newuidmap in it LXC would want every range of ids to be listed in /etc/subuid.
_SCRIPT = f"""
{{
    while :; do
        PATH=/none "$1" -F -C -n "$2" -P "$3" -f "$4" -l INFO -o /dev/fd/3 3>&1 >/dev/null 2>&1 </dev/null
        echo "{MONITOR_ENDED} $?"
        [ -e "$5" ] || break
        rm -f "$5"
    done
}} | tail -c {KEPT_BYTES} >"$6.new"
mv "$6.new" "$6"
"""


def launch_of(machine: Machine, lxc_start: Path) -> processes.Launch:
    """How to start it. Pure."""
    arguments = (
        str(lxc_start),
        container_name(machine),
        str(STAGE),
        str(record.config_path(machine)),
        str(record.reset_path(machine)),
        str(record.messages_path(machine)),
    )
    return processes.Launch(
        argv=("/bin/sh", "-c", _SCRIPT, "atoll-keeper", *arguments),
        cgroup=keeper_group(machine),
        cwd=Path("/"),
        env={"LC_ALL": "C.UTF-8", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
    )


def launch(
    machine: Machine, base: Path, lxc_start: Path, namespace: str | None, prepared: Future[None]
) -> int:
    """Start it, with the container's root mounted where only it sees it, once all else is ready. Its number."""

    def start() -> int:
        roots.mount_root(machine, base)
        prepared.result()
        return processes.spawn_blocking(launch_of(machine, lxc_start))

    if namespace is None:
        return mounts.private(start)
    return namespaces.inside(namespace, lambda: mounts.private(start))
