"""Real agents for schedules of faults: processes on real bridges, which are killed, told to stop, or fail inside."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import time
from typing import Any

from atoll.api.async_client import AsyncClient
from atoll.errors import Unreachable
from atoll.model.network import Address, mac_for
from atoll.model.vm import VM
from atoll.system import cgroups, processes
from atoll.system.steps import STRUCK
from fault_player import Player
from fault_schedules import (
    ENDED,
    IDS_LEFT,
    IDS_LOST,
    NEW_IMAGES,
    NO_TEMPLATES,
    REBOOTED,
    TERM,
    Agent,
    Schedule,
)

CONSISTENT_S = 5.0
"""Changes whose callers have gone are made within that time."""
PAUSE_S = 0.02


class Processes:
    """The agents of one lab."""

    def __init__(self, lab: Any) -> None:
        self._lab = lab
        self.kind: str = lab.kind
        self.credential = lab.credential
        self.given: set[str] = set().union(*lab.given.values())
        self.maybe_given: set[str] = set()
        self._agent: Any = None
        self._graceful = False
        self._log_begins = 0

    async def start(self, agent: Agent) -> bool:
        lab = self._lab
        self._log_begins = lab.log.stat().st_size if lab.log.exists() else 0
        self._graceful = agent.config == "pool"
        began = time.monotonic()
        self._agent = lab.start(agent.faults, agent.config or "plain")
        serves = await asyncio.to_thread(lab.serving, self._agent)
        if serves:
            lab.tally.recoveries += 1
            lab.tally.slowest_recovery_s = max(lab.tally.slowest_recovery_s, time.monotonic() - began)
        return bool(serves)

    def client(self) -> AsyncClient:
        client: AsyncClient = self._lab.async_client()
        return client

    def another_address(self) -> Address:
        ip = self._lab.address(
            "lan", len([ip for ip in self.given | self.maybe_given if ip.startswith("10.77.")])
        )
        return Address(ip, mac_for(ip))

    async def is_gone(self, within_s: float = 0.0) -> bool:
        if f":{TERM}" in "".join(self._struck()):
            within_s = 20.0
        return bool(await asyncio.to_thread(self._agent.dead, within_s))

    async def end(self) -> None:
        if self._agent is None:
            return
        if self._graceful:
            await asyncio.to_thread(self._agent.end)
        await asyncio.to_thread(self._agent.kill)
        self._agent = None
        for told in self._struck():
            step, _, kind = told.partition(":")
            self._lab.tally.strike(step, kind)

    async def settle(self) -> None:
        return

    def struck(self) -> list[str]:
        return [line.partition(":")[0] for line in self._struck()]

    def _struck(self) -> list[str]:
        with self._lab.log.open(errors="replace") as log:
            log.seek(self._log_begins)
            return [line.partition(STRUCK)[2].strip() for line in log if STRUCK in line]

    async def happens(self, meanwhile: str) -> None:
        await asyncio.to_thread(self._happens, meanwhile)

    def _happens(self, meanwhile: str) -> None:
        if meanwhile in (ENDED, REBOOTED):
            self._end_guests(meanwhile)
        elif meanwhile == NO_TEMPLATES:
            for path in (self._lab.state / "templates").iterdir():
                shutil.rmtree(path)
        elif meanwhile == IDS_LOST:
            self._lab.forget_blocks()
        elif meanwhile == IDS_LEFT:
            self._lab.add_blocks()
        elif meanwhile == NEW_IMAGES:
            # Twice: machines may need the one before.
            self._lab.add_images()
            self._lab.add_images()

    def _end_guests(self, meanwhile: str) -> None:
        if meanwhile == REBOOTED:
            cgroups.kill_all(f"atoll/{self._lab.cloud.facts['id']}/publisher")
        vms = self._lab.state / "vms"
        for path in vms.glob("*/qemu/record.json"):
            for pid in processes.processes_in(self._lab.cloud.group(path.parent.parent.name)):
                os.kill(pid, signal.SIGKILL)
        if meanwhile == ENDED:
            for path in vms.glob("*/sim/record.json"):
                path.write_text(path.read_text().replace('"exit":null', '"exit":"crashed"'))
        else:
            for path in (*vms.glob("*/sim/record.json"), *vms.glob("*/qemu/record.json")):
                path.unlink()
            for path in vms.glob("*/vm.json"):
                record = json.loads(path.read_text())
                path.write_text(json.dumps(record | {"boot_id": "an earlier one"}))
            self._lab.forget_network()

    def runs(self, vm: VM) -> bool:
        if vm.driver != "sim":
            return bool(processes.processes_in(self._lab.cloud.group(vm.ip)))
        try:
            return '"exit":null' in (self._lab.state / "vms" / vm.ip / "sim/record.json").read_text()
        except FileNotFoundError:
            return False

    async def check(self, listed: tuple[VM, ...], *, quiet: bool) -> None:
        await asyncio.to_thread(self._check, listed, quiet)

    def _check(self, listed: tuple[VM, ...], quiet: bool) -> None:
        until = time.monotonic() + CONSISTENT_S
        while True:
            try:
                if quiet:
                    self._lab.check(self.maybe_given)
                    self.given, self.maybe_given = set().union(*self._lab.given.values()), set()
                else:
                    self._lab.check_records()
                return
            except AssertionError:
                if time.monotonic() > until:
                    raise
                time.sleep(PAUSE_S)
            except Unreachable:
                assert self._agent.dead(5), "an agent that lives does not answer"
                return


def play(lab: Any, schedule: Schedule) -> Player:
    """On a lab that is empty, and is so afterwards."""
    player = Player(Processes(lab))
    try:
        asyncio.run(player.play(schedule))
    except BaseException:
        lab.reset()
        raise
    lab.tally.schedules += 1
    lab.tally.agents += len(schedule.agents)
    lab.tally.operations.update(player.asked)
    lab.tally.acknowledged += player.acknowledged
    return player


def with_template(lab: Any) -> None:
    """A node that has a template, so that VMs are forks from now on."""
    play(lab, Schedule(Agent("twin template")))
