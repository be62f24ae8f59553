"""The process that keeps a container: it starts LXC's monitor, again after a reset, and keeps its last words.

The monitor tells why its container ended in its messages only. A guest can make it talk as much as it likes,
by rebooting, so only the end is kept. Pure, but for `launch`, which starts it in mounts of its own.

It is root's, and has what the monitor needs of root's rights and no more. What keeps the last words is nobody's and
has none. The container's rights do not come from there: the kernel gives it all of them in its own namespaces, less
those that the monitor drops.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from atoll.drivers.machine.base import Machine
from atoll.drivers.machine.console_log import limit_of
from atoll.drivers.machine.lxc import record
from atoll.drivers.machine.lxc.config import STAGE, container_name, keeper_group
from atoll.drivers.machine.lxc.parse import MONITOR_ENDED
from atoll.system import clock, mounts, namespaces, processes, reaper

CAPABILITIES = ("dac_override", "net_admin", "setfcap", "setgid", "setuid", "sys_admin")
"""What a monitor needs: mounts, namespaces, ids, cgroups and links of a container."""

KEPT_BYTES = 16_384
END_TIMEOUT_S = 5.0
_PAUSE_S = 0.002
_AS_NOBODY = "--reuid=65534 --regid=65534 --clear-groups --no-new-privs"

# $1 lxc-start, $2 name, $3 its path, $4 configuration, $5 whether to begin anew, $6 where the last words go,
# $7 where the word to begin comes from. PATH: with newuidmap in it LXC would want every range of ids to be listed
# in /etc/subuid.
_SCRIPT = f"""
read -r _ <"/dev/fd/$7" || exit
{{
    while :; do
        PATH=/none "$1" -F -C -n "$2" -P "$3" -f "$4" -l INFO -o /dev/fd/3 3>&1 >/dev/null 2>&1 </dev/null
        echo "{MONITOR_ENDED} $?"
        [ -e "$5" ] || break
        rm -f "$5"
    done
}} | setpriv {_AS_NOBODY} tail -c {KEPT_BYTES} >"$6.new"
mv "$6.new" "$6"
"""


def launch_of(machine: Machine, lxc_start: Path, begin: int, rights: Sequence[str]) -> processes.Launch:
    """How to start it; it begins when a line comes from this descriptor."""
    limited = ("setpriv", f"--bounding-set=-all,{','.join(f'+{name}' for name in rights)}", "--inh-caps=-all")
    arguments = (
        str(lxc_start),
        container_name(machine),
        str(STAGE),
        str(record.config_path(machine)),
        str(record.reset_path(machine)),
        str(record.messages_path(machine)),
        str(begin),
    )
    return processes.Launch(
        argv=(*limited, "--", "/bin/sh", "-c", _SCRIPT, "atoll-keeper", *arguments),
        cgroup=keeper_group(machine),
        pass_fds=(begin,),
        cwd=Path("/"),
        env={"LC_ALL": "C.UTF-8", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
        file_limit=limit_of(record.console_log_path(machine)),
    )


def launch(
    machine: Machine,
    lxc_start: Path,
    rights: Sequence[str],
    namespace: str | None,
    prepare: Callable[[], None],
) -> int:
    """Start it with these rights, in mounts of its own, which `prepare` furnishes. Its number."""

    def start() -> int:
        begin, tell = os.pipe()
        try:
            # Started first: to enter a group takes the kernel ten milliseconds, in which all else is done.
            number = processes.spawn_blocking(launch_of(machine, lxc_start, begin, rights))
        finally:
            os.close(begin)
        try:
            prepare()
            os.write(tell, b"\n")
        except BaseException:
            os.close(tell)
            _wait_gone(
                number
            )  # it ends without a word, but may not be in its group yet, where it would be found
            raise
        os.close(tell)
        return number

    reaper.begin()
    if namespace is None:
        return mounts.private(start)
    return namespaces.inside(namespace, lambda: mounts.private(start))


def _wait_gone(number: int) -> None:
    process = processes.identify(number)
    until = clock.monotonic() + END_TIMEOUT_S
    while process is not None and processes.alive(process) and clock.monotonic() < until:
        time.sleep(_PAUSE_S)
