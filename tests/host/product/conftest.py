"""VMs of the shared cloud, named by their state, and a machine of its own for who needs the whole host."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from process_one import INIT

if TYPE_CHECKING:
    from tests.host.conftest import Cli

# Two places can be written to: a directory for clouds and /run, where `ip netns` has been used before, which
# leaves a mount for good. The rest is read-only: nothing can be left there.
FURNISH = """
set -e
for place in $(cut -d ' ' -f 5 /proc/self/mountinfo | grep -Ev '^/(proc|sys|dev|run)(/|$)'); do
    mount -o remount,bind,ro "$place"
done
! mountpoint -q /run/netns || umount --lazy --recursive /run/netns
mount -t tmpfs -o mode=0711 room "$2"
mount -t tmpfs -o mode=0755 room /run
ip link set lo up
ip netns add first
ip netns delete first
exec "$0" -c "$1" "$3"
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
        "files": sorted(path for top in ("/run", sys.argv[1]) for path in walk(top)),
        # A root that another test has built just now is mounted below its own directory, for a while.
        "mounts": sorted(at for line in open("/proc/self/mountinfo") if "/mmdebstrap." not in (at := line.split()[4])),
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
    place: Path
    clouds: tuple[Cli, ...]
    started: list[subprocess.Popen[bytes]]

    def run(self, *command: str, check: bool = True) -> str:
        done = subprocess.run([*self.enter, *command], capture_output=True, text=True, timeout=60)
        assert not check or done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
        return done.stdout

    def start(self, *command: str) -> None:
        """A program that says when it is ready, and ends with the room."""
        process = subprocess.Popen([*self.enter, *command], stdout=subprocess.PIPE)
        self.started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"

    def path(self, name: str) -> Path:
        """A file of the room, as it is seen from outside."""
        return Path(f"/proc/{self.enter[2]}/root{self.place}/{name}")

    def snapshot(self) -> dict[str, Any]:
        """Everything that a cloud could leave behind; its control groups are for the test to look at."""
        seen: dict[str, Any] = json.loads(self.run(sys.executable, "-c", SNAPSHOT, str(self.place)))
        return seen

    def ask(self, ip: str) -> dict[str, Any]:
        """What a VM in here says of itself."""
        code = "import sys, urllib.request as r; print(r.urlopen(sys.argv[1], timeout=10).read().decode())"
        said: dict[str, Any] = json.loads(self.run(sys.executable, "-c", code, f"http://{ip}/"))
        return said

    def until_status(self, ip: str) -> int:
        """How the script of a VM in here ended, once it has."""
        until = time.monotonic() + 60
        while (status := self.ask(ip)["user_data_status"]) is None:
            assert time.monotonic() < until, "the script does not end"
            time.sleep(0.2)
        return int(status)


@pytest.fixture
def room(cloud: Cli, images: Path, tmp_path: Path) -> Iterator[Room]:
    """A machine of our own with two directories for clouds, and the images of each in place."""
    unshare = ["unshare", "--mount", "--pid", "--net", "--fork", "--kill-child", "--mount-proc"]
    tmp_path.chmod(0o711)
    places = [tmp_path / "one", tmp_path / "two"]
    # Control groups are the only thing of a cloud that would not end with the room.
    last = [[str(cloud.program), "down", "--destroy", "--yes", "--dir", str(place)] for place in places]
    holder = subprocess.Popen(
        [*unshare, "sh", "-c", FURNISH, sys.executable, INIT, str(tmp_path), json.dumps(last)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    started = [holder]
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"ready\n"
        (first,) = Path(f"/proc/{holder.pid}/task/{holder.pid}/children").read_text().split()
        enter = ("nsenter", "--target", first, "--mount", "--pid", "--net", "--")
        clouds = tuple(replace(cloud, directory=place, prefix=enter) for place in places)
        room = Room(enter, tmp_path, clouds, started)
        for place in places:
            shutil.copytree(images, room.path(place.name) / "images")
        yield room
    finally:
        for process in started:
            process.communicate(timeout=60)


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
