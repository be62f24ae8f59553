"""From the request to a guest that answers HTTP, in each way that a VM can come: cold, fork, pool; and a burst.

Three clouds of the bench's own, so that each way is sure: one without templates, one with, one with a hot
pool. Beside them raw QEMU, cold, with the same guest. Effects: those clouds and raw guests.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from statistics import mean, median

from cold_create import Ours, Stages, create, find_boot, stage_table
from measuring import Figure, Findings, Series, Table, alternate, at_most, say
from own_cloud import OwnCloud, ask, own_cloud
from raw_qemu import RawQemu, raw_qemu

from atoll.api.client import Client
from atoll.api.hypervisor import NODE_SHOW, VM_DESTROY
from atoll.model.vm import VM, VmSpec
from atoll.system import cgroups, processes

TITLE = "Fork and pool: request → HTTP answer"
ROUNDS = 9
BURST = 50
MILLI_CPUS = 40
FORK_S, FORK_BY_COMMAND_S, POOL_S, OF_COLD = 0.2, 0.25, 0.033, 1 / 8
BURST_S, SHARE_MIB = 25.0, 50.0
PATIENCE_S = 60.0
SETTLE_S = 0.3


class Way(Ours):
    """Creates VMs that all come in one way; anything else would be another measurement."""

    def __init__(self, way: str, cloud: OwnCloud, client: Client) -> None:
        super().__init__(cloud, client)
        self._way = way
        self.cloud = cloud
        self.client = client

    def prepare(self) -> None:
        """Until the next VM will come in this way."""
        until = time.monotonic() + PATIENCE_S
        while not self._prepared():
            if time.monotonic() > until:
                raise RuntimeError(f"no {self._way} in {PATIENCE_S:g} s; see {self.cloud.paths.log}")
            time.sleep(0.02)
        time.sleep(SETTLE_S)

    def _prepared(self) -> bool:
        node = self.client.call(NODE_SHOW)
        return {"cold": True, "fork": node.templates > 0, "pool": node.pooled > 0}[self._way]

    def by_client(self) -> float:
        self.prepare()
        return super().by_client()

    def by_command(self) -> float:
        self.prepare()
        return super().by_command()

    def check_way(self, came: str) -> None:
        if came != self._way:
            raise RuntimeError(f"a VM came {came}, not {self._way}; see {self.cloud.paths.log}")


def measure() -> Findings:
    with ExitStack() as stack:
        options = {"cold": ("--templates", "0"), "fork": (), "pool": ("--hot-pool", "4")}
        ways = {way: _way(stack, way, words) for way, words in options.items()}
        boot = find_boot(ways["cold"].cloud, ways["cold"].client)
        raw = stack.enter_context(raw_qemu(boot))
        say("the first of each boots, and leaves a template")
        for name in ("fork", "pool"):
            _destroy(ways[name], [create(ways[name].client, VmSpec(name="first", image=boot.vm.image))])
        contestants: dict[str, Callable[[], float]] = {"raw QEMU, cold": raw.create}
        for name, way in ways.items():
            contestants[f"{name}, by the client"] = way.by_client
            contestants[f"{name}, by the command"] = way.by_command
        taken = alternate(ROUNDS, contestants, say)
        say(f"{BURST} at once")
        burst = _burst(ways["fork"], boot.vm)
    return findings(taken, ways, raw, burst)


def _way(stack: ExitStack, way: str, options: Sequence[str]) -> Way:
    cloud = stack.enter_context(own_cloud(*options))
    return Way(way, cloud, stack.enter_context(cloud.client()))


def _destroy(way: Way, vms: Sequence[VM]) -> None:
    for vm in vms:
        way.client.call(VM_DESTROY, {"vm": vm.ip})


def _burst(way: Way, like: VM) -> Table:
    """Many creates at the same moment, each until its guest has answered; then what they take."""

    def one(number: int) -> tuple[float, VM]:
        with way.cloud.client() as client:
            spec = VmSpec(name=f"burst-{number}", image=like.image, milli_cpus=MILLI_CPUS)
            vm = create(client, spec)
            ask(vm.ip)
            return time.monotonic() - began, vm

    way.prepare()
    began = time.monotonic()
    with ThreadPoolExecutor(BURST) as several:
        done = list(several.map(one, range(BURST)))
    took = [after for after, _ in done]
    vms = [vm for _, vm in done]
    for vm in vms:
        way.check_way(vm.started_by)
    cpu_s = sum(cgroups.usage(_group(way, vm)).cpu_s for vm in vms)
    shares = [_share_mib(way, vm) for vm in vms]
    _destroy(way, vms)
    rows = (
        (f"all {BURST} have answered, s", f"{max(took):.1f}", _verdict(max(took), BURST_S)),
        ("the first, and the one in the middle, s", f"{min(took):.2f}, {median(took):.1f}", ""),
        ("CPU of all machines, s", f"{cpu_s:.1f}", ""),
        ("memory of one (proportional), MiB", f"{mean(shares):.1f}", _verdict(mean(shares), SHARE_MIB)),
        ("the largest, MiB", f"{max(shares):.1f}", ""),
    )
    title = f"A burst of {BURST} forks of {like.memory_mib} MiB and {MILLI_CPUS} thousandths of a CPU each"
    return Table(title, ("", "measured", "target"), rows)


def _verdict(value: float, bound: float) -> str:
    return f"under {bound:g}: {'met' if value < bound else '**missed**'}"


def _group(way: Way, vm: VM) -> str:
    return f"{way.cloud.cloud.cgroup}/{vm.driver}/{vm.ip}"


def _share_mib(way: Way, vm: VM) -> float:
    """Memory of its own, and its share of what it has in common with others."""
    (pid,) = processes.processes_in(_group(way, vm))
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith("Pss:"))
    return int(line.split()[1]) / 1024


def findings(taken: Mapping[str, Series], ways: Mapping[str, Way], raw: RawQemu, burst: Table) -> Findings:
    cold, limit = taken["cold, by the client"], taken["raw QEMU, cold"]
    fork, pool = taken["fork, by the client"], taken["pool, by the client"]
    by_command = taken["fork, by the command"]
    eighth = at_most("at most an eighth of cold", fork.median / cold.median, OF_COLD)
    figures = (
        Figure(cold.name, "s", cold, limit),
        Figure("cold, by the command", "s", taken["cold, by the command"], limit),
        Figure(fork.name, "s", fork, limit, at_most("at most 0.2 s", fork.median, FORK_S)),
        Figure("fork, as a part of cold", "s", fork, cold, eighth),
        Figure(
            by_command.name,
            "s",
            by_command,
            limit,
            at_most("at most 0.25 s", by_command.median, FORK_BY_COMMAND_S),
        ),
        Figure(pool.name, "s", pool, limit, at_most("at most 0.033 s", pool.median, POOL_S)),
        Figure("pool, by the command", "s", taken["pool, by the command"], limit),
    )
    stages: dict[str, Sequence[Stages]] = {"raw QEMU": raw.stages}
    stages |= {name: way.stages["client"] for name, way in ways.items()}
    return Findings(figures, (stage_table(stages, ", by the client"), burst), NOTES)


NOTES = (
    "Each way in a cloud of its own, by turns. The clock of ours starts with the request (the command: with "
    "its process) and ends when the whole HTTP answer of the guest is there; raw QEMU's starts with its process.",
    "A fork goes on from a template: a guest that had booted up to the point before its network. One of the pool "
    "runs already and has been through its start once.",
    "Memory is the proportional share of a machine's process (Pss), its copies of guest memory and QEMU's own.",
)
