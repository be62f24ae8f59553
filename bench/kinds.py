"""From the request to a container that answers HTTP: ours, and the stock tools (and LXD) with the same guest.

Effects: a cloud and raw containers of the bench's own, with a container engine of their own.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median

from cold_create import IMAGE, STAGES, create
from lxd_peer import Lxd, lxd_peer
from measuring import Figure, Findings, Series, Table, alternate, at_most, say
from own_cloud import OwnCloud, ask, own_cloud
from raw_containers import RawContainers, raw_containers, raw_place

from atoll.api.client import Client
from atoll.api.hypervisor import VM_DESTROY
from atoll.images.store import ImageStore
from atoll.model.vm import VmSpec

TITLE = "Containers: request → HTTP answer"
ROUNDS = 9
SETTLE_S = 0.2
PEERS = {"lxc": "raw lxc-start", "docker": "docker run"}
BOUNDS = {"lxc": 1.3, "docker": 1.5}
LXD = "LXD, `lxc launch`"


class Ours:
    """Creates containers in our cloud, one at a time, and keeps when they reached which stage."""

    def __init__(self, cloud: OwnCloud, client: Client) -> None:
        self._cloud = cloud
        self._client = client
        self._numbers = itertools.count()
        self.stages: dict[str, list[Mapping[str, float]]] = {kind: [] for kind in PEERS}

    def by_client(self, kind: str) -> float:
        spec = VmSpec(name=f"bench-{next(self._numbers)}", image=IMAGE, driver=kind)
        began = time.monotonic()
        vm = create(self._client, spec)
        ask(vm.ip)
        took = time.monotonic() - began
        self.stages[kind].append(vm.ready)
        self._client.call(VM_DESTROY, {"vm": vm.ip})
        return took

    def by_command(self, kind: str) -> float:
        words = ("--name", f"bench-{next(self._numbers)}", "--image", IMAGE, "--driver", kind, "-o", "json")
        began = time.monotonic()
        vm = json.loads(self._cloud.atoll("vm", "create", "-q", *words))
        ask(vm["ip"])
        took = time.monotonic() - began
        self._client.call(VM_DESTROY, {"vm": vm["ip"]})
        return took


def measure() -> Findings:
    with raw_place() as place:
        os.environ["DOCKER_HOST"] = f"unix://{place[2]}"
        try:
            with own_cloud() as cloud, cloud.client() as client:
                store = ImageStore(cloud.paths.images)
                image = store.get(IMAGE)
                first = create(client, VmSpec(name="bench-first", image=IMAGE, driver="lxc"))
                client.call(VM_DESTROY, {"vm": first.ip})
                rootfs = store.path(image, image.rootfs)
                with raw_containers(place, first, rootfs) as raw, lxd_peer(place[0], raw, rootfs) as lxd:
                    return _compare(Ours(cloud, client), raw, lxd)
        finally:
            del os.environ["DOCKER_HOST"]


def _compare(ours: Ours, raw: RawContainers, lxd: Lxd | str) -> Findings:
    contestants: dict[str, Callable[[], float]] = {
        "raw lxc-start": raw.lxc,
        "ours, lxc": lambda: ours.by_client("lxc"),
        "ours, lxc, by the command": lambda: ours.by_command("lxc"),
        "docker run": raw.docker,
        "ours, docker": lambda: ours.by_client("docker"),
        "ours, docker, by the command": lambda: ours.by_command("docker"),
    }
    if isinstance(lxd, Lxd):
        contestants[LXD] = lxd.launch
    say("one of each, not counted")
    for one in contestants.values():
        one()
    for taken in ours.stages.values():
        taken.clear()
    settled = {name: _settled(one) for name, one in contestants.items()}
    about_lxd = lxd.note() if isinstance(lxd, Lxd) else lxd
    return findings(alternate(ROUNDS, settled, say), ours.stages, about_lxd)


def _settled(measure: Callable[[], float]) -> Callable[[], float]:
    """What a container leaves for the kernel to tidy up would else be in the time of the next one."""

    def after_a_pause() -> float:
        time.sleep(SETTLE_S)
        return measure()

    return after_a_pause


def findings(
    taken: Mapping[str, Series], stages: Mapping[str, Sequence[Mapping[str, float]]], about_lxd: str
) -> Findings:
    figures = []
    for kind, peer in PEERS.items():
        ours, limit = taken[f"ours, {kind}"], taken[peer]
        target = at_most(f"at most {BOUNDS[kind]} times {peer}", ours.median / limit.median, BOUNDS[kind])
        figures.append(Figure(f"ours, {kind}", "s", ours, limit, target))
        by_command = f"ours, {kind}, by the command"
        figures.append(Figure(by_command, "s", taken[by_command], limit))
    if LXD in taken:
        figures.append(Figure(LXD, "s", taken[LXD], taken[PEERS["lxc"]]))
    return Findings(tuple(figures), (_stages(stages),), (*NOTES, about_lxd))


def _stages(stages: Mapping[str, Sequence[Mapping[str, float]]]) -> Table:
    rows = [
        (stage, *(f"{median(run[stage] for run in stages[kind] if stage in run):.3f}" for kind in PEERS))
        for stage in STAGES
    ]
    return Table("Seconds to each stage, median, from the `ready` of the VM", ("stage", *PEERS), tuple(rows))


NOTES = (
    "The guest is the appliance's root file system, on both sides with its metadata. Raw `lxc-start -d` runs it "
    "unprivileged, from a directory that is unpacked already; `docker run` from an image that is there, in the "
    "engine's own bridge. Neither has an agent, records, a firewall, or limits.",
    "Raw clocks start with the process of the tool, ours with the request (the command: with its "
    "process); all end when the whole HTTP answer of the guest is there.",
    "A `docker` VM gets its address from outside, so its stage `dhcp` is reached when it has started.",
)
