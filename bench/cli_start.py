"""How long a command takes from its start to its end, beside an interpreter that does nothing.

Effects: a cloud of the bench's own with a few VMs; short processes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from measuring import Figure, Findings, alternate, at_most, say
from own_cloud import ATOLL, OwnCloud, own_cloud

TITLE = "Start of a command"
ROUNDS = 25
VMS = 4
BOUND_S = 0.2
LIMIT = "python -c pass"
VERSION = "atoll --version"
LIST = "atoll vm list"


def measure() -> Findings:
    with own_cloud() as cloud:
        say(f"{VMS} VMs")
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda number: create(cloud, number), range(VMS)))
        listed = len(json.loads(cloud.atoll("vm", "list", "-o", "json")))
        contestants: dict[str, Callable[[], float]] = {
            LIMIT: lambda: run(cloud, (sys.executable, "-c", "pass")),
            VERSION: lambda: run(cloud, (str(ATOLL), "--version")),
            LIST: lambda: run(cloud, (str(ATOLL), "vm", "list")),
        }
        for run_one in contestants.values():
            run_one()
        taken = alternate(ROUNDS, contestants, say)
    target = at_most("at most 0.2 s", taken[LIST].median, BOUND_S)
    return Findings(
        (
            Figure(VERSION, "s", taken[VERSION], taken[LIMIT]),
            Figure(LIST, "s", taken[LIST], taken[LIMIT], target),
        ),
        notes=(
            f"`vm list` shows {listed} idle VMs of kind qemu, over mTLS, from the agent of a one-node cloud.",
            "The limit is the interpreter of the same virtual environment. Bytecode is compiled beforehand.",
        ),
    )


def create(cloud: OwnCloud, number: int) -> None:
    cloud.atoll("vm", "create", "-q", "--name", f"bench-{number}", "--image", "appliance", "-o", "name")


def run(cloud: OwnCloud, command: Sequence[str]) -> float:
    """Seconds until the process has ended, well."""
    began = time.monotonic()
    subprocess.run(command, env=cloud.environment, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began
