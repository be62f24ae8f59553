"""A cloud of the bench's own, by the `atoll` command, gone afterwards whatever happens.

Effects: all those of `atoll up` and `atoll down --destroy`, in a directory of its own.
"""

from __future__ import annotations

import http.client
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from atoll.api.client import Client
from atoll.api.hypervisor import PORT
from atoll.cli.cloud.layout import Cloud, Paths
from atoll.cli.cloud.steps import connect, load

ATOLL = Path(sys.executable).with_name("atoll")
# Not /tmp, which may be in memory: what our records cost to sync is part of what is measured.
PLACE = "/var/tmp"


class OwnCloud:
    """A cloud that is up."""

    def __init__(self, directory: Path) -> None:
        self.paths = Paths(directory)
        self.cloud: Cloud = load(self.paths)
        self.environment = _environment(directory)

    def atoll(self, *words: str) -> str:
        """Run a command, as a person would; what it prints."""
        command = [str(ATOLL), *words]
        done = subprocess.run(command, env=self.environment, stdout=subprocess.PIPE, text=True, check=True)
        return done.stdout

    def client(self) -> Client:
        """The same light client that commands use, as the administrator."""
        return connect(self.cloud, self.paths)

    @property
    def address(self) -> str:
        return f"{self.cloud.node_ip}:{PORT}"


@contextmanager
def own_cloud(*options: str) -> Iterator[OwnCloud]:
    """`atoll up` in a new directory; at the end `atoll down --destroy`."""
    place = Path(tempfile.mkdtemp(prefix="atoll-bench-", dir=PLACE))
    directory = place / "cloud"
    try:
        subprocess.run(
            [str(ATOLL), "up", "-q", *options],
            env=_environment(directory),
            check=True,
            stdout=subprocess.DEVNULL,
        )
        yield OwnCloud(directory)
    finally:
        with undisturbed():
            down = [str(ATOLL), "down", "--destroy", "--yes"]
            subprocess.run(down, env=_environment(directory), check=True, stdout=subprocess.DEVNULL)
            shutil.rmtree(place)


@contextmanager
def undisturbed() -> Iterator[None]:
    """A second Ctrl-C must not leave half of a cloud behind."""
    before = {sign: signal.signal(sign, signal.SIG_IGN) for sign in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for sign, handler in before.items():
            signal.signal(sign, handler)


def ask(ip: str) -> bytes:
    """What a guest answers over HTTP."""
    connection = http.client.HTTPConnection(ip, 80, timeout=10)
    try:
        connection.request("GET", "/")
        return connection.getresponse().read()
    finally:
        connection.close()


def _environment(directory: Path) -> dict[str, str]:
    inherited = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith("ATOLL_") or key == "ATOLL_CACHE"
    }
    return inherited | {"ATOLL_DIR": str(directory), "NO_COLOR": "1"}
