"""How long a command takes from its start to its end, beside an interpreter that does nothing; and on a busy node.

Effects: a cloud of the bench's own with a few VMs, then with many that are made at once; short processes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import cold_create
from measuring import Figure, Findings, Series, alternate, at_most, say, series
from own_cloud import ATOLL, OwnCloud, own_cloud

from atoll.model.vm import VmSpec

TITLE = "Start of a command"
ROUNDS = 25
VMS = 4
AT_ONCE = 30
MILLI_CPUS = 40
BOUND_S, BUSY_BOUND_S = 0.1, 0.3
LIMIT = "python -c pass"
VERSION = "atoll --version"
LIST = "atoll vm list"
BUSY = f"atoll vm list, while {AT_ONCE} VMs are created"


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
        busy = while_creating(cloud)
    target = at_most("at most 0.1 s", taken[LIST].median, BOUND_S)
    busy_target = at_most("at most 0.3 s", busy.median, BUSY_BOUND_S)
    return Findings(
        (
            Figure(VERSION, "s", taken[VERSION], taken[LIMIT]),
            Figure(LIST, "s", taken[LIST], taken[LIMIT], target),
            Figure(BUSY, "s", busy, taken[LIST], busy_target),
        ),
        notes=(
            f"`vm list` shows {listed} idle VMs of kind qemu, over mTLS, from the agent of a one-node cloud.",
            "The limit is the interpreter of the same virtual environment. Bytecode is compiled beforehand.",
            f"The {AT_ONCE} VMs are asked for at the same moment, by as many clients, and are forks of one template; "
            "the limit of that list is the same command before.",
        ),
    )


def while_creating(cloud: OwnCloud) -> Series:
    """What a list takes, one after the other, from the moment at which many VMs are asked for until they are there."""
    say(f"{AT_ONCE} at once")
    samples: list[float] = []
    with ThreadPoolExecutor(AT_ONCE) as pool:
        creates = [pool.submit(create_by_client, cloud, number) for number in range(AT_ONCE)]
        while not all(one.done() for one in creates):
            samples.append(run(cloud, (str(ATOLL), "vm", "list")))
        for one in creates:
            one.result()
    return series(BUSY, samples)


def create_by_client(cloud: OwnCloud, number: int) -> None:
    spec = VmSpec(name=f"crowd-{number}", image="appliance", milli_cpus=MILLI_CPUS)
    with cloud.client() as client:
        cold_create.create(client, spec)


def create(cloud: OwnCloud, number: int) -> None:
    words = ("--name", f"bench-{number}", "--image", "appliance", "--cpus", f"{MILLI_CPUS}m")
    cloud.atoll("vm", "create", "-q", *words, "-o", "name")


def run(cloud: OwnCloud, command: Sequence[str]) -> float:
    """Seconds until the process has ended, well."""
    began = time.monotonic()
    subprocess.run(command, env=cloud.environment, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began
