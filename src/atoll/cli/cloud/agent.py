"""The agent's process of a one-node cloud: configure, start, find, stop. Effects: that process."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from pathlib import Path

import msgspec

from atoll.api.hypervisor import PORT
from atoll.cli.cloud.layout import Cloud, Paths
from atoll.errors import AtollError, HostFailure, TimedOut
from atoll.system import files, ids, processes
from atoll.system.processes import Launch, Pid

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0
POLL_S = 0.02


def write_config(
    cloud: Cloud, paths: Paths, admin: str, drivers: tuple[str, ...], engine: Path | None = None
) -> bool:
    """Plain JSON: the agent is another program, and its configuration is the contract with it. Whether it changed."""
    config = {
        "name": node_name(),
        "ip": cloud.node_ip,
        "state": str(paths.node),
        "images": str(paths.images),
        "ids": str(ids_register()),
        "pki": {
            "ca": str(paths.pki / "ca.pem"),
            "crls": [str(paths.pki / "crl.pem")],
            "certificate": str(paths.server / "server.pem"),
            "key": str(paths.server / "server.key"),
            "authority": str(paths.pki),
        },
        "cgroup": cloud.cgroup,
        "namespace": cloud.namespace,
        "service_prefix": cloud.namespace,
        "port": PORT,
        "drivers": drivers,
        "operator_users": [admin],
        "roles": {"authority": str(paths.pki)},
        "dns": {"forward": cloud.nat},
    }
    chosen = {"templates": cloud.templates, "hot_pool": cloud.hot_pool}
    config |= {name: value for name, value in chosen.items() if value is not None}
    if paths.hooks.exists():
        config["hooks"] = msgspec.json.decode(paths.hooks.read_bytes())
    if engine is not None:
        config["container_engine"] = str(engine)
    text = msgspec.json.format(msgspec.json.encode(config), indent=2)
    if paths.agent.exists() and paths.agent.read_bytes() == text:
        return False
    files.write_durably(paths.agent, text)
    return True


def ids_register() -> Path:
    """The register of user ids that all clouds of this host share; another one where ATOLL_IDS says so."""
    return Path(os.environ.get("ATOLL_IDS") or ids.DEFAULT)


def node_name() -> str:
    """The host's own name, as far as it is one that a node can have."""
    label = socket.gethostname().split(".")[0].lower()
    kept = "".join(char if char.isascii() and char.isalnum() else "-" for char in label).strip("-")[:63]
    return kept.strip("-") or "node"


def running(paths: Paths) -> Pid | None:
    """The agent's process, if it runs."""
    try:
        pid = msgspec.json.decode(paths.pid.read_bytes(), type=Pid)
    except (OSError, msgspec.MsgspecError):
        return None
    return pid if processes.alive(pid) else None


def start(paths: Paths) -> Pid:
    """In the background, detached; it writes to its log."""
    number = processes.spawn_blocking(
        Launch(
            argv=(sys.executable, "-m", "atoll.hypervisor", str(paths.agent)),
            cwd=Path("/"),
            output=paths.log,
        )
    )
    pid = processes.identify(number)
    if pid is None:
        raise _died(paths)
    files.write_durably(paths.pid, msgspec.json.encode(pid))
    return pid


def wait_until_serving(paths: Paths, pid: Pid, address: tuple[str, int]) -> None:
    """Until it accepts connections, which it does when recovery is over."""
    until = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < until:
        if not processes.alive(pid):
            raise _died(paths)
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


def _died(paths: Paths) -> AtollError:
    try:
        last = paths.log.read_text("utf-8", "replace").strip().splitlines()[-1]
    except (OSError, IndexError):
        last = "it wrote nothing"
    return HostFailure(
        f"the agent ended while it started: {last}", hint=f"its log: {paths.log}; see: atoll doctor"
    )
