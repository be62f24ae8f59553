"""Whatever the agent is doing when it is killed or the disk is full: nothing is left, lost or doubled."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

import pytest

from atoll.system.steps import STEPS

# Python's ssl leaves a socket to the collector when its peer dies between connection and handshake. Ours do that.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning")

USUAL = 70
SCHEDULES = int(os.environ.get("ATOLL_FAULT_SCHEDULES", str(USUAL)))
SEED = int(os.environ.get("ATOLL_FAULT_SEED", "7"))
TRIES = 4
# Those of a command are struck in tests/host/install; test_containers.py strikes what only containers pass.
OF_AGENTS = frozenset(name for name in STEPS if name.partition(".")[0] not in ("install", "uninstall"))
NOT_OF_SIM = ("qemu.", "docker.", "change.grown", "change.shrunk")
OF_SIM = frozenset(name for name in OF_AGENTS if not name.startswith(NOT_OF_SIM))
# What a kind of machine has a part in; the rest is the same for all. Longer runs strike that too.
REAL = ("create", "launch", "qemu", "start", "stop", "halt", "destroy", "discard", "fork", "handover")
OF_QEMU = frozenset(name for name in STEPS if name.partition(".")[0] in (*REAL, "recovery"))
MORE_OF_QEMU = max(0, SCHEDULES - USUAL) // 5


def play(
    node: Any, schedules: ModuleType, faults: Iterable[str], must: frozenset[str], extra: int
) -> dict[str, Any]:
    """Run the schedules, and those that are needed for every step to be struck; then one agent to look at it all."""
    began = time.monotonic()
    player = schedules.Player(node, SEED)
    struck: set[str] = set()
    number = 0

    def run(fault: str) -> None:
        nonlocal number
        number += 1
        with schedules.told(SEED, number, fault):
            if player.run(fault, extra):
                struck.add(fault.partition(":")[0])

    for fault in faults:
        run(fault)
    for _ in range(TRIES):
        for name in sorted(must - struck):
            run(f"{name}:1")
    assert struck >= must, f"never struck: {sorted(must - struck)}"
    with schedules.told(SEED, number, "the last recovery"):
        left = node.on_disk()
        node.recovered()
        player.settle(left)
        player.leave_nothing()
    node.tally.seconds = round(time.monotonic() - began, 1)
    return {name: getattr(node.tally, name) for name in node.tally.__dataclass_fields__}


@pytest.mark.timeout(60 + SCHEDULES * 2)
def test_simulated_machines_survive_a_fault_at_every_step(
    sim_node: Any, schedules: ModuleType, note: Callable[[str, Any], None]
) -> None:
    faults = itertools.islice(schedules.faults(OF_SIM, SEED), SCHEDULES)
    note("sim", play(sim_node, schedules, faults, OF_SIM, extra=3))


@pytest.mark.timeout(180 + SCHEDULES * 2)
def test_real_guests_survive_an_agent_that_is_killed_at_every_step(
    qemu_node: Any, schedules: ModuleType, note: Callable[[str, Any], None]
) -> None:
    schedules.with_template(qemu_node)
    every = [f"{name}:1" for name in sorted(OF_QEMU)]
    more = itertools.islice(schedules.faults(OF_SIM | OF_QEMU, SEED), MORE_OF_QEMU)
    note("qemu", play(qemu_node, schedules, [*every, *more], OF_QEMU, extra=0))
