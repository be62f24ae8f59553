"""From the request to a guest that answers HTTP, cold: ours, and raw QEMU (and libvirt) with the same guest.

Ours is timed twice: by the light client on an open connection (the request on the wire), and by the
command, with the start and the end of its process. Effects: a cloud and raw guests of the bench's own.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median

from libvirt_peer import Libvirt, libvirt_peer
from measuring import Figure, Findings, Series, Table, Target, alternate, at_most, say
from own_cloud import OwnCloud, ask, own_cloud
from raw_qemu import Boot, raw_qemu

from atoll.api.client import Client
from atoll.api.hypervisor import NODE_SHOW, VM_CREATE, VM_DESTROY, CreateVm, Wait
from atoll.api.route import Done
from atoll.images.store import ImageStore
from atoll.model.vm import VM, StartedBy, VmSpec

TITLE = "Cold create: request → HTTP answer"
ROUNDS = 7
IMAGE = "appliance"
STAGE = "port:80"
STAGES = ("address", "volume", "started", "dhcp", "metadata", STAGE)
LIBVIRT = "libvirt, `virsh create`"
BOUND_S = 0.3
SETTLE_S = 0.1

Stages = Mapping[str, float]


class Ours:
    """Creates VMs in our cloud, one at a time, and keeps when they reached which stage."""

    def __init__(self, cloud: OwnCloud, client: Client) -> None:
        self._cloud = cloud
        self._client = client
        self._numbers = itertools.count()
        self.stages: dict[str, list[Stages]] = {"client": [], "command": []}

    def by_client(self) -> float:
        spec = VmSpec(name=self._name(), image=IMAGE)
        began = time.monotonic()
        vm = create(self._client, spec)
        ask(vm.ip)
        took = time.monotonic() - began
        self.check_way(vm.started_by)
        self._done("client", vm.ip, vm.ready)
        return took

    def by_command(self) -> float:
        words = ("vm", "create", "-q", "--name", self._name(), "--image", IMAGE)
        began = time.monotonic()
        vm = json.loads(self._cloud.atoll(*words, "--wait-for", STAGE, "-o", "json"))
        ask(vm["ip"])
        took = time.monotonic() - began
        self.check_way(vm["started_by"])
        self._done("command", vm["ip"], vm["ready"])
        return took

    def check_way(self, came: str) -> None:
        if came != StartedBy.COLD:
            raise RuntimeError(f"a VM came {came}: this is no cold create")

    def _name(self) -> str:
        return f"bench-{next(self._numbers)}"

    def _done(self, way: str, ip: str, ready: Stages) -> None:
        self.stages[way].append(ready)
        self._client.call(VM_DESTROY, {"vm": ip})
        time.sleep(SETTLE_S)


def create(client: Client, spec: VmSpec) -> VM:
    """A VM that answers on its port."""
    for line in client.stream(VM_CREATE, body=CreateVm(spec, wait=Wait(STAGE))):
        if isinstance(line, Done):
            return line.result
    raise RuntimeError(f"creating {spec.name}: the stream ended without a result")


def measure() -> Findings:
    with own_cloud("--templates", "0") as cloud, cloud.client() as client:
        boot = find_boot(cloud, client)
        with raw_qemu(boot) as raw, libvirt_peer(boot) as libvirt:
            ours = Ours(cloud, client)
            contestants: dict[str, Callable[[], float]] = {
                "raw QEMU": raw.create,
                "ours, by the client": ours.by_client,
                "ours, by the command": ours.by_command,
            }
            stages: dict[str, Sequence[Stages]] = {"raw QEMU": raw.stages, **ours.stages}
            if isinstance(libvirt, Libvirt):
                contestants[LIBVIRT] = libvirt.create
                stages["libvirt"] = libvirt.stages
            say("one of each, not counted")
            for create_one in contestants.values():
                create_one()
            taken = alternate(ROUNDS, contestants, say)
            counted = {name: runs[1:] for name, runs in stages.items()}
            about_libvirt = libvirt.note() if isinstance(libvirt, Libvirt) else libvirt
            return findings(boot, taken, counted, about_libvirt)


def find_boot(cloud: OwnCloud, client: Client) -> Boot:
    """What our side boots, and how: from a first VM, which also warms the page cache."""
    vm = create(client, VmSpec(name="bench-first", image=IMAGE))
    client.call(VM_DESTROY, {"vm": vm.ip})
    (driver,) = (driver for driver in client.call(NODE_SHOW).drivers if driver.name == vm.driver)
    store = ImageStore(cloud.paths.images)
    image = store.get(IMAGE)
    return Boot(
        vm=vm,
        kernel=store.path(image, image.boot.kernel),
        initrd=store.path(image, image.boot.initrd),
        cmdline=image.boot.cmdline,
        accelerator="kvm" if driver.accelerator == "kvm" else "tcg",
    )


def findings(
    boot: Boot, taken: Mapping[str, Series], stages: Mapping[str, Sequence[Stages]], about_libvirt: str
) -> Findings:
    limit = taken["raw QEMU"]
    figures = tuple(
        Figure(name, "s", one, limit, None if name == LIBVIRT else _target(one, limit))
        for name, one in taken.items()
        if name != limit.name
    )
    vm = boot.vm
    setting = (
        f"image {vm.image} {vm.image_digest[:12]}, {vm.memory_mib} MiB, {vm.vcpus} CPU, "
        f"{boot.accelerator}; raw QEMU has the same board, CPU, devices, kernel and initrd."
    )
    return Findings(
        figures, (stage_table(stages, "; ours from the `ready` of the VM"),), (setting, *NOTES, about_libvirt)
    )


def _target(ours: Series, limit: Series) -> Target:
    return at_most("at most 0.3 s beyond raw QEMU", ours.median - limit.median, BOUND_S)


NOTES = (
    "Raw QEMU's clock starts with its process; its tap, DHCP and metadata servers are there already, and it "
    "has no sandbox, cgroup, monitor, bridge or firewall. All that is beyond it is ours.",
    "The client's connection is open when the clock starts. The command's time includes its process.",
    "All clocks end when the whole HTTP answer of the guest is there.",
)


def stage_table(stages: Mapping[str, Sequence[Stages]], whose: str) -> Table:
    """Where the time goes: the median of each stage, and how long it took after the one before."""
    columns = stages.values()
    rows = []
    previous = [0.0 for _ in columns]
    for stage in STAGES:
        reached = [stage_median(column, stage) for column in columns]
        cells = [
            "-" if at is None else f"{at:.3f} (+{at - before:.3f})"
            for at, before in zip(reached, previous, strict=True)
        ]
        previous = [before if at is None else at for at, before in zip(reached, previous, strict=True)]
        rows.append((stage, *cells))
    title = f"Seconds to each stage, median (and since the stage before){whose}"
    return Table(title, ("stage", *stages), tuple(rows))


def stage_median(runs: Sequence[Stages], stage: str) -> float | None:
    values = [run[stage] for run in runs if stage in run]
    return median(values) if values else None
