"""A Docker Engine or Podman of our own: private socket, data, mounts; no network; gone even if pytest is killed."""

from __future__ import annotations

import http.client
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

START_TIMEOUT_S = 60.0

# Starts the engine, in mounts of its own so that none is left, then waits until we close its input or die.
_GUARD = """
import os, shutil, signal, subprocess, sys
directory, *command = sys.argv[1:]
log = open(os.path.join(directory, "log"), "ab")
engine = subprocess.Popen(
    ["unshare", "--mount", "--propagation", "slave", "--", *command],
    stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
)
sys.stdin.read()
engine.send_signal(signal.SIGTERM)
try:
    engine.wait(30)
except subprocess.TimeoutExpired:
    engine.kill()
    engine.wait()
shutil.rmtree(directory, ignore_errors=True)
"""


def _dockerd(directory: Path, listening: Path) -> list[str]:
    return [
        "dockerd",
        f"--data-root={directory / 'data'}",
        f"--exec-root={directory / 'exec'}",
        f"--host=unix://{listening}",
        f"--pidfile={directory / 'pid'}",
        "--storage-driver=overlay2",
        "--bridge=none",
        "--iptables=false",
        "--ip6tables=false",
        "--ip-forward=false",
        "--ip-masq=false",
    ]


def _podman(directory: Path, listening: Path) -> list[str]:
    return [
        "podman",
        f"--root={directory / 'root'}",
        f"--runroot={directory / 'run'}",
        f"--tmpdir={directory / 'tmp'}",
        "--storage-driver=overlay",
        "--cgroup-manager=cgroupfs",
        "--events-backend=file",
        f"--runtime={shutil.which('runc')}",  # crun wants one version of cgroups only
        "system",
        "service",
        "--time=0",
        f"unix://{listening}",
    ]


@contextmanager
def private_engine() -> Iterator[Path]:
    """The socket of a Docker Engine that answers."""
    if shutil.which("dockerd") is None:
        pytest.skip("there is no dockerd: apt-get install docker.io")
    with _serving(_dockerd) as listening:
        yield listening


@contextmanager
def private_podman() -> Iterator[Path]:
    """The socket of a Podman that answers."""
    for program in ("podman", "runc"):
        if shutil.which(program) is None:
            pytest.skip(f"there is no {program}: apt-get install {program}")
    with _serving(_podman) as listening:
        yield listening


@contextmanager
def _serving(command: Callable[[Path, Path], list[str]]) -> Iterator[Path]:
    # Not in pytest's own directories: a socket's path must be short.
    directory = Path(tempfile.mkdtemp(prefix="atoll-engine-", dir="/var/tmp"))
    listening = directory / "docker.sock"
    guard = subprocess.Popen(
        [sys.executable, "-c", _GUARD, str(directory), *command(directory, listening)],
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    with guard:
        try:
            _wait_until_it_answers(listening, directory / "log")
            yield listening
        finally:
            assert guard.stdin is not None
            guard.stdin.close()
            guard.wait(60)


def _wait_until_it_answers(listening: Path, log: Path) -> None:
    until = time.monotonic() + START_TIMEOUT_S
    while not _answers(listening):
        assert time.monotonic() < until, f"the engine does not answer: {log.read_text()[-2000:]}"
        time.sleep(0.05)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("engine", timeout=10)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(os.fspath(self._path))


def ask(listening: Path, path: str, verb: str = "GET", body: bytes | None = None) -> bytes:
    """What the engine answers to one request."""
    connection = _UnixConnection(listening)
    headers = {"Content-Type": "application/json"} if body is not None else {}
    try:
        connection.request(verb, path, body, headers)
        return connection.getresponse().read()
    finally:
        connection.close()


def _answers(listening: Path) -> bool:
    try:
        return ask(listening, "/_ping") == b"OK"
    except (OSError, http.client.HTTPException):
        return False
