"""Whatever an agent is doing when it is killed, told to stop, or fails: nothing is left, lost or doubled."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from atoll.system.steps import STEPS
from fault_schedules import (
    ENOSPC,
    ERROR,
    KILL,
    OF_COMMANDS,
    OF_CONTAINERS,
    OF_IMAGES,
    OF_ISSUERS,
    OF_SIM,
    OF_UPLINKS,
    TERM,
    Schedule,
    can,
    in_undo,
    on_full_disks,
    road,
    schedules,
)

# Python's ssl leaves a socket to the collector when its peer dies between connection and handshake. Ours do that.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning")

SCHEDULES = int(os.environ.get("ATOLL_FAULT_SCHEDULES", "5"))
"""Drawn by hypothesis. Those of services under test are many more; here they are played by real agents."""
# What a kind of machine has a part in; the rest is the same for all.
REAL = ("create", "launch", "qemu", "start", "stop", "halt", "destroy", "discard", "fork", "handover")
OF_QEMU = frozenset(name for name in STEPS if name.partition(".")[0] in (*REAL, "recovery"))


def test_every_step_is_struck_here_or_elsewhere() -> None:
    elsewhere = OF_COMMANDS | OF_CONTAINERS | OF_ISSUERS | OF_UPLINKS | OF_IMAGES
    assert OF_SIM | OF_QEMU | elsewhere == STEPS


def strike(node: Any, playing: ModuleType, names: Iterable[str], kind: str) -> None:
    """One agent after the other, each struck at one of these steps."""
    wanted = sorted(name for name in names if can(name, kind))
    player = playing.play(node, Schedule(*(agent for name in wanted for agent in road(name, kind))))
    missed = sorted(set(wanted) - player.struck.keys())
    assert not missed, f"never struck: {missed}"


@pytest.fixture(scope="module")
def figures(note: Callable[[str, Any], None]) -> Callable[[str, Any, float], None]:
    def figures(name: str, node: Any, began: float) -> None:
        tally = {key: getattr(node.tally, key) for key in node.tally.__dataclass_fields__}
        note(name, tally | {"seconds": round(time.monotonic() - began, 1)})

    return figures


@pytest.mark.timeout(180)
@pytest.mark.parametrize("kind", [KILL, TERM], ids=["killed", "told to stop"])
def test_simulated_machines_survive_an_agent_that_ends_at_any_step(
    sim_node: Any, playing: ModuleType, kind: str, figures: Any
) -> None:
    began = time.monotonic()
    strike(sim_node, playing, OF_SIM, kind)
    figures(f"sim {kind or 'KILL'}", sim_node, began)


@pytest.mark.timeout(180)
def test_simulated_machines_survive_faults_while_a_failure_is_undone(
    sim_node: Any, playing: ModuleType, figures: Any
) -> None:
    began = time.monotonic()
    playing.play(sim_node, Schedule(*(agent for kind in (KILL, ERROR) for agent in in_undo(kind))))
    figures("sim undo", sim_node, began)


@pytest.mark.timeout(180)
def test_simulated_machines_survive_disks_that_are_full(
    sim_node: Any, playing: ModuleType, figures: Any
) -> None:
    began = time.monotonic()
    agents = tuple(on_full_disks())
    player = playing.play(sim_node, Schedule(*agents))
    assert player.struck.total() == len(agents)
    figures("sim full", sim_node, began)


@pytest.mark.timeout(120 + SCHEDULES * 4)
def test_simulated_machines_survive_any_schedule(sim_node: Any, playing: ModuleType, figures: Any) -> None:
    began = time.monotonic()

    # Shrinking takes real agents by the hundred; what fails here is shrunk in tests/services.
    @settings(
        max_examples=SCHEDULES,
        database=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(schedule=schedules((KILL, ERROR, TERM, ENOSPC)))
    def survive(schedule: Schedule) -> None:
        playing.play(sim_node, schedule)

    survive()
    figures("sim drawn", sim_node, began)


@pytest.mark.timeout(240)
def test_real_guests_survive_an_agent_that_is_killed_at_any_step(
    qemu_node: Any, playing: ModuleType, figures: Any
) -> None:
    began = time.monotonic()
    playing.with_template(qemu_node)
    strike(qemu_node, playing, OF_QEMU, KILL)
    figures("qemu", qemu_node, began)
