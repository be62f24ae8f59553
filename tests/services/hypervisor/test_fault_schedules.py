"""Whatever is asked of an agent, and whatever strikes meanwhile: nothing is lost, leaked or doubled.

On simulated machines, in this process, on the real wire. tests/host/faults plays the same with real agents.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from msgspec import structs

from atoll.api import hypervisor as api
from atoll.errors import HostFailure
from atoll.hypervisor.vms.credential_store import NAME as CREDENTIAL
from atoll.hypervisor.vms.records import Records
from atoll.identity.roles import RoleCallers
from atoll.model.long_lived import LongLivedCredential
from atoll.model.network import Address, Subnet, mac_for
from atoll.model.vm import VM
from atoll.plan.firewall import link_for
from atoll.plan.ids import Space
from atoll.plan.publishing import Entry, wanted_of
from atoll.system import steps
from atoll.system.ids import Register
from atoll.system.owners import owner_of
from atoll.system.writer import Writer
from fault_player import Player, has_machine
from fault_schedules import (
    CUT,
    ENDED,
    ENOSPC,
    ERROR,
    IDS_LEFT,
    IDS_LOST,
    KILL,
    NEW_IMAGES,
    NO_TEMPLATES,
    OF_PUBLISHER,
    OF_SIM,
    REBOOTED,
    TERM,
    Agent,
    Schedule,
    can,
    road,
    schedules,
)
from killing import Disk
from role_credentials import a_credential

KINDS = (KILL, ERROR, CUT, TERM, ENOSPC)
SCHEDULES = int(os.environ.get("ATOLL_FAULT_SCHEDULES", "30"))
PATIENCE_S = 10.0
GIVEN = 10
"""Addresses of each subnet."""
SUBNETS = {"lan": "10.9.0", "lab": "10.8.0"}


class Silent:
    """An issuer that takes the credentials of VMs, and never answers."""

    def showing(self, credential: LongLivedCredential) -> Silent:
        return self

    async def issue(self, *_: object) -> Any:
        await asyncio.Event().wait()


class InProcess:
    """Agents that are objects: a kill is the disk as it was at that moment, which the next agent finds."""

    kind = "sim"

    def __init__(self, node: Any) -> None:
        self.node = node
        node.issuer, node.role_callers = Silent(), RoleCallers(users=("web",))
        self.credential = a_credential(node.pki.authority)
        self.given: set[str] = set()
        self.maybe_given: set[str] = set()
        self._disk = Disk(
            [node.directory / name for name in ("state", "stores", "ids", "images")],
            node.directory / "killed",
        )
        self._plugged: set[str] = set()
        self._carried: dict[str, Entry] = {}
        self._killed = False
        self._runs = self._serves = self._told = False
        self._stopping: asyncio.Task[None] | None = None
        self._faults: tuple[steps.Fault, ...] = ()

    async def furnish(self) -> None:
        await self.node.start()
        async with self.node.user("oper") as oper:
            for name, prefix in SUBNETS.items():
                await oper.call(api.NODE_ADD_SUBNET, body=Subnet(name, f"{prefix}.0/24", f"{prefix}.1"))
                ips = [f"{prefix}.{last}" for last in range(5, 5 + GIVEN)]
                given = tuple(Address(ip, mac_for(ip)) for ip in ips)
                await oper.call(api.NODE_ADD_ADDRESS, body=api.AddAddress(name, given))
                self.given.update(ips)
        await self.node.stop()

    def another_address(self) -> Address:
        ip = f"{SUBNETS['lan']}.{5 + len(self.given | self.maybe_given)}"
        return Address(ip, mac_for(ip))

    async def start(self, agent: Agent) -> bool:
        self._killed, self._stopping = False, None
        self._loop = asyncio.get_running_loop()
        self.node.hot_pool = 1 if agent.config == "pool" else 0
        self.node.most_templates = {"few": 1, "cold": 0}.get(agent.config, 8)
        acts = {KILL: self._kill, TERM: self._tell_to_stop, CUT: self._cut}
        self._faults = steps.arm(agent.faults, acts)
        self._runs, self._serves, self._told = True, False, False
        await self.node.start()
        self._serves = True
        if self._told:
            self._begin_to_stop()
        return not self._killed and self._stopping is None

    def client(self) -> Any:
        return self.node.user("oper")

    async def is_gone(self, within_s: float = 0.0) -> bool:
        if self._stopping is not None:
            await asyncio.wait({self._stopping})
        return self._killed or self._stopping is not None

    async def end(self) -> None:
        if not self._runs:
            return
        self._runs = self._serves = self._told = False
        try:
            await (self._stopping or self.node.stop())
        except HostFailure:
            assert self.struck(), "an agent cannot end"
        steps.arm("")
        self.node.left_plugged = set(self.node.network.plugged)
        if self._killed:
            self._disk.restore()
            self.node.left_plugged = self._plugged
            self.node.relay.ports = self._carried

    async def settle(self) -> None:
        await self.node.service.vms.settle()

    def struck(self) -> list[str]:
        return [fault.step for fault in self._faults if fault.left == 0]

    async def happens(self, meanwhile: str) -> None:
        if meanwhile == REBOOTED:
            self.node.reboot_host()
            self.node.relay.ports.clear()
        elif meanwhile == ENDED:
            for record in (self.node.directory / "state" / "vms").glob("*/sim/record.json"):
                record.write_text(record.read_text().replace('"exit":null', '"exit":"crashed"'))
        elif meanwhile == NO_TEMPLATES:
            for path in (self.node.directory / "state" / "templates").iterdir():
                shutil.rmtree(path)
        elif meanwhile == IDS_LOST:
            shutil.rmtree(self.node.directory / "ids", ignore_errors=True)
        elif meanwhile == IDS_LEFT:
            register = Register(self.node.directory / "ids", owner_of(self.node.directory / "state"))
            for _ in range(3):
                register.claim(Space.USERS)
        elif meanwhile == NEW_IMAGES:
            # Twice: machines may need the one before.
            for _ in range(2):
                for name in ("tiny", "twin"):
                    self.node.replace(name, uuid.uuid4().bytes)

    def runs(self, vm: VM) -> bool:
        record = self.node.directory / "state" / "vms" / vm.ip / "sim" / "record.json"
        return record.exists() and '"exit":null' in record.read_text()

    async def check(self, listed: tuple[VM, ...], *, quiet: bool) -> None:
        kept = await asyncio.to_thread(self._on_disk)
        assert kept == {vm.ip: structs.replace(vm, ready={}) for vm in listed}, "disk and memory differ"
        self._check_addresses(listed)
        if quiet:
            self._check_host(listed)
            await self._check_published(listed)

    # --- how faults strike

    def _kill(self) -> None:
        self._killed = True
        steps.arm("")
        self._disk.keep()
        self._plugged = set(self.node.network.plugged)
        self._carried = dict(self.node.relay.ports)

    def _tell_to_stop(self) -> None:
        self._told = True
        self._loop.call_soon_threadsafe(self._begin_to_stop)

    def _begin_to_stop(self) -> None:
        # An agent that is told so while it starts does it when it has started.
        if self._serves and self._stopping is None:
            self._stopping = self._loop.create_task(self.node.stop())

    def _cut(self) -> None:
        self._loop.call_soon_threadsafe(self.node.cut)

    # --- what there is

    def _on_disk(self) -> dict[str, VM]:
        """What another agent would load."""
        with tempfile.TemporaryDirectory() as copy:
            # What is being written meanwhile, such as a member of the pool, has another name until it is whole.
            halves = shutil.ignore_patterns(".*.tmp")
            shutil.copytree(self.node.directory / "state", copy, ignore=halves, dirs_exist_ok=True)
            loaded = Records(Path(copy), Writer()).load()
        return {ip: structs.replace(record.vm, ready={}) for ip, record in loaded.items()}

    def _check_addresses(self, listed: tuple[VM, ...]) -> None:
        nets = tuple(SUBNETS.values())
        free = {ip for ip in self.node.free() if ip.startswith(nets)}
        held = {ip for _, ip in self.node.service.vms.held()}
        assert not free & held, f"free and held: {free & held}"
        assert {vm.ip for vm in listed} <= held
        assert self.given <= free | held <= self.given | self.maybe_given, (
            "an address is lost, or was never given"
        )
        self.given, self.maybe_given = free | held, set()

    async def _check_published(self, listed: tuple[VM, ...]) -> None:
        """What is carried is what the records say, soon after they do."""
        wanted = {key: entry for key, (_, _, entry) in wanted_of(listed).items()}
        until = self._loop.time() + PATIENCE_S
        while self.node.relay.ports != wanted:
            assert self._loop.time() < until, f"carried: {self.node.relay.ports}, not {wanted}"
            await asyncio.sleep(0.005)

    def _check_host(self, listed: tuple[VM, ...]) -> None:
        state, stores = self.node.directory / "state", self.node.directory / "stores"
        running = {vm.ip for vm in listed if has_machine(vm)}
        pooled = {ip for _, ip in self.node.service.pool.held()}
        held = {ip for _, ip in self.node.service.vms.held()}
        assert held - pooled == {vm.ip for vm in listed}, "an address is held for nothing"
        plugged = self.node.network.plugged - set(map(link_for, pooled))
        assert plugged == set(map(link_for, running)), "the network does not fit the VMs that run"
        assert {path.name for path in (state / "vms").iterdir()} - pooled == {vm.ip for vm in listed}
        machines = {path.parent.parent.name for path in state.glob("vms/*/sim/record.json")}
        assert machines - pooled == running
        assert list((state / "trash").iterdir()) == [], "something is left in the trash"
        assert [str(path) for path in state.rglob(".*.tmp")] == [], "half a write is left"
        there = {str(path.relative_to(stores)) for path in stores.glob("*/*/*")}
        named = {
            f"{volume.store}/{vm.ip}/{volume.file}" for vm in listed for volume in vm.volumes if volume.store
        }
        assert there == named, "volumes are left or lost"
        credentials = {path.parent.name for path in state.glob(f"vms/*/{CREDENTIAL}")}
        assert credentials == {vm.ip for vm in listed if vm.role_credential_expires_at is not None}
        served = {subnet.id for subnet in self.node.network.served}
        assert served == {pool.subnet.id for pool in self.node.service.node().pools}


@pytest.fixture(scope="module", autouse=True)
def _impatient() -> Iterator[None]:
    """A client that has gone is noticed within a moment, wherever the agent is with its request."""
    with pytest.MonkeyPatch.context() as patch:
        make_impatient(patch)
        logging.disable(logging.CRITICAL)
        yield
        logging.disable(logging.NOTSET)


def make_impatient(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("atoll.api.server.HEARTBEAT_S", 0.002)
    patch.setattr("atoll.hypervisor.vms.exits.NOTE_AGAIN_S", 0.01)
    patch.setattr("atoll.hypervisor.vms.duties.RETRY_S", 0.05)
    patch.setattr("atoll.hypervisor.publishing.publishing.PAUSE_S", 0.01)
    patch.setattr("atoll.hypervisor.publishing.publishing.RETRY_S", 0.05)
    patch.setattr("atoll.hypervisor.launch.templates.CHECK_EVERY_S", 0.05)
    patch.setattr("atoll.hypervisor.launch.templates.SETTLE_S", 0.01)
    patch.setattr("atoll.hypervisor.launch.hotpool.SETTLE_S", 0.01)


def play(node_in: Callable[[Path], Any], schedule: Schedule) -> Player:
    async def playing(directory: Path) -> Player:
        world = InProcess(node_in(directory))
        await world.furnish()
        player = Player(world, PATIENCE_S)
        try:
            await player.play(schedule)
        finally:
            await world.end()
            await world.node.writer.close()
        return player

    with tempfile.TemporaryDirectory() as directory:
        return asyncio.run(playing(Path(directory)))


STRUCK_BY = (ERROR, CUT)
"""The others strike real agents, in tests/host/faults."""


HERE = sorted(OF_SIM - OF_PUBLISHER - {"subnet.bridge-gone", "subnet.gone"})
"""There is no bridge here, and no process."""


@pytest.mark.parametrize("step", HERE)
def test_whatever_strikes_at_a_step_nothing_is_lost_leaked_or_doubled(
    node_in: Callable[[Path], Any], step: str
) -> None:
    kinds = [kind for kind in STRUCK_BY if can(step, kind)]
    player = play(node_in, Schedule(*(agent for kind in kinds for agent in road(step, kind))))
    assert player.struck[step] >= len(kinds), f"never struck by all of {kinds}"


KNOWN: dict[str, Schedule] = {
    "a create that was committed is undone, and found crashed by the next agent": Schedule(
        Agent("create", "create.committed:1:ERROR>halt.killed:1")
    ),
    "a record is replaced, and the failure after it is all that memory knows": Schedule(
        Agent("stop", "stop.asked:1:CUT>write.renamed:1:ERROR")
    ),
    "a start that is undone cannot be ended": Schedule(
        Agent("start", "start.launched:1:ERROR>halt.killed:1:ERROR")
    ),
    "a client that goes while its volume is made leaves half of it": Schedule(
        Agent("add-volume", "volume.claimed:1:CUT"), Agent("add-volume", "volume.made:1:CUT")
    ),
}
"""Schedules that have failed, by what was seen."""


@pytest.mark.parametrize("schedule", KNOWN.values(), ids=KNOWN)
def test_what_has_failed_before_does_not_fail_again(
    node_in: Callable[[Path], Any], schedule: Schedule
) -> None:
    assert play(node_in, schedule).struck


@pytest.mark.timeout(120 + SCHEDULES * 2)
@settings(max_examples=SCHEDULES, database=None, suppress_health_check=list(HealthCheck))
@given(schedule=schedules(KINDS))
def test_no_schedule_of_faults_loses_leaks_or_doubles_anything(
    node_in: Callable[[Path], Any], schedule: Schedule
) -> None:
    play(node_in, schedule)
