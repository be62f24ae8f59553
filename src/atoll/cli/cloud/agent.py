"""The agent's process of a one-node cloud: configure, start, find, stop. Effects: that process."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from atoll import __version__
from atoll.api.hypervisor import PORT
from atoll.cli.cloud import settings
from atoll.cli.cloud.layout import Cloud, Paths
from atoll.errors import AtollError, HostFailure, TimedOut
from atoll.system import files, ids, processes
from atoll.system.processes import Launch, Pid

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0
POLL_S = 0.02

DROPPED = (
    *("sys_module", "sys_boot", "sys_time", "sys_rawio", "syslog"),
    *("sys_pacct", "sys_tty_config", "wake_alarm", "audit_control"),
)
"""Capabilities that no part of an agent needs: it has none of them, and neither has what it starts."""
WITHOUT_CAPABILITIES = ("setpriv", f"--bounding-set={','.join(f'-{name}' for name in DROPPED)}", "--")


def write_config(
    cloud: Cloud, paths: Paths, admin: str, drivers: tuple[str, ...], engine: Path | None = None
) -> bool:
    """Plain JSON: the agent is another program, and its configuration is the contract with it. Whether it changed."""
    generated = {
        "name": node_name(),
        "ip": cloud.node_ip,
        "state": str(paths.node),
        "images": str(paths.images),
        "ids": str(ids_register()),
        "pki": pki_of(paths),
        "cgroup": cloud.cgroup,
        "namespace": cloud.namespace,
        "service_prefix": cloud.namespace,
        "port": PORT,
        "uplink": {"link": cloud.uplink} | ({"ip6": cloud.node_ip6} if cloud.subnet.cidr6 else {}),
        "drivers": drivers,
        "operator_users": [admin],
        "roles": {"authority": str(paths.pki)},
        "dns": {"forward": cloud.nat},
        "guests_reach": ["0.0.0.0/0"] if cloud.nat else [],
    }
    chosen = {
        "templates": cloud.templates,
        "hot_pool": cloud.hot_pool,
        "listen_outside": cloud.listen or None,
    }
    generated |= {name: value for name, value in chosen.items() if value is not None}
    if paths.hooks.exists():
        generated["hooks"] = msgspec.json.decode(paths.hooks.read_bytes())
    if engine is not None:
        generated["container_engine"] = str(engine)
    own = settings.read(paths.settings)
    text = msgspec.json.format(msgspec.json.encode(settings.merged(generated, own, paths.settings)), indent=2)
    if paths.agent.exists() and paths.agent.read_bytes() == text:
        return False
    if own:
        settings.check(text, paths.settings)
    files.write_durably(paths.agent, text)
    return True


def ids_register() -> Path:
    """The register of user ids that all clouds of this host share; another one where ATOLL_IDS says so."""
    return Path(os.environ.get("ATOLL_IDS") or ids.DEFAULT)


def told(paths: Paths) -> dict[str, Any]:
    """The configuration that an agent of ours was given. Empty where there is none to be read."""
    try:
        found = msgspec.json.decode(paths.agent.read_bytes())
    except (OSError, msgspec.MsgspecError):
        return {}
    return found if isinstance(found, dict) else {}


def pki_of(paths: Paths) -> dict[str, Any]:
    """What the agent shows of itself and whom it believes, where the CA is our own."""
    return {
        "ca": str(paths.pki / "ca.pem"),
        "crls": [str(paths.pki / "crl.pem")],
        "certificate": str(paths.server / "server.pem"),
        "key": str(paths.server / "server.key"),
        "authority": str(paths.pki),
    }


def node_name() -> str:
    """The host's own name, as far as it is one that a node can have."""
    label = socket.gethostname().split(".")[0].lower()
    kept = "".join(char if char.isascii() and char.isalnum() else "-" for char in label).strip("-")[:63]
    return kept.strip("-") or "node"


class Started(Pid, frozen=True):
    """The process of an agent, as it is noted in its pid file."""

    version: str = ""
    """Of the program that it runs; empty: an earlier one, which did not note it."""


def running(paths: Paths) -> Started | None:
    """The agent's process, if it runs."""
    try:
        pid = msgspec.json.decode(paths.pid.read_bytes(), type=Started)
    except (OSError, msgspec.MsgspecError):
        return None
    return pid if processes.alive(pid) else None


def start(paths: Paths, output: Path | int | None = None) -> Started:
    """In the background, detached; it writes to its log, or to a file that is open here."""
    number = processes.spawn_blocking(
        Launch(
            argv=(*WITHOUT_CAPABILITIES, sys.executable, "-m", "atoll.hypervisor", str(paths.agent)),
            cwd=Path("/"),
            output=paths.log if output is None else output,
        )
    )
    pid = processes.identify(number)
    if pid is None:
        raise died(paths)
    started = Started(pid.pid, pid.started, __version__)
    files.write_durably(paths.pid, msgspec.json.encode(started))
    return started


def wait_until_started(paths: Paths) -> Started:
    """Until whoever keeps it running has started it."""
    until = time.monotonic() + START_TIMEOUT_S
    while (found := running(paths)) is None:
        if time.monotonic() > until:
            raise TimedOut(
                f"the agent was not started within {START_TIMEOUT_S:g} s by who keeps it running",
                hint="see: atoll status; atoll service show",
            )
        time.sleep(POLL_S)
    return found


def wait_until_serving(paths: Paths, pid: Pid, address: tuple[str, int], *, has_log: bool = True) -> None:
    """Until it accepts connections, which it does when recovery is over."""
    until = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < until:
        if not processes.alive(pid):
            raise (
                died(paths)
                if has_log
                else HostFailure("the agent ended while it started", hint="it said why above")
            )
        try:
            socket.create_connection(address, timeout=1).close()
            return
        except OSError:
            time.sleep(POLL_S)
    raise TimedOut(f"the agent did not serve within {START_TIMEOUT_S:g} s", hint=f"its log: {paths.log}")


def stop(paths: Paths) -> bool:
    """End the agent; VMs run on. Whether there was one."""
    pid = running(paths)
    if pid is None:
        return False
    processes.send_signal(pid, signal.SIGTERM)
    if not asyncio.run(processes.wait_gone(pid, STOP_TIMEOUT_S)):
        processes.send_signal(pid, signal.SIGKILL)
        asyncio.run(processes.wait_gone(pid, STOP_TIMEOUT_S))
    paths.pid.unlink(missing_ok=True)
    return True


def died(paths: Paths, who: str = "the agent") -> AtollError:
    """Why a process that was started is gone: the last thing that it said."""
    try:
        last = paths.log.read_text("utf-8", "replace").strip().splitlines()[-1]
    except (OSError, IndexError):
        last = "it wrote nothing"
    return HostFailure(
        f"{who} ended while it started: {last}", hint=f"its log: {paths.log}; see: atoll doctor"
    )
