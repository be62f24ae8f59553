"""A second machine, as far as Linux goes, with nothing of ours on it but a wheel that was installed there by pip."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from atoll.images.packages import fetch_kernel
from process_one import INIT

ROOT = Path(__file__).parents[3]
CACHE = os.environ.get("ATOLL_CACHE") or str(ROOT / ".cache")
DEPENDENCIES = Path(pytest.__file__).parents[1]

# What is written to /etc, /opt, /usr/local and /var/lib goes to a file system in memory; /var/lib is empty at first.
# One network is where the machine is reached; the other is a switch on which the host has no address, and no way to it:
# what is on both forwards nothing.
FURNISH = """
set -e
mount --make-rprivate /
mount -t tmpfs -o mode=0755 machine "$1"
mkdir -p "$1/upper/etc" "$1/upper/var/lib" "$1/work"
chmod 755 "$1/upper/etc" "$1/upper/var/lib"
mount -t overlay -o "lowerdir=/etc,upperdir=$1/upper/etc,workdir=$1/work" machine /etc
mount --bind "$1/upper/var/lib" /var/lib
for place in opt usr/local; do
    mkdir -p "$1/upper/$place" "$1/works/$place"
    mount -t overlay -o "lowerdir=/$place,upperdir=$1/upper/$place,workdir=$1/works/$place" machine "/$place"
done
! mountpoint -q /run/netns || umount --lazy --recursive /run/netns
mount -t tmpfs -o mode=0755 machine /run
ip link set lo up
ip netns add outside
ip link add eth0 type veth peer name office netns outside
ip link add eth1 type veth peer name lan netns outside
ip address add 10.8.0.2/24 dev eth0
ip link set eth0 up
ip -n outside link set lo up
ip -n outside address add 10.8.0.1/24 dev office
ip -n outside link set office up
ip -n outside address add 10.9.0.1/24 dev lan
ip -n outside link set lan up
ip route add default via 10.8.0.1
exec "$0" -c "$2" "$3"
"""

SNAPSHOT = """
import json, os, pathlib, subprocess, sys

def lines(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()

def files():
    # A directory above a file that was ever written stays in the upper layer: of those, only our own count.
    for top in ("/run", sys.argv[1]):
        for where, _, names in os.walk(top):
            yield from (os.path.join(where, name) for name in names)
    yield from (path for path in ("/etc/atoll", "/var/lib/atoll") if os.path.exists(path))

def processes():
    for place in pathlib.Path("/proc").glob("[0-9]*"):
        if int(place.name) not in (1, os.getpid()):
            yield (place / "cmdline").read_bytes().replace(b"\\0", b" ").decode()

def switches():
    for top in ("/proc/sys/net/ipv4", "/proc/sys/net/ipv6"):
        for path in pathlib.Path(top).rglob("*"):
            try:
                yield str(path), path.read_text()
            except OSError:
                pass

json.dump(
    {
        "processes": sorted(processes()),
        "files": sorted(files()),
        "mounts": sorted(line.split()[4] for line in open("/proc/self/mountinfo")),
        "links": sorted(
            (link["ifname"], link.get("master"), "UP" in link["flags"])
            for link in json.loads("".join(lines("ip", "-j", "link")))
        ),
        "addresses": sorted(lines("ip", "-o", "-4", "address")),
        "routes": sorted(lines("ip", "-4", "route", "show", "table", "all")),
        "neighbours": sorted(lines("ip", "neighbour", "show", "nud", "permanent")),
        "rules": sorted(lines("ip", "rule")),
        "firewall": lines("nft", "list", "ruleset"),
        "switches": dict(switches()),
    },
    sys.stdout,
)
"""


@dataclass(frozen=True)
class Machine:
    """The second machine."""

    enter: tuple[str, ...]
    place: Path

    def start(self, *command: str, **settings: str) -> subprocess.Popen[str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("ATOLL_")}
        return subprocess.Popen(
            [*self.enter, *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**inherited, "ATOLL_CACHE": CACHE, **settings},
        )

    def run(self, *command: str, check: bool = True, **settings: str) -> subprocess.CompletedProcess[str]:
        with self.start(*command, **settings) as process:
            out, err = process.communicate(timeout=120)
        done = subprocess.CompletedProcess(command, process.returncode, out, err)
        assert not check or done.returncode == 0, f"{' '.join(command)}: {done.returncode}\n{out}{err}"
        return done

    def atoll(self, *words: str, check: bool = True, **settings: str) -> subprocess.CompletedProcess[str]:
        return self.run(str(self.place / "venv/bin/atoll"), *words, check=check, **settings)

    def json(self, *words: str) -> Any:
        return json.loads(self.atoll(*words, "-o", "json").stdout)

    def refused(self, *words: str) -> tuple[int, str]:
        """The exit status of a command that is refused, and what it said."""
        done = self.atoll(*words, check=False)
        assert done.returncode != 0
        assert done.stdout == ""
        return done.returncode, done.stderr

    def snapshot(self) -> dict[str, Any]:
        """Everything that a node could leave behind; control groups are for the test to look at."""
        upper = str(self.place / "upper")
        seen: dict[str, Any] = json.loads(self.run(sys.executable, "-c", SNAPSHOT, upper).stdout)
        return seen

    def ask(self, ip: str) -> dict[str, Any]:
        """What a VM says of itself to somebody else on its network."""
        code = "import sys, urllib.request as r; print(r.urlopen(sys.argv[1], timeout=10).read().decode())"
        said: dict[str, Any] = json.loads(
            self.run(
                *("nsenter", "--net=/run/netns/outside", sys.executable, "-c", code, f"http://{ip}/")
            ).stdout
        )
        return said

    def root(self, path: str) -> Path:
        """A file of the machine, as it is seen from outside."""
        return Path(f"/proc/{self.enter[2]}/root{path}")


def wheel_of(source: Path, place: Path) -> Path:
    """What is given to others: the wheel of a tree."""
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, "--no-deps", "--no-build-isolation", "-w", str(place), str(source)], check=True)
    (made,) = place.glob("*.whl")
    return made


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheel_of(ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def machine(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A machine with the wheel installed, and nothing done with it yet."""
    place = tmp_path_factory.mktemp("machine")
    # The control groups of a node would not end with the machine.
    with new_machine(
        place, [str(place / "venv/bin/atoll"), "node", "uninstall", "--destroy", "--yes"]
    ) as made:
        _install_wheel(made, wheel)
        yield made


@contextmanager
def new_machine(place: Path, *cleaning: list[str]) -> Iterator[Machine]:
    """A machine that is gone with everything of it when the block ends; these commands are run on it then."""
    # It reaches no package index: a kernel is brought to it in the cache.
    fetch_kernel(Path(CACHE), lambda _: None)
    unshare = ["unshare", "--mount", "--pid", "--net", "--fork", "--kill-child", "--mount-proc"]
    with subprocess.Popen(
        [*unshare, "sh", "-c", FURNISH, sys.executable, str(place), INIT, json.dumps(cleaning)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"ready\n"
        (first,) = Path(f"/proc/{holder.pid}/task/{holder.pid}/children").read_text().split()
        yield Machine(("nsenter", "--target", first, "--mount", "--pid", "--net", "--"), place)


def _install_wheel(machine: Machine, wheel: Path) -> None:
    """Into an environment of its own; only what it depends on is that of the tests."""
    venv = machine.place / "venv"
    machine.run(sys.executable, "-m", "venv", "--without-pip", str(venv))
    pip = (sys.executable, "-m", "pip", "--python", str(venv / "bin/python"), "install", "-q")
    machine.run(*pip, "--disable-pip-version-check", "--no-deps", "--no-index", str(wheel))
    (packages,) = machine.root(str(venv)).glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(f"{DEPENDENCIES}\n")
    where = "import atoll; print(atoll.__file__)"
    assert machine.run(str(venv / "bin/python"), "-c", where).stdout.startswith(str(venv))
