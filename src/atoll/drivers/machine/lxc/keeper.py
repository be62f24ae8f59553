"""The process that keeps a container: it starts LXC's monitor, again after a reset, and keeps its last words.

The monitor tells why its container ended in its messages only. A guest can make it talk as much as it likes,
by rebooting, so only the end is kept. Pure, but for `launch`, which starts it in mounts of its own.

It is root's, and has what the monitor needs of root's rights and no more. What keeps the last words is nobody's and
has none. The container's rights do not come from there: the kernel gives it all of them in its own namespaces, less
those that the monitor drops.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from msgspec import Struct

from atoll.drivers.machine.base import Machine
from atoll.drivers.machine.console_log import limit_of
from atoll.drivers.machine.lxc import record
from atoll.drivers.machine.lxc.config import FURNISHED, STAGE, container_name, keeper_group
from atoll.drivers.machine.lxc.parse import MONITOR_ENDED
from atoll.errors import HostFailure
from atoll.system import cgroups, clock, mounts, namespaces, processes, reaper

CAPABILITIES = ("dac_override", "net_admin", "setfcap", "setgid", "setuid", "sys_admin")
"""What a monitor needs: mounts, namespaces, ids, cgroups and links of a container."""

KEPT_BYTES = 16_384
END_TIMEOUT_S = 5.0
_PAUSE_S = 0.0005
_AS_NOBODY = "--reuid=65534 --regid=65534 --clear-groups --no-new-privs"

# $1 lxc-start, $2 where it keeps containers, $3 where words come from: whom it is to keep, and then, for the monitor,
# that the root is there. Whoever should tell may end instead: then it ends too. PATH: with newuidmap in it LXC would
# want every range of ids to be listed in /etc/subuid. XFSZ: a write beyond the limit is to fail, and not to be the end.
_SCRIPT = f"""
exec <"/dev/fd/$3"
while read -r entrance || exit; [ -n "$entrance" ]; do echo 0 >"$entrance" || exit; done
read -r blocks && read -r name && read -r config && read -r reset && read -r last || exit
trap "" XFSZ
ulimit -S -f "$blocks" || exit
{{
    while :; do
        PATH=/none "$1" -F -C -n "$name" -P "$2" -f "$config" -l INFO -o /dev/fd/3 3>&1 >/dev/null 2>&1
        echo "{MONITOR_ENDED} $?"
        [ -e "$reset" ] || break
        rm -f "$reset"
    done
}} | setpriv {_AS_NOBODY} tail -c {KEPT_BYTES} >"$last.new"
mv "$last.new" "$last"
"""


class Place(Struct, frozen=True):
    """Where and as what keepers are started."""

    lxc_start: Path
    rights: tuple[str, ...]
    namespace: str | None
    """The network namespace; None is where we are."""


def launch_of(place: Place, words: int) -> processes.Launch:
    """How to start one; it is told by this descriptor whom it is to keep."""
    limited = (
        "setpriv",
        f"--bounding-set=-all,{','.join(f'+{name}' for name in place.rights)}",
        "--inh-caps=-all",
    )
    arguments = (str(place.lxc_start), str(STAGE), str(words))
    return processes.Launch(
        argv=(*limited, "--", "/bin/sh", "-c", _SCRIPT, "atoll-keeper", *arguments),
        pass_fds=(words,),
        cwd=Path("/"),
        env={"LC_ALL": "C.UTF-8", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
    )


def words_for(machine: Machine) -> bytes:
    """Which groups it enters, how far its monitor may write, and where all that it needs is."""
    lines = (
        *cgroups.entrances(keeper_group(machine)),
        "",
        processes.blocks_of(limit_of(record.console_log_path(machine))),
        container_name(machine),
        record.config_path(machine),
        record.reset_path(machine),
        record.messages_path(machine),
    )
    return "".join(f"{line}\n" for line in lines).encode()


class Keeper:
    """One that was started. Until it is told more it waits; it ends when we do."""

    def __init__(self, number: int, words: BinaryIO) -> None:
        self.number = number
        self._words = words

    def keep(self, machine: Machine) -> None:
        """It starts LXC's monitor, which waits in turn."""
        self._tell(words_for(machine))

    def wait_in(self, machine: Machine) -> None:
        """Until it is in its group, or has ended."""
        last = cgroups.join_paths(keeper_group(machine))[-1]
        process = processes.identify(self.number)
        until = clock.monotonic() + END_TIMEOUT_S
        while str(self.number) not in last.read_text().split():
            if process is None or not processes.alive(process) or clock.monotonic() > until:
                raise HostFailure(f"starting machine {machine.name}: its keeper did not enter its cgroup")
            time.sleep(_PAUSE_S)

    def begin(self) -> None:
        """The container's place is furnished: its monitor goes on."""
        FURNISHED.touch()
        self._tell(b"\n")

    def _tell(self, words: bytes) -> None:
        with contextlib.suppress(
            BrokenPipeError
        ):  # that it has gone is seen by those who wait for the container
            self._words.write(words)


def launch(place: Place, furnish: Callable[[Keeper], None]) -> int:
    """Start one in mounts of its own, which `furnish` makes. The number of the process."""

    def start() -> int:
        mounts.tmpfs(STAGE)
        # Here LXC keeps locks and sockets, for good: now they go with it.
        mounts.tmpfs(Path("/run"))
        words, tell = os.pipe()
        with os.fdopen(tell, "wb", buffering=0) as told:
            try:
                keeper = Keeper(processes.spawn_blocking(launch_of(place, words)), told)
            finally:
                os.close(words)
            try:
                furnish(keeper)
            except BaseException:
                told.close()
                _wait_gone(keeper.number)  # it may not be in its group yet, where it would be found
                raise
        return keeper.number

    reaper.begin()
    if place.namespace is None:
        return mounts.private(start)
    return namespaces.inside(place.namespace, lambda: mounts.private(start))


def _wait_gone(number: int) -> None:
    process = processes.identify(number)
    if process is not None:
        asyncio.run(processes.wait_gone(process, END_TIMEOUT_S))
