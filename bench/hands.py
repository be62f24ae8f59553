"""A command in a guest, and a large file into one: ours on every kind, beside what engines have for their own.

Effects: a cloud and raw containers of the bench's own, with a container engine of their own; a file of a gibibyte.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from cold_create import IMAGE, create
from lxd_peer import Lxd, lxd_peer
from measuring import Figure, Findings, Series, Table, alternate, at_most, say
from own_cloud import ATOLL, OwnCloud, own_cloud
from raw_containers import NAME, RawContainers, raw_containers, raw_place

from atoll.images.store import ImageStore
from atoll.model.vm import VmSpec

TITLE = "A command in a guest, a file into one"
KINDS = ("qemu", "lxc", "docker")
ROUNDS, COPIES = 15, 3
EXEC_S, TIMES_PEER = 0.15, 2.0
TRUE = ("/bin/busybox", "true")
SIZE = 1 << 30
BLOCK = 1 << 20
ROOT_MIB = 3072
"""A copy comes beside what is there, and replaces it at its end."""
MEMORY_MIB = {"qemu": 5120}
"""The root of a QEMU guest is in its memory, and so is what is copied there."""
EXEC_PEERS = {"lxc": "lxc-attach", "docker": "docker exec"}
LXD_EXEC = "lxc exec"
COPY_PEER = "docker cp"


def measure() -> Findings:
    with ExitStack() as stack:
        place = stack.enter_context(raw_place())
        os.environ["DOCKER_HOST"] = f"unix://{place[2]}"
        stack.callback(os.environ.pop, "DOCKER_HOST")
        cloud = stack.enter_context(own_cloud("--templates", "0"))
        client = stack.enter_context(cloud.client())
        vms = [create(client, spec_of(kind)) for kind in KINDS]
        store = ImageStore(cloud.paths.images)
        image = store.get(IMAGE)
        rootfs = store.path(image, image.rootfs)
        raw = stack.enter_context(raw_containers(place, vms[0], rootfs))
        lxd = stack.enter_context(lxd_peer(place[0], raw, rootfs))
        runs = (raw.lxc_runs, raw.docker_runs, *((lxd.runs,) if isinstance(lxd, Lxd) else ()))
        for run in runs:
            stack.enter_context(run())
        execs = alternate(ROUNDS, exec_contestants(cloud, raw, lxd), say)
        about_lxd = (
            lxd if isinstance(lxd, str) else f"LXD {lxd.version()}: `{LXD_EXEC}`, its daemon up already."
        )
        with tempfile.NamedTemporaryFile(dir=cloud.paths.directory) as big:
            for _ in range(SIZE // BLOCK):
                big.write(os.urandom(BLOCK))
            big.flush()
            copies = alternate(COPIES, copy_contestants(cloud, raw, Path(big.name)), say)
    return findings(execs, copies, about_lxd)


def spec_of(kind: str) -> VmSpec:
    if kind in MEMORY_MIB:
        return VmSpec(kind, IMAGE, driver=kind, memory_mib=MEMORY_MIB[kind], milli_cpus=1000)
    return VmSpec(kind, IMAGE, driver=kind, memory_mib=256, milli_cpus=500, root_mib=ROOT_MIB)


def exec_contestants(cloud: OwnCloud, raw: RawContainers, lxd: Lxd | str) -> dict[str, Callable[[], float]]:
    commands: dict[str, Sequence[str]] = {
        f"vm exec, {kind}": (str(ATOLL), "vm", "exec", kind, "--", *TRUE) for kind in KINDS
    }
    commands[EXEC_PEERS["lxc"]] = (*raw.lxc_command("attach"), "--", *TRUE)
    commands[EXEC_PEERS["docker"]] = (*raw.docker_command, "exec", NAME, *TRUE)
    found = {name: _timed(words, cloud.environment) for name, words in commands.items()}
    if isinstance(lxd, Lxd):
        found[LXD_EXEC] = _timed(lxd.exec_command(*TRUE), lxd.environment)
    return found


def copy_contestants(cloud: OwnCloud, raw: RawContainers, file: Path) -> dict[str, Callable[[], float]]:
    commands: dict[str, Sequence[str]] = {
        f"vm cp, {kind}": (str(ATOLL), "vm", "cp", "-q", str(file), f"{kind}:/big") for kind in KINDS
    }
    commands[COPY_PEER] = (*raw.docker_command, "cp", "--quiet", str(file), f"{NAME}:/big")
    return {name: _timed(words, cloud.environment) for name, words in commands.items()}


def _timed(command: Sequence[str], environment: Mapping[str, str]) -> Callable[[], float]:
    """Seconds until the process has ended, well. A round that is not counted has gone before."""

    def run() -> float:
        began = time.monotonic()
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
        return time.monotonic() - began

    run()
    return run


def findings(execs: Mapping[str, Series], copies: Mapping[str, Series], about_lxd: str) -> Findings:
    figures = []
    for kind in KINDS:
        ours = execs[f"vm exec, {kind}"]
        peer = execs[EXEC_PEERS.get(kind, EXEC_PEERS["docker"])]
        figures.append(Figure(ours.name, "s", ours, peer, at_most("at most 0.15 s", ours.median, EXEC_S)))
    if LXD_EXEC in execs:
        ours = execs["vm exec, lxc"]
        figures.append(Figure(f"{ours.name}, beside {LXD_EXEC}", "s", ours, execs[LXD_EXEC]))
    for kind in KINDS:
        ours, peer = copies[f"vm cp, {kind}"], copies[COPY_PEER]
        target = at_most("at most twice the time of docker cp", ours.median / peer.median, TIMES_PEER)
        figures.append(Figure(ours.name, "s", ours, peer, None if kind in MEMORY_MIB else target))
    rows = tuple((name, f"{SIZE / taken.median / 1e6:.0f}") for name, taken in copies.items())
    return Findings(tuple(figures), (Table("Rate of the copies", ("by", "MB/s"), rows),), (*NOTES, about_lxd))


NOTES = (
    f"`vm exec KIND -- {' '.join(TRUE)}` and `vm cp FILE KIND:/big` are whole commands, over mTLS, with audit. "
    "Their peers work on a raw container with the same root; a QEMU guest, which has none, stands beside docker's.",
    "The file has 1 GiB of random bytes. In containers it goes to their root on disk; in the QEMU guest, which is "
    "emulated here, to its memory, over a virtual serial line, so that it works without a network.",
)
