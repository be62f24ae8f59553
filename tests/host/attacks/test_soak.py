"""A soak: users, attackers and kills at one node for a long time, and then all of it is as it was at the start.

    users ───── API ──┐
    flood ───── API ──┤                       ┌── guests of three kinds, whose processes are killed
    stranger ── TLS ──┤ agent, agent, agent … ┤
    mallory ─── port ─┤ (killed in turn)      └── victim: its metadata and its lease, all the time
    noise ── console ─┘

Agents are killed every few seconds, also at named steps and in the middle of what they do. Then one agent lives through
as much again, so that what is gathered slowly shows too.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import attack_figures
from atoll.api import hypervisor as api
from atoll.api.async_client import AsyncClient
from atoll.model.network import METADATA_IP
from atoll.model.vm import VmSpec
from atoll.serving import events
from atoll.system import heap
from atoll.system.steps import STEPS
from soak_attackers import AT_DOORS, AT_GUEST_DOORS, Victim, flood, make_noise, send_frames, wear_doors_down
from soak_node import Picture, SoakNode, created, differences
from soak_users import ACTS, KINDS, User

if TYPE_CHECKING:
    from tests.host.conftest import Cli

SOAK_S = attack_figures.SOAK_S
SHORT_S = 60
SEED = int(
    os.environ.get("ATOLL_SOAK_SEED") or (0 if SOAK_S <= SHORT_S else random.SystemRandom().getrandbits(32))
)
"""A short one is the same each time, as far as clocks let it be; each long one is another."""
WARM_UP_S = 7.0
SETTLE_S = 30.0
"""For what ends by itself: connections that are cut, removals in the background, memory that is given back."""
SAMPLES = 120
LONG_S = 300
"""In a shorter soak the first quarter of an agent's life is its beginning, when its caches fill."""
USERS = ("ann", "bob", "carol", "dora")
GROWTH, SPARE_MIB = 1.10, 6 + events.KEPT_BYTES / (1 << 20)
"""Beside the tenth: the threads of pools, each with a stack and a heap of its own; and the events that are kept, which
are few in an agent that was not long at work."""
POOLED = 48
"""Threads that an agent's pools may have in all. They keep those that were needed once."""
SPARE_DESCRIPTORS = 20
"""While it is attacked: as many more or less as users and attackers have open at the least."""
NOT_HERE = (
    "write.spared",
    "docker.",
    "install.",
    "uninstall.",
    "switches.",
    "pool.",
    "handover.",
    "subnet.",
    "addresses.",
    "bulk.",
    "object.",
    "tree.",
)
FAULTS = sorted(step for step in STEPS if not step.startswith(NOT_HERE))
FAULT_KINDS = ("", "", ":TERM", ":ERROR", ":ENOSPC")


class Soak:
    """Everybody who has to do with the node, and what they did."""

    def __init__(self, node: SoakNode, seed: int) -> None:
        self.node = node
        self.choice = random.Random(seed)
        self.attacks: Counter[str] = Counter()
        self.kills: Counter[str] = Counter()
        self.users: list[User] = []
        self.memory_mib: list[float] = []
        self.descriptors: list[float] = []

    async def begin(self) -> None:
        """The victim and the VM that attacks: both are there from the beginning to the end."""
        await self.node.start()
        async with self.node.client() as operator:
            self._victim, self._mallory = [
                await self.node.guest(operator, name) for name in ("victim", "mallory")
            ]
        vm, guest = self._victim
        self.victim = Victim(self.node, guest, vm.ip)

    @contextlib.asynccontextmanager
    async def everybody(self) -> AsyncIterator[None]:
        """While the block runs, all of them are at work."""
        async with contextlib.AsyncExitStack() as stack:
            evil = await stack.enter_async_context(self.node.client("mallory"))
            self.users = [
                User(
                    name,
                    self.node,
                    await stack.enter_async_context(self.node.client(name)),
                    self._random(),
                )
                for name in USERS
            ]
            lives = (*self._attacks(evil), self.victim.live(), *(user.live() for user in self.users))
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(life) for life in lives]
                yield
                for task in tasks:
                    task.cancel()

    def _attacks(self, evil: AsyncClient) -> Iterator[Coroutine[Any, Any, None]]:
        vm, guest = self._mallory
        inside = [(kind, METADATA_IP, port, count) for kind, port, count in (*AT_DOORS, *AT_GUEST_DOORS)]
        outside = [(kind, "127.0.0.1", port, count) for kind, port, count in AT_DOORS]
        yield send_frames(guest, vm.ip, self._random(), self.attacks)
        yield wear_doors_down(guest.namespace, inside, self._random(), self.attacks)
        yield wear_doors_down(self.node.cloud.namespace, outside, self._random(), self.attacks)
        yield flood(evil, self.attacks)
        for driver in ("qemu", "lxc"):
            yield make_noise(evil, f"noise-{driver}", driver, self.attacks)

    def _random(self) -> random.Random:
        return random.Random(self.choice.getrandbits(64))

    async def warm_up(self) -> None:
        """Everything once, so that what is kept on purpose is there: a template, groups, threads, caches."""
        async with self.node.client() as operator:
            spec = VmSpec("first-lxc", "appliance", driver="lxc", milli_cpus=500)
            await created(operator, api.CreateVm(spec, wait=api.Wait("started", 60)))
        await self.make_template()
        async with self.everybody():
            await asyncio.sleep(WARM_UP_S)
        await self.destroy_all()
        await asyncio.sleep(heap.EVERY_S + 0.5)

    async def make_template(self) -> None:
        """Agents that are killed every few seconds may never come to make one, and drop one that failed."""
        async with self.node.client() as operator:
            spec = VmSpec("first-qemu", "appliance", driver="qemu", milli_cpus=500)
            await created(operator, api.CreateVm(spec, wait=api.Wait("started", 60)))
        until = time.monotonic() + SETTLE_S
        while not list(self.node.state.glob("templates/*/template.json")):
            assert time.monotonic() < until, f"there is no template: {self.node.last_words()}"
            await asyncio.sleep(0.1)

    # --- what is done to the node meanwhile

    async def kill_agents(self, for_s: float) -> None:
        """Agents live some seconds each; the last one has no fault, and lives on."""
        until = time.monotonic() + for_s
        while (now := time.monotonic()) < until:
            ends = min(until, now + self.choice.uniform(0.5, 3))
            while time.monotonic() < ends and self.node.alive():
                await asyncio.sleep(0.05)
                if self.choice.random() < 0.02:
                    self._kill_a_machine()
            self._kill_the_agent()
            if not await self.node.start(self._fault()):
                self._kill_the_agent()
                await self.node.start()
        self._kill_the_agent()
        await self.node.start()

    def _kill_the_agent(self) -> None:
        self.kills["agents" if self.node.alive() else "agents by a fault"] += 1
        self.node.kill()

    def _fault(self) -> str:
        if self.choice.random() < 0.5:
            return ""
        step, kind = self.choice.choice(FAULTS), self.choice.choice(FAULT_KINDS)
        return f"{step}:{self.choice.randrange(1, 4)}{kind}"

    def _kill_a_machine(self) -> None:
        self.kills["machines"] += self.node.kill_a_machine(self.choice)

    async def let_one_live(self, for_s: float) -> None:
        """The same agent all the time; what it takes is noted at regular intervals."""
        agent, began = self.node.served(), time.monotonic()
        for number in range(1, SAMPLES + 1):
            await asyncio.sleep(max(0.0, began + for_s * number / SAMPLES - time.monotonic()))
            assert self.node.served() == agent, f"the agent is gone: {self.node.last_words()}"
            self.memory_mib.append(self.node.resident_mib())
            self.descriptors.append(sum(1 for _ in self.node.descriptors()))
            if self.choice.random() < 0.1:
                self._kill_a_machine()

    async def destroy_all(self) -> None:
        """All but those that were there at the beginning."""
        own = {vm.ip for vm, _ in (self._victim, self._mallory)}
        async with self.node.client() as operator:
            for vm in await operator.call(api.VM_LIST):
                if vm.ip not in own:
                    await operator.call(api.VM_DESTROY, {"vm": vm.ip})

    # --- what became of it

    async def picture(self) -> Picture:
        async with self.node.client() as operator:
            return await self.node.picture(operator)

    async def changed(self, before: Picture, memory_mib: float) -> list[str]:
        """What is different from what was before, after a while."""
        until = time.monotonic() + SETTLE_S
        while True:
            found = differences(before, await self.picture())
            if (now_mib := self.node.resident_mib()) > memory_mib * GROWTH + SPARE_MIB:
                found.append(f"memory: {now_mib:.1f} MiB, before {memory_mib:.1f} MiB")
            if not found or time.monotonic() > until:
                return found
            await asyncio.sleep(0.3)

    def grown(self) -> list[str]:
        """What the agent that lived long had more of in the last quarter of its life than in the first."""
        found = []
        if SOAK_S >= LONG_S:
            first_mib, last_mib = map(statistics.median, quarters(self.memory_mib))
            if last_mib > first_mib * GROWTH + SPARE_MIB:
                found.append(f"memory grows: from {first_mib:.1f} to {last_mib:.1f} MiB")
            # The least of them: attackers have hundreds open, and then none.
            first, last = map(min, quarters(self.descriptors))
            if last > first + SPARE_DESCRIPTORS:
                found.append(f"descriptors grow: from {first} to {last}")
        if self.node.threads() > POOLED:
            found.append(f"{self.node.threads()} threads")
        return found + self.node.too_large()

    def wrong_answers(self) -> list[str]:
        """What users were told that they should not have been; and what agents without a fault did not foresee."""
        told = [surprise for user in self.users for surprise in user.surprises]
        self.node.kill()
        return told + self.node.unforeseen

    def not_tried(self) -> list[str]:
        """What has to be part of a soak, and was not."""
        creates = [f"create {kind}" for kind in KINDS]
        wanted = (
            (self.done, (*creates, "destroy", "start", "stop", "reboot", "upload", "add_volume", "cut off")),
            (self.attacks, ("frames", "connections", "refused", "guests that write without end")),
            (self.kills, ("agents", "machines")),
            (self.victim.asked, ("reads metadata", "renews its lease")),
        )
        return [f"never: {name}" for tally, names in wanted for name in names if not tally[name]]

    @property
    def done(self) -> Counter[str]:
        return sum((user.tally for user in self.users), Counter())

    def figures(self, seconds: float, memory_before_mib: float) -> dict[str, float | str]:
        done = self.done
        first_mib, last_mib = map(statistics.median, quarters(self.memory_mib))
        return {
            "seconds": seconds,
            "creates": done["create"],
            "destroys": done["destroy"],
            "other_calls": sum(done[act.__name__] for act in ACTS) - done["create"] - done["destroy"],
            "calls_cut_off": done["cut off"],
            "agents_killed": self.kills["agents"] + self.kills["agents by a fault"],
            "machines_killed": self.kills["machines"],
            "hostile_frames": self.attacks["frames"],
            "hostile_connections": self.attacks["connections"],
            "calls_refused_for_being_too_many": self.attacks["refused"],
            "good_guest_asked": self.victim.asked.total(),
            "good_guest_failed": len(self.victim.failed),
            "memory_before_mib": memory_before_mib,
            "memory_after_mib": self.node.resident_mib(),
            "memory_of_one_agent_in_its_first_quarter_mib": first_mib,
            "memory_of_one_agent_in_its_last_quarter_mib": last_mib,
            "threads_after": self.node.threads(),
        }


def quarters(samples: list[float]) -> tuple[list[float], list[float]]:
    """The first and the last."""
    quarter = max(1, len(samples) // 4)
    return samples[:quarter], samples[-quarter:]


@pytest.fixture
async def soak(
    images: Path, making_cloud: Callable[[Path], AbstractContextManager[Cli]]
) -> AsyncIterator[Soak]:
    with making_cloud(images) as cloud:
        cloud("up")
        cloud("down")
        node = SoakNode(cloud)
        with node.open():
            soak = Soak(node, SEED)
            await soak.begin()
            yield soak


@pytest.mark.timeout(SOAK_S + 240)
async def test_after_a_soak_all_is_as_it_was_and_a_good_guest_was_served_all_the_time(soak: Soak) -> None:
    began = time.monotonic()
    await soak.warm_up()
    before, memory_mib = await soak.picture(), soak.node.resident_mib()
    left_s = began + SOAK_S - time.monotonic()
    async with soak.everybody():
        await soak.kill_agents(left_s / 2)
        await soak.let_one_live(left_s / 2)
    await soak.make_template()
    await soak.destroy_all()
    wrong = await soak.changed(before, memory_mib)
    wrong += [*soak.grown(), *soak.victim.failed, *soak.not_tried()]
    figures = soak.figures(time.monotonic() - began, memory_mib)
    wrong += soak.wrong_answers()
    assert not wrong, "\n".join((f"with ATOLL_SOAK_SEED={SEED}:", *wrong[:100], str(figures)))
    attack_figures.tell("soak", **figures, left_behind="nothing")
