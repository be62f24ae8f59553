"""docs/reliability.md from the figures of a run of these tests. Pure: `page.py FIGURES.json` prints it.

`make reliability` runs the tests, and writes the page when all of them held.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

KINDS = ("kills", "stops", "errors", "full_disks")

TEXT = """# Reliability

Written by `make reliability` from what the tests counted; do not edit.

## What is promised

1. A VM that runs needs no agent. The agent can be killed at any moment: VMs run on, and the next agent finds them as they were.
2. What was acknowledged is on disk: a VM, its state, a change of it, an address given to the node.
3. What was not acknowledged is either all there or not at all: a create that was cut short leaves no process, link, firewall rule, cgroup,
   file, volume or address; a destroy, stop or move that was cut short is finished.
4. An address is never lost and never held twice: what the node was given is what is free and what VMs hold.
5. A record that cannot be read does not keep the node from starting. Its VM is shown as `damaged`, with the reason and what to do; it keeps its address,
   what runs of it runs on in its place in the network, nothing is started or written, and `atoll vm destroy IP` ends and removes it. Restore `vm.json` and restart
   the agent, and it is the VM that it was. Other VMs do not notice.
6. The list of addresses (`node.json`) is kept twice. One copy is enough. When neither can be read the agent refuses to start and says so: guessing could give
   an address to two machines. VMs run on meanwhile.
7. A restart of the agent touches nothing that runs: the same processes, the same records, not written again. A full disk, a port or cgroup that cannot be removed, a VM that
   cannot be put right: each is logged, and none keeps the node from starting.
8. A VM whose link somebody removes from the host runs on without it. Within seconds its `reason` says which link is gone and what to do (`atoll vm reboot NAME`), an event tells of it, and the audit log has
   `vm.link-lost`. A reboot, or a stop and a start, makes the link anew (ADR 26).

Not promised: that such a guest keeps its network meanwhile, or what the host's own disks and memory lose.

## How it is tested

The code names {named} steps, each between two effects (`src/atoll/system/steps.py`). A real agent, started with `ATOLL_FAULT=<step>:<n>`, ends itself by SIGKILL when it passes
that step for the n-th time; with `:TERM` it is told to stop there, with `:ENOSPC` it finds the disk full, with `:ERROR` the host fails the operation, and what was begun is undone. Several faults are
armed at once: `create.launched:1:ERROR>halt.killed:1` kills the agent while it undoes a create.

`tests/host/faults` has agents create, destroy, start, stop, reboot, change and move VMs, add and delete volumes, and take new addresses, one agent struck at each step by a kill and one by SIGTERM, and
others in their undoing; then it draws schedules of all of that at random (hypothesis, derandomized; `ATOLL_FAULT_SCHEDULES` makes the run longer), in which guests end and the host is rebooted while there is no agent. The next agent
recovers, also with a fault in its recovery; then the test compares what clients were told with the VMs listed, the records and files on
disk, free and held addresses, firewall chains, neighbours, links, cgroups and processes. At the end every VM is destroyed and the host must be as it was. Every step that the source names is struck, those of the background
too (templates, the hot pool, hand-overs, restarts that are due, starts after a reboot), or the test fails. `tests/services/hypervisor` plays the same schedules within one process, also with clients whose connections are cut at every step; what fails
there is shrunk to its smallest form and printed as a test to paste (ADR 49).

One at a time, with real guests where it matters: a full file system, no process left in the cgroup, a tap that vanishes, a QEMU that hangs, a monitor socket that is gone, a record that is
truncated, random, of another shape or empty, a damaged list of addresses (`test_single.py`); the rights of QEMU and of containers (`tests/host/drivers`).

## Figures

| | simulated machines, real bridges | real guests (QEMU) |
|---|---|---|
{rows}

Faults, by the operation that they struck:

| | simulated machines | real guests |
|---|---|---|
{kills}
"""


def page(figures: dict[str, Any], named: int) -> str:
    """The page. Pure."""
    sim = _sum([one for name, one in figures.items() if name.startswith("sim")])
    both = [sim, figures["qemu"]]
    struck = [set[str]().union(*(one[kind] for kind in KINDS)) for one in both]
    rows = [
        ("schedules run", *(one["schedules"] for one in both)),
        ("agents started with a fault or between two of them", *(one["agents"] for one in both)),
        ("agents killed at a named step", *(sum(one["kills"].values()) for one in both)),
        ("agents told to stop at a named step", *(sum(one["stops"].values()) for one in both)),
        ("operations failed at a named step", *(sum(one["errors"].values()) for one in both)),
        ("full disks", *(sum(one["full_disks"].values()) for one in both)),
        ("named steps struck", *map(len, struck)),
        ("operations asked for", *(sum(one["operations"].values()) for one in both)),
        ("operations acknowledged", *(one["acknowledged"] for one in both)),
        ("recoveries checked", *(one["recoveries"] for one in both)),
        ("slowest recovery, s", *(f"{one['slowest_recovery_s']:.2f}" for one in both)),
        ("lost, leaked or doubled (the first one fails the run, and this page is not written)", 0, 0),
        ("seconds", *(round(one["seconds"], 1) for one in both)),
    ]
    families = sorted({_family(name) for steps in struck for name in steps})
    kills = [(family, *(_of_family(one, family) for one in both)) for family in families]
    return TEXT.format(named=named, rows=_table(rows), kills=_table(kills))


def _sum(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures of several tests as those of one."""
    total: dict[str, Any] = {}
    for part in parts:
        for name, value in part.items():
            if isinstance(value, dict):
                total[name] = Counter(total.get(name, {})) + Counter(value)
            elif name.startswith("slowest"):
                total[name] = max(value, total.get(name, 0.0))
            else:
                total[name] = total.get(name, 0) + value
    return total


def _of_family(one: dict[str, Any], family: str) -> int:
    return sum(count for kind in KINDS for name, count in one[kind].items() if _family(name) == family)


def _family(name: str) -> str:
    return name.partition(".")[0]


def _table(rows: list[tuple[Any, ...]]) -> str:
    return "\n".join(f"| {' | '.join(str(cell) for cell in row)} |" for row in rows)


if __name__ == "__main__":
    from atoll.system.steps import STEPS

    sys.stdout.write(page(json.loads(Path(sys.argv[1]).read_text()), len(STEPS)))
