"""What there still is on the host of a cloud, after it was destroyed."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import private_engine as engine
from atoll.system import cgroups


def groups_of(name: str) -> list[Path]:
    """What there is of a control group in any hierarchy."""
    roots = {path.parent.parent for path in cgroups.join_paths("x")} | set(cgroups.other_hierarchies())
    return [root / name for root in roots if (root / name).exists()]


def left_of(cloud_id: str, directory: Path, engine_socket: Path) -> list[str]:
    """Files, containers and their images, control groups, namespaces, mounts, what LXC keeps, processes."""
    left = [str(path) for path in (directory, *groups_of(f"atoll/{cloud_id}")) if path.exists()]
    left += map(str, Path("/run").glob(f"lxc/**/*{cloud_id}*"))
    for what in ("containers", "images"):
        left += map(str, json.loads(engine.ask(engine_socket, f"/{what}/json?all=1")))
    spaces = subprocess.run(["ip", "netns"], capture_output=True, text=True).stdout.splitlines()
    left += [line for line in spaces if cloud_id in line]
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    left += [line for line in mounts if str(directory) in line]
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = process.read_text().replace("\0", " ")
        except OSError:
            continue  # it has gone
        # Whoever cleans up behind the test waits for its end, with the directory in its words.
        left += [words] if str(directory) in words and "sys.stdin.read()" not in words else []
    return left
