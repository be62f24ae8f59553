"""VMs of the shared cloud, named by their state, and a machine of its own for whoever needs the whole host."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.host.conftest import Cli

# Process 1 of a room: collects what its processes leave, until it is killed, and everything in it with it.
INIT = """
import os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
print("ready", flush=True)
while True:
    signal.sigwait({signal.SIGCHLD})
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
"""

# `ip netns` leaves its directory mounted for good when it is first used: a host where that has happened. What
# is not a tmpfs is read-only, so nothing can be left there.
FURNISH = """
set -e
mount -o remount,bind,ro /
for place in /tmp /run /var/lib /var/tmp /root; do mount -t tmpfs -o mode=0755 room $place; done
ip link set lo up
ip netns add first && ip netns delete first
exec "$0" -c "$1"
"""

SNAPSHOT = """
import json, os, pathlib, subprocess, sys

def lines(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()

def walk(top):
    return [os.path.join(where, name) for where, folders, files in os.walk(top) for name in folders + files]

def processes():
    for place in pathlib.Path("/proc").glob("[0-9]*"):
        if int(place.name) not in (1, os.getpid()):
            yield (place / "cmdline").read_bytes().replace(b"\\0", b" ").decode()

switches = pathlib.Path("/proc/sys/net/ipv4")
json.dump(
    {
        "processes": sorted(processes()),
        "files": sorted(path for top in ("/tmp", "/run", "/var/lib", "/var/tmp", "/root") for path in walk(top)),
        "mounts": sorted(line.split()[4] for line in open("/proc/self/mountinfo")),
        "links": sorted(link["ifname"] for link in json.loads("".join(lines("ip", "-j", "link")))),
        "addresses": sorted(lines("ip", "-o", "address")),
        "routes": sorted(lines("ip", "route", "show", "table", "all")),
        "rules": sorted(lines("ip", "rule")),
        "firewall": lines("nft", "list", "ruleset"),
        "switches": {str(path): path.read_text() for path in sorted(switches.glob("**/*forward*"))},
    },
    sys.stdout,
)
"""


@dataclass(frozen=True)
class Room:
    """A machine of our own, as far as Linux goes: own processes, links, firewall, mounts and files."""

    enter: tuple[str, ...]
    clouds: tuple[Cli, ...]

    def run(self, *command: str, check: bool = True) -> str:
        done = subprocess.run([*self.enter, *command], capture_output=True, text=True, timeout=60)
        assert not check or done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
        return done.stdout

    def snapshot(self) -> dict[str, Any]:
        """Everything that a cloud could leave behind; its control groups are for the test to look at."""
        seen: dict[str, Any] = json.loads(self.run(sys.executable, "-c", SNAPSHOT))
        return seen

    def read(self, cloud: Cli, file: str) -> Any:
        """A JSON file of a cloud, whose files nobody outside sees."""
        return json.loads(self.run("cat", str(cloud.directory / file)))

    def ask(self, ip: str) -> dict[str, Any]:
        """What a VM in here says of itself."""
        code = "import sys, urllib.request as r; print(r.urlopen(sys.argv[1], timeout=10).read().decode())"
        said: dict[str, Any] = json.loads(self.run(sys.executable, "-c", code, f"http://{ip}/"))
        return said


@contextmanager
def new_room(cloud: Cli) -> Iterator[Room]:
    with ExitStack() as stack:
        unshare = ["unshare", "--mount", "--pid", "--net", "--fork", "--kill-child", "--mount-proc"]
        holder = subprocess.Popen(
            [*unshare, "sh", "-c", FURNISH, sys.executable, INIT],
            stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        stack.callback(holder.wait, 30)
        stack.callback(os.kill, holder.pid, signal.SIGKILL)
        assert holder.stdout is not None
        stack.callback(holder.stdout.close)
        assert holder.stdout.readline() == b"ready\n"
        (first,) = Path(f"/proc/{holder.pid}/task/{holder.pid}/children").read_text().split()
        enter = ("nsenter", "--target", first, "--mount", "--pid", "--net", "--")
        clouds = tuple(type(cloud)(Path(f"/tmp/{name}"), prefix=enter) for name in ("one", "two"))
        yield Room(enter, clouds)


@pytest.fixture
def room(cloud: Cli, images: Path) -> Iterator[Room]:
    """A machine of our own with two directories for clouds, and the images of each in place."""
    with new_room(cloud) as room:
        for each in room.clouds:
            there = Path(f"/proc/{room.enter[2]}/root{each.directory}/images")
            shutil.copytree(images, there)
        yield room


@pytest.fixture(scope="session")
def booted(cloud: Cli, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A VM that runs, with user data. Nobody stops it."""
    script = tmp_path_factory.mktemp("booted") / "user-data"
    script.write_text("#!/bin/sh\necho the script ran on $(hostname)\nexit 42\n")
    return cloud.create("booted", "--user-data", str(script), "--tag", "tier=front")


@pytest.fixture(scope="module")
def fragile(cloud: Cli) -> Iterator[str]:
    """The name of a VM that the tests of one file may bring down."""
    cloud.create("fragile")
    yield "fragile"
    cloud.destroy("fragile")


@pytest.fixture
def running(cloud: Cli, fragile: str) -> dict[str, Any]:
    """A VM that runs and answers, and may be brought down: it is started again from however it went down."""
    cloud("vm", "start", fragile, "--wait-for", "port:80")
    return cloud.show(fragile)
