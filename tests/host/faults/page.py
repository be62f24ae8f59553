"""docs/reliability.md from the figures of a run of these tests. Pure: `page.py FIGURES.json` prints it.

`make reliability` runs the tests, and writes the page when all of them held.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

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
that step for the n-th time; with `:ENOSPC` it finds the disk full there. `tests/host/faults` plays random creates, destroys, starts, stops, reboots, changes, moves to
another subnet, volumes and new addresses against it. The next agent recovers, also with a fault in its recovery; then the test compares what clients were told with the VMs listed, the records and files on
disk, free and held addresses, firewall chains, neighbours, links, cgroups and processes. At the end every VM is destroyed and the host must be as it was. Every step that the source names is struck at
least once, those of the background too (templates, the hot pool, hand-overs), or the test fails; it prints its seed (`ATOLL_FAULT_SEED`) and the schedule. `ATOLL_FAULT_SCHEDULES` makes the run longer.

One at a time, with real guests where it matters: a full file system, no process left in the cgroup, a tap that vanishes, a QEMU that hangs, a monitor socket that is gone, a record that is
truncated, random, of another shape or empty, a damaged list of addresses (`test_single.py`); the rights of QEMU and of containers (`tests/host/drivers`).

## Figures

| | simulated machines, real bridges | real guests (QEMU) |
|---|---|---|
{rows}

Agents killed, by the operation that they were in:

| | simulated machines | real guests |
|---|---|---|
{kills}
"""


def page(figures: dict[str, Any], named: int) -> str:
    """The page. Pure."""
    both = [figures["sim"], figures["qemu"]]
    rows = [
        ("schedules run", *(one["schedules"] for one in both)),
        ("agents killed at a named step", *(_at_steps(one) for one in both)),
        ("agents killed between operations", *(one["kills"].get("between operations", 0) for one in both)),
        ("named steps struck", *(len(set(one["kills"]) - {"between operations"}) for one in both)),
        ("full disks", *(sum(one["full_disks"].values()) for one in both)),
        ("operations asked for", *(sum(one["operations"].values()) for one in both)),
        ("operations acknowledged", *(one["acknowledged"] for one in both)),
        ("recoveries checked", *(one["recoveries"] for one in both)),
        ("slowest recovery, s", *(f"{one['slowest_recovery_s']:.2f}" for one in both)),
        ("lost, leaked or doubled (the first one fails the run, and this page is not written)", 0, 0),
        ("seconds", *(one["seconds"] for one in both)),
    ]
    families = sorted({_family(name) for one in both for name in one["kills"]} - {""})
    kills = [(family, *(_of_family(one, family) for one in both)) for family in families]
    return TEXT.format(named=named, rows=_table(rows), kills=_table(kills))


def _at_steps(one: dict[str, Any]) -> int:
    return sum(count for name, count in one["kills"].items() if _family(name))


def _of_family(one: dict[str, Any], family: str) -> int:
    return sum(count for name, count in one["kills"].items() if _family(name) == family)


def _family(name: str) -> str:
    family, dot, _ = name.partition(".")
    return family if dot else ""


def _table(rows: list[tuple[Any, ...]]) -> str:
    return "\n".join(f"| {' | '.join(str(cell) for cell in row)} |" for row in rows)


if __name__ == "__main__":
    from atoll.system.steps import STEPS

    sys.stdout.write(page(json.loads(Path(sys.argv[1]).read_text()), len(STEPS)))
