"""The keeper of an agent: starts it again when it ends. `python -m atoll.cli.cloud.keeper DIR CONFIG` is its process,
or `atoll up --foreground`, which a service manager watches in its turn.

It finds the agent by its pid file, so it takes over one that runs already. VMs know nothing of either.
Effects: the agent's process, and lines in its log.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from atoll.cli.cloud import agent
from atoll.cli.cloud.layout import Paths
from atoll.errors import AtollError, Conflict
from atoll.system import files, logs, processes
from atoll.system.processes import Launch, Pid

FIRST_PAUSE_S = 0.2
LAST_PAUSE_S = 30.0
SETTLED_S = 30.0
"""An agent that ran for so long has started well: the next pause is a short one again."""


def pause_after(pause_s: float, ran_s: float) -> float:
    """How long to wait before an agent is started again that ran for so long, after a pause of so long. Pure."""
    return FIRST_PAUSE_S if ran_s >= SETTLED_S else min(max(2 * pause_s, FIRST_PAUSE_S), LAST_PAUSE_S)


class Keeper:
    """Keeps one agent until told to stop. In the foreground it ends it then, and both write to standard error."""

    def __init__(self, paths: Paths, *, foreground: bool = False) -> None:
        self._paths = paths
        self._foreground = foreground
        # A signal wakes who waits for the agent, and is looked at between two steps, never within one.
        self._wakeup, self._waker = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(self._waker)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        self._stopping = False

    def run(self) -> None:
        pause_s = 0.0
        while True:
            began = time.monotonic()
            pid = agent.running(self._paths)
            if pid is not None:
                self._wait(pid)
            ran_s = time.monotonic() - began
            pause_s = pause_after(pause_s, ran_s)
            if self._stopping:
                return
            who = f"agent {pid.pid} ended" if pid else "no agent runs"
            self._say(f"{who}; starting one in {pause_s:g} s")
            self._sleep(pause_s)
            if self._stopping:
                return
            try:
                agent.start(self._paths, sys.stderr.fileno() if self._foreground else None)
            except AtollError as error:
                self._say(error.brief)

    def _wait(self, pid: Pid) -> None:
        """Until the agent has ended, or we are to."""
        try:
            handle = os.pidfd_open(pid.pid)
        except ProcessLookupError:
            return
        try:
            # Opened first, compared second: if it is the same now, it was the same when it was opened.
            while processes.alive(pid) and not self._stopping:
                self._poll(handle, None)
        finally:
            os.close(handle)

    def _sleep(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self._stopping and (left := until - time.monotonic()) > 0:
            self._poll(self._wakeup, left)

    def _poll(self, handle: int, timeout_s: float | None) -> None:
        select.select([handle, self._wakeup], [], [], timeout_s)
        with contextlib.suppress(BlockingIOError):
            os.read(self._wakeup, 4096)

    def _stop(self, *_: object) -> None:
        self._stopping = True

    def _say(self, text: str) -> None:
        line = f"{time.strftime('%Y-%m-%d %H:%M:%S')},000 WARNING atoll.keeper: {text}"
        if self._foreground:
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()
        else:
            logs.append(self._paths.log, line)


class Held(Pid, frozen=True):
    """The process of a keeper, as it is noted in its pid file."""

    foreground: bool = False


def running(paths: Paths) -> Held | None:
    """The keeper's process, if it runs."""
    try:
        pid = msgspec.json.decode(paths.keeper.read_bytes(), type=Held)
    except (OSError, msgspec.MsgspecError):
        return None
    return pid if processes.alive(pid) else None


def ensure(paths: Paths) -> Pid:
    """One keeper for the agent that runs, in the background unless there is one already."""
    found = running(paths)
    if found is not None:
        return found
    argv = (sys.executable, "-m", "atoll.cli.cloud.keeper", str(paths.directory), str(paths.agent))
    number = processes.spawn_blocking(Launch(argv=argv, cwd=Path("/"), output=paths.log))
    pid = processes.identify(number)
    if pid is None:
        raise agent.died(paths, "the keeper of the agent")
    # Written for it, so that it can be found from now on.
    files.write_durably(paths.keeper, msgspec.json.encode(pid))
    return pid


def note_foreground(paths: Paths) -> None:
    """This process is the keeper from now on; `hold` is to follow."""
    own = processes.identify(os.getpid())
    assert own is not None
    files.write_durably(paths.keeper, msgspec.json.encode(Held(own.pid, own.started, foreground=True)))


def hold(paths: Paths, begun: Callable[[], None]) -> None:
    """Keep the agent running in this process until it is told to stop; then the agent ends too, and VMs run on."""
    with files.exclusive(paths.keeper_lock):
        keeper = Keeper(paths, foreground=True)
        begun()
        keeper.run()
        agent.stop(paths)
    paths.keeper.unlink(missing_ok=True)


def stop(paths: Paths) -> None:
    """End the keeper; its agent runs on, unless it is one in the foreground. None is fine."""
    pid = running(paths)
    if pid is not None:
        processes.send_signal(pid, signal.SIGTERM)
        if not asyncio.run(processes.wait_gone(pid, agent.STOP_TIMEOUT_S)):
            processes.send_signal(pid, signal.SIGKILL)
            asyncio.run(processes.wait_gone(pid, agent.STOP_TIMEOUT_S))
    paths.keeper.unlink(missing_ok=True)


def main() -> int:
    directory, config = map(Path, sys.argv[1:])
    paths = Paths(directory, config)
    with contextlib.suppress(Conflict), files.exclusive(paths.keeper_lock):
        Keeper(paths).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
