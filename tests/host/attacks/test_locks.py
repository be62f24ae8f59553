"""What a local user can hold keeps no cloud from starting."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from atoll.system import namespaces
from atoll.system.directory_lock import alone_in

NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--")

HOLD = """
import fcntl, json, os, socket, sys
held = []
for name in json.loads(sys.argv[1]):
    held.append(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
    held[-1].bind("\\0" + name)
locked = []
for path in json.loads(sys.argv[2]):
    try:
        held.append(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
        fcntl.flock(held[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
        locked.append(path)
    except OSError:
        pass
print(json.dumps(locked), flush=True)
sys.stdin.read()
"""


@contextmanager
def held_by_nobody(names: list[str], paths: list[Path]) -> Iterator[set[str]]:
    """Nobody binds these abstract sockets, and locks those of these files that it can open."""
    words = [json.dumps(names), json.dumps([str(path) for path in paths])]
    with subprocess.Popen(
        [*NOBODY, "/usr/bin/python3", "-c", HOLD, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd="/",
    ) as attacker:
        assert attacker.stdin is not None
        assert attacker.stdout is not None
        yield set(json.loads(attacker.stdout.readline()))
        attacker.stdin.close()


def test_a_cloud_starts_whatever_nobody_holds(empty_cloud: Any):
    namespaces.ensure("atoll-attack-locks")
    try:
        own = empty_cloud.directory
        own.chmod(0o711)
        places = [own, *own.rglob("*"), *Path("/run").glob("*"), namespaces.DIRECTORY]
        with held_by_nobody(["atoll-up"], places) as locked:
            # There was something to hold: the images, and what ip locks.
            assert {str(own / "images"), str(namespaces.DIRECTORY)} <= locked
            empty_cloud("up", timeout=40)
            assert empty_cloud.status()["agent"]
            empty_cloud("down", "--destroy", "--yes", timeout=40)
    finally:
        namespaces.delete("atoll-attack-locks")
    # Another cloud may be coming up at this moment, and have it for a while.
    until_s = time.monotonic() + 60
    while left := list(Path("/run").glob("atoll-up*")):
        assert time.monotonic() < until_s, left
        time.sleep(0.1)


def test_nobody_can_lock_a_directory_that_is_a_lock():
    with tempfile.TemporaryDirectory(prefix="atoll-test-") as base:
        lock = Path(base) / "lock"
        Path(base).chmod(0o755)
        with alone_in(lock):
            pass
        with held_by_nobody([], [lock]) as locked:
            assert locked == set()
