"""Who keeps the agent running: systemd where it runs this machine, a keeper of ours elsewhere. Effects: either."""

from __future__ import annotations

import socket
import time
from typing import Protocol

from atoll.cli.cloud import agent, keeper
from atoll.cli.cloud.layout import Paths
from atoll.cli.cloud.service import SYSTEMD, state_of, systemctl
from atoll.cli.install.record import UNIT_NAME
from atoll.errors import HostFailure, TimedOut
from atoll.system import processes


class Supervision(Protocol):
    """Every method may be called again."""

    name: str

    def running(self) -> bool:
        """Whether an agent is there to be kept running."""
        ...

    def start(self, address: tuple[str, int]) -> None:
        """Start the agent anew, and wait until it serves. From now on it is kept running."""
        ...

    def stop(self) -> None:
        """End it for good; VMs run on."""
        ...


def of_this_machine(paths: Paths) -> Supervision:
    return Systemd() if SYSTEMD.is_dir() else OwnKeeper(paths)


class OwnKeeper:
    """For machines without systemd."""

    name = "a keeper of ours (systemd does not run here: nobody starts it at boot)"

    def __init__(self, paths: Paths) -> None:
        self._paths = paths

    def running(self) -> bool:
        return agent.running(self._paths) is not None and keeper.running(self._paths) is not None

    def start(self, address: tuple[str, int]) -> None:
        self.stop()
        agent.wait_until_serving(self._paths, agent.start(self._paths), address)
        keeper.ensure(self._paths)

    def stop(self) -> None:
        keeper.stop(self._paths)
        agent.stop(self._paths)


class Systemd:
    name = f"systemd ({UNIT_NAME})"

    def running(self) -> bool:
        return state_of(UNIT_NAME) == "active"

    def start(self, address: tuple[str, int]) -> None:
        systemctl("daemon-reload")
        systemctl("enable", "--quiet", UNIT_NAME)
        systemctl("restart", UNIT_NAME)
        until = time.monotonic() + agent.START_TIMEOUT_S
        while time.monotonic() < until:
            if (state := state_of(UNIT_NAME)) != "active":
                raise HostFailure(f"the agent ended while it started: {UNIT_NAME} is {state}", hint=_LOG)
            try:
                socket.create_connection(address, timeout=1).close()
                return
            except OSError:
                time.sleep(0.1)
        raise TimedOut(f"the agent did not serve within {agent.START_TIMEOUT_S:g} s", hint=_LOG)

    def stop(self) -> None:
        # Not known is fine: it may be half installed.
        processes.run_blocking(("systemctl", "disable", "--now", "--quiet", UNIT_NAME), check=False)
        processes.run_blocking(("systemctl", "reset-failed", UNIT_NAME), check=False)


_LOG = f"its log: journalctl -u {UNIT_NAME}"


def reload() -> None:
    """Have systemd see that a unit has come or gone."""
    if SYSTEMD.is_dir():
        systemctl("daemon-reload")
