"""No two machines of a host have the same ids: several agents, killed at any moment."""

from __future__ import annotations

import shutil
import tempfile
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from atoll.hypervisor.launch import ids as launch_ids
from atoll.hypervisor.launch.ids import NodeIds, Wish
from atoll.plan import ids as plan
from atoll.plan.ids import Ids, Space
from atoll.system import ids as system_ids
from atoll.system import steps
from atoll.system.ids import Register
from atoll.system.owners import owner_of

SPACES = (Space.USERS, Space.RANGES)


class Killed(BaseException):
    """Nobody catches this."""


class Host(RuleBasedStateMachine):
    """Two agents with their records, one register, and whatever runs."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.patch = pytest.MonkeyPatch()
        self.names = count()
        self.running: dict[str, Ids] = {}
        self.records: dict[str, dict[str, tuple[Space, Ids]]] = {"a": {}, "b": {}}
        self.agents: dict[str, NodeIds | None] = {"a": None, "b": None}
        self.kill_at = 0
        # Few slots, so that blocks come and go.
        self.patch.setattr(plan, "SLOTS", 4)
        for module, limits in ((plan, {"SPARE": 4, "LOW": 2}), (launch_ids, {"LOW": 2})):
            for name, value in limits.items():
                self.patch.setattr(module, name, value)
        uids = lambda: frozenset(ids.first for ids in self.running.values())  # noqa: E731
        self.patch.setattr(system_ids, "running_ids", uids)
        self.patch.setattr(launch_ids, "running_ids", uids)
        self.patch.setattr(steps, "step", self._step)
        for name in self.agents:
            self._make_state(name)

    def teardown(self) -> None:
        self.patch.undo()
        shutil.rmtree(self.directory)

    def _step(self, name: str) -> None:
        if name.startswith("ids.") and self.kill_at:
            self.kill_at -= 1
            if not self.kill_at:
                raise Killed

    def _make_state(self, name: str) -> None:
        (self.directory / name).mkdir()
        self.records[name] = {}

    def _start(self, name: str) -> NodeIds:
        agent = NodeIds(Register(self.directory / "ids", owner_of(self.directory / name)), SPACES)
        kept = self.records[name]
        agent.prepare({holder: Wish(space, ids) for holder, (space, ids) in kept.items()}, ())
        for holder, (space, _) in kept.items():
            found = agent.find(holder)
            assert found is not None
            kept[holder] = (space, found)
        self.agents[name] = agent
        return agent

    def _alive(self, name: str) -> NodeIds:
        return self.agents[name] or self._start(name)

    holders = Bundle("holders")

    @initialize()
    def begin(self) -> None:
        for name in self.agents:
            self._start(name)

    @rule(target=holders, name=st.sampled_from("ab"), space=st.sampled_from(SPACES), recorded=st.booleans())
    def create(self, name: str, space: Space, recorded: bool) -> tuple[str, str]:
        """A VM; or a member of the pool, which has no record."""
        agent, holder = self._alive(name), f"{name}-{next(self.names)}"
        agent._fill(space)  # what runs in the background
        ids = agent.take(holder, space)
        if recorded:
            self.records[name][holder] = (space, ids)
        self.running[holder] = ids
        return name, holder

    @rule(which=holders)
    def destroy(self, which: tuple[str, str]) -> None:
        name, holder = which
        agent = self._alive(name)
        if agent.find(holder) is not None:
            self.running.pop(holder, None)
            self.records[name].pop(holder, None)
            agent.release(holder)

    @rule(which=holders)
    def stop(self, which: tuple[str, str]) -> None:
        """It keeps what it has."""
        self.running.pop(which[1], None)

    @rule(name=st.sampled_from("ab"))
    def give_back(self, name: str) -> None:
        agent = self._alive(name)
        spare = plan.to_give_back(agent._blocks, agent._used())
        agent._blocks -= frozenset(spare)
        agent._register.give_back(*spare)

    @rule(name=st.sampled_from("ab"))
    def kill(self, name: str) -> None:
        """Its machines run on."""
        self.agents[name] = None

    @rule(name=st.sampled_from("ab"), at=st.integers(1, 6))
    def kill_while_it_starts_or_claims(self, name: str, at: int) -> None:
        self.agents[name] = None
        self.kill_at = at
        try:
            agent = self._start(name)
            agent._blocks |= {agent._register.claim(Space.USERS)}
            spare = plan.to_give_back(agent._blocks, agent._used())
            agent._register.give_back(*spare)
        except Killed:
            pass
        self.kill_at = 0
        self.agents[name] = None

    @rule(name=st.sampled_from("ab"), orderly=st.booleans())
    def lose_the_directory(self, name: str, orderly: bool) -> None:
        """Another comes in the same place. Unless it is done in good order, machines run on."""
        self.agents[name] = None
        if orderly:
            self.running = {
                holder: ids for holder, ids in self.running.items() if not holder.startswith(name)
            }
        shutil.rmtree(self.directory / name)
        self._make_state(name)

    @invariant()
    def no_two_machines_have_the_same_ids(self) -> None:
        kept = {holder: ids for records in self.records.values() for holder, (_, ids) in records.items()}
        for agent in filter(None, self.agents.values()):
            kept |= agent._held
        for holder, ids in self.running.items():
            # What runs has ids that nobody else has, whether its agent knows of it or not.
            assert kept.get(holder, ids) == ids
            kept[holder] = ids
        assert len(set(kept.values())) == len(kept)
        ranges = sorted((ids.first, ids.first + ids.count) for ids in kept.values())
        assert all(one[1] <= other[0] for one, other in zip(ranges, ranges[1:], strict=False))


TestHost = Host.TestCase
TestHost.settings = settings(
    max_examples=40, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
