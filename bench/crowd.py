"""A crowded node: what calls cost with 1,000 simulated VMs, beside the same calls with 10; and how late its loop is
while a real guest floods it, somebody uploads 500 MiB, and 100 clients ask about the node.

Effects: a cloud of the bench's own, with an agent that has simulated machines beside real ones.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from measuring import Figure, Findings, Series, Table, Target, at_most, say, series
from own_cloud import OwnCloud, own_cloud
from prometheus_client.parser import text_string_to_metric_families
from restart import OwnAgent, add_blank_image, own_agent

from atoll.api import hypervisor as api
from atoll.api.async_client import AsyncClient
from atoll.api.client import Client
from atoll.api.hypervisor import PORT, AddAddress, CreateVm, Since, Wait
from atoll.api.observing import METRICS
from atoll.api.route import Done
from atoll.api.volumes import VOLUME_UPLOAD, UploadVolume
from atoll.identity import store, tls
from atoll.model.event import Event, EventKind
from atoll.model.network import Address, Subnet, mac_for
from atoll.model.vm import VM, VmSpec

TITLE = "A crowded node"
FEW, SOME, MANY = 10, 100, 1000
ROUNDS = 15
UPLOAD_MIB = 500
CLIENTS = 100
LOAD_S = 20.0
LAG_BOUND_S = 0.02
SUBNET = Subnet("crowd", "10.214.0.0/21", "10.214.0.1")
FLOOD = b"""#!/bin/sh
(while :; do wget -q -O /dev/null http://169.254.169.254/latest/meta-data/; done) &
(while :; do wget -q -O /dev/null http://169.254.169.254/latest/user-data; done) &
while :; do echo 0123456789012345678901234567890123456789012345678901234567890123456789; done
"""


def measure() -> Findings:
    with own_cloud() as cloud, own_agent(cloud, overcommit={"cpus": 64, "memory": 4}) as agent:
        add_blank_image(cloud)
        with cloud.client() as client:
            client.call(api.NODE_ADD_SUBNET, body=SUBNET)
            addresses = tuple(
                Address(ip, mac_for(ip)) for ip in map(str, list(SUBNET.network)[10 : MANY + 60])
            )
            client.call(api.NODE_ADD_ADDRESS, body=AddAddress(SUBNET.id, addresses))
        memory = {0: agent.memory_mib}
        grow(cloud, FEW)
        few = calls(cloud, agent)
        grow(cloud, SOME)
        memory[SOME] = agent.memory_mib
        grow(cloud, MANY)
        memory[MANY] = agent.memory_mib
        many = calls(cloud, agent)
        say(f"{LOAD_S:g} s of a flooding guest, an upload of {UPLOAD_MIB} MiB and {CLIENTS} clients")
        lag, load = lag_under_load(cloud)
    targets: dict[str, Target | None] = dict.fromkeys(few)
    return Findings(
        tuple(Figure(f"{name}, {MANY} VMs", "s", many[name], few[name], targets[name]) for name in few),
        tables=(
            Table(
                "Memory of the agent",
                ("VMs", "MiB"),
                tuple((str(vms), f"{mib:.0f}") for vms, mib in memory.items()),
            ),
            Table("Lateness of the loop under load", ("what", "seen", "target", "met"), lag_rows(lag)),
            Table("What the load was", ("what", "seen"), load),
        ),
        notes=(f"The limit of each call is the same call on the same node with {FEW} VMs.",),
    )


def lag_rows(lag: dict[str, float]) -> tuple[tuple[str, ...], ...]:
    target = at_most(f"at most {LAG_BOUND_S * 1000:g} ms", lag["p99"], LAG_BOUND_S)
    return (
        ("99th percentile", f"{lag['p99'] * 1000:.1f} ms", target.text, "yes" if target.met else "**no**"),
        ("median", f"{lag['p50'] * 1000:.1f} ms", "", ""),
        ("samples", f"{lag['count']:.0f}", "", ""),
    )


# --- calls


def calls(cloud: OwnCloud, agent: OwnAgent) -> dict[str, Series]:
    """What each costs on the node as it is."""
    samples: dict[str, list[float]] = {name: [] for name in ("list", "create", "event", "destroy", "restart")}
    with cloud.client() as client:
        for _ in range(ROUNDS):
            samples["list"].append(timed(lambda: client.call(api.VM_LIST)))
            samples["create"].append(timed(lambda: create(client, "one-more")))
            samples["event"].append(event_after_destroy(cloud, client, samples["destroy"]))
    for _ in range(3):
        samples["restart"].append(agent.restart())
    return {name: series(name, taken) for name, taken in samples.items()}


def timed(action: Callable[[], object]) -> float:
    began = time.monotonic()
    action()
    return time.monotonic() - began


def create(client: Client, name: str) -> VM:
    spec = VmSpec(name, "blank", driver="sim", memory_mib=16, milli_cpus=10, subnet=SUBNET.id)
    return made(client, CreateVm(spec, wait=Wait("started", 60)))


def made(client: Client, request: CreateVm) -> VM:
    *_, last = client.stream(api.VM_CREATE, body=request)
    assert isinstance(last, Done)
    return last.result


def event_after_destroy(cloud: OwnCloud, client: Client, destroys: list[float]) -> float:
    """From the call that destroys a VM to the moment at which a follower of events is told."""
    told: list[float] = []
    following = threading.Event()

    def follow() -> None:
        with cloud.client() as follower:
            for event in follower.stream(api.EVENTS, query=Since(follow=True)):
                following.set()
                if not isinstance(event, Event) or event.kind is not EventKind.DESTROYED:
                    continue
                if event.vm is not None and event.vm.name == "one-more":
                    told.append(time.monotonic())
                    return

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    following.wait(10)
    began = time.monotonic()
    client.call(api.VM_DESTROY, {"vm": "one-more"})
    destroys.append(time.monotonic() - began)
    thread.join(10)
    return told[0] - began


def grow(cloud: OwnCloud, to: int) -> None:
    say(f"{to} VMs")
    with cloud.client() as client:
        for number in range(len(client.call(api.VM_LIST)), to):
            create(client, f"sim-{number}")


# --- under load


def lag_under_load(cloud: OwnCloud) -> tuple[dict[str, float], tuple[tuple[str, ...], ...]]:
    with cloud.client() as client:
        spec = VmSpec("flood", "appliance", memory_mib=128, milli_cpus=500, imdsv2_required=False)
        guest = made(client, CreateVm(spec, FLOOD, Wait("metadata", 120))).name
        before = lags(client)
        with uploading(cloud, guest) as uploaded:
            replies = asyncio.run(ask_all(cloud))
        after = lags(client)
        client.call(api.VM_DESTROY, {"vm": guest})
    counts = {bound: after[bound] - before.get(bound, 0.0) for bound in after}
    found = {"p50": quantile(counts, 0.5), "p99": quantile(counts, 0.99), "count": counts[float("inf")]}
    rows = (
        ("replies about the node, a second", f"{replies / LOAD_S:.0f}"),
        ("uploaded", f"{uploaded[0]} MiB in {uploaded[1]:.1f} s" if uploaded else "nothing"),
    )
    return found, rows


@contextmanager
def uploading(cloud: OwnCloud, guest: str) -> Iterator[list[float]]:
    done: list[float] = []

    def upload() -> None:
        content = b"\xa5" * (UPLOAD_MIB << 20)
        query = UploadVolume(hashlib.sha256(content).hexdigest())
        with cloud.client() as client:
            began = time.monotonic()
            params = {"vm": guest, "volume": "big"}
            client.upload(VOLUME_UPLOAD, params, io.BytesIO(content), len(content), query=query)
            done.extend((UPLOAD_MIB, time.monotonic() - began))

    thread = threading.Thread(target=upload, daemon=True)
    thread.start()
    try:
        yield done
    finally:
        thread.join(120)


async def ask_all(cloud: OwnCloud) -> int:
    """How many replies all clients got together."""
    credential = store.client_credential(cloud.paths.client)
    context = tls.client_context(credential.ca, credential.cert, credential.key)
    until = time.monotonic() + LOAD_S

    async def ask() -> int:
        replies = 0
        async with AsyncClient([(cloud.cloud.node_ip, PORT)], context, timeout_s=60) as client:
            while time.monotonic() < until:
                await client.call(api.NODE_SHOW)
                replies += 1
        return replies

    return sum(await asyncio.gather(*(ask() for _ in range(CLIENTS))))


def lags(client: Client) -> dict[float, float]:
    """Samples at most so late, by how late, since the agent began."""
    page = b"".join(client.download(METRICS)).decode()
    return {
        float(sample.labels["le"]): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == "atoll_loop_lag_seconds_bucket"
    }


def quantile(counts: dict[float, float], share: float) -> float:
    """Between two bounds, as if samples were spread evenly there."""
    wanted, below, before = counts[float("inf")] * share, 0.0, 0.0
    for bound in sorted(counts):
        if counts[bound] >= wanted and counts[bound] > before:
            if bound == float("inf"):
                return below
            return below + (bound - below) * (wanted - before) / (counts[bound] - before)
        below, before = bound, counts[bound]
    return below
