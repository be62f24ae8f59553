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
from atoll.drivers.machine.lxc import apparmor, record
from atoll.drivers.machine.lxc.config import FURNISHED, STAGE, container_name, keeper_group
from atoll.drivers.machine.lxc.parse import MONITOR_ENDED
from atoll.errors import AtollError, HostFailure
from atoll.system import cgroups, clock, host, mounts, namespaces, processes, reaper
from atoll.system.failures import failing

CAPABILITIES = ("dac_override", "net_admin", "setfcap", "setgid", "setuid", "sys_admin")
"""What a monitor needs: mounts, namespaces, ids, cgroups and links of a container."""

KEPT_BYTES = 16_384
END_TIMEOUT_S = 5.0
SPARE_AFTER_S = 0.1
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
    """One that was started, in mounts of its own. Until it is told more it waits; it ends when we do."""

    def __init__(self, process: processes.Pid, words: BinaryIO) -> None:
        self.process = process
        self._words = words

    def furnish(self, function: Callable[[], None]) -> None:
        """Run a function among its mounts, which all that it starts sees."""
        mounts.inside(self.process, function)

    def keep(self, machine: Machine) -> None:
        """It starts LXC's monitor, which waits in turn."""
        self._tell(words_for(machine))

    def wait_in(self, machine: Machine) -> None:
        """Until it is in its group."""
        doing = f"starting machine {machine.name}"
        last = cgroups.join_paths(keeper_group(machine))[-1]
        until = clock.monotonic() + END_TIMEOUT_S
        while True:
            with failing(doing):
                if str(self.process.pid) in last.read_text().split():
                    return
            if not processes.alive(self.process) or clock.monotonic() > until:
                raise HostFailure(f"{doing}: its keeper did not enter its cgroup", hint="try again")
            time.sleep(_PAUSE_S)

    def begin(self) -> None:
        """The container's place is furnished: its monitor goes on. Called among its mounts."""
        FURNISHED.touch()
        self._tell(b"\n")
        self._words.close()

    async def give_up(self) -> None:
        """Unless it was told all, it ends. It may not be in its group yet, where it would be found."""
        if not self._words.closed:
            self._words.close()
            await processes.wait_gone(self.process, END_TIMEOUT_S)

    def _tell(self, words: bytes) -> None:
        with contextlib.suppress(
            BrokenPipeError
        ):  # that it has gone is seen by those who wait for the container
            self._words.write(words)


class Keepers:
    """Starts keepers. Once there was a need for one, the next is started before there is another."""

    def __init__(self, namespace: str | None) -> None:
        self._namespace = namespace
        self._spare: Keeper | None = None
        self._later: asyncio.TimerHandle | None = None
        self._making: asyncio.Task[None] | None = None

    async def take(self) -> Keeper:
        """One that is yours: to be furnished, or given up."""
        spare, self._spare = self._spare, None
        if spare is None:
            return await self._started()
        if processes.alive(spare.process):
            return spare
        await spare.give_up()
        return await self._started()

    def provide(self) -> None:
        """Have one for the next container, when this one is through with the worst."""
        if self._later is None and self._making is None and self._spare is None:
            self._later = asyncio.get_running_loop().call_later(SPARE_AFTER_S, self._begin_to_make)

    async def close(self) -> None:
        if self._later is not None:
            self._later.cancel()
            self._later = None
        if self._making is not None:
            await asyncio.wait({self._making})
        if self._spare is not None:
            await self._spare.give_up()
            self._spare = None

    def _begin_to_make(self) -> None:
        self._later = None
        self._making = asyncio.ensure_future(self._make())

    async def _make(self) -> None:
        try:
            with contextlib.suppress(AtollError):  # whoever needs one is told
                self._spare = await self._started()
        finally:
            self._making = None

    async def _started(self) -> Keeper:
        profile = apparmor.profile()
        place = Place(host.require_tool("lxc-start"), CAPABILITIES + profile.rights, self._namespace)
        starting = asyncio.get_running_loop().run_in_executor(None, launch, place)
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            await asyncio.wait({starting})
            if starting.exception() is None:
                await starting.result().give_up()
            raise


def launch(place: Place) -> Keeper:
    """Start one in mounts of its own."""

    def start() -> Keeper:
        mounts.tmpfs(STAGE)
        # Here LXC keeps locks and sockets, for good: now they go with it.
        mounts.tmpfs(Path("/run"))
        words, tell = os.pipe()
        told = os.fdopen(tell, "wb", buffering=0)
        try:
            process = processes.identify(processes.spawn_blocking(launch_of(place, words)))
            if process is None:
                raise HostFailure("starting the keeper of a container: it ended at once")
        except BaseException:
            told.close()
            raise
        finally:
            os.close(words)
        return Keeper(process, told)

    reaper.begin()
    if place.namespace is None:
        return mounts.private(start)
    return namespaces.inside(place.namespace, lambda: mounts.private(start))
