"""Plays schedules of faults against agents, and holds what is found against what clients were told.

Whatever kind of agents it is: `World` starts them, and looks at their host. After every failure an agent that lives
must answer for every VM, and have the same in memory as on disk; after every start each VM is where it may be; in the
end all VMs are destroyed, and nothing of them is left.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from msgspec import structs

from atoll.api import changes, given, publishing, quotas, shares, suspending, volumes
from atoll.api import hypervisor as api
from atoll.api.async_client import AsyncClient
from atoll.api.changes import ChangeVm
from atoll.api.hypervisor import CreateVm, StopVm, Wait
from atoll.api.route import Done
from atoll.api.suspending import SuspendVm
from atoll.api.volumes import AddVolume, ChangeVolume
from atoll.errors import AtollError, Conflict, NoCapacity, NotFound, PoolEmpty, TimedOut, Unreachable
from atoll.model.long_lived import LongLivedCredential
from atoll.model.network import Address, Subnet, mac_for
from atoll.model.node import Node
from atoll.model.publishing import Publication
from atoll.model.quota import HolderKind
from atoll.model.share import Share, ShareMount
from atoll.model.vm import VM, RestartPolicy, SuspendTo, VmSpec, VmState
from atoll.model.volume import VolumeSpec
from fault_schedules import ENDED, REBOOTED, Agent, Schedule

NAMES = ("ada", "bob", "cyd")
SPARE = Subnet("spare", "10.79.0.0/24", "10.79.0.1")
SPARE_ADDRESSES = tuple(Address(f"10.79.0.{last}", mac_for(f"10.79.0.{last}")) for last in (10, 11))
LOOPBACK = f"127.{100 + os.getpid() % 100}.{os.getpid() // 100 % 250}.77"
DOWN = frozenset({"stopped", "crashed", "failed-to-start"})
BETWEEN = frozenset({"starting", "stopping", "suspending", "resuming", "destroying"})
"""States of VMs that somebody is at work on, or whose last action failed half-way."""
REFUSED = (Conflict, NoCapacity, NotFound, PoolEmpty)
GONE = "gone"
PAUSE_S = 0.005

OUTCOMES: dict[str, frozenset[str]] = {
    "create": frozenset({GONE, "running", "destroying"}),
    "start": frozenset({"running", "failed-to-start"}),
    "stop": frozenset({"stopping", "stopped"}),
    "reboot": frozenset({"stopping", "stopped", "running", "failed-to-start"}),
    "destroy": frozenset({"destroying", GONE}),
    "suspend": frozenset({"running", "suspending", "suspended"}),
    "suspend-to-disk": frozenset({"running", "suspending", "suspended"}),
    "resume": frozenset({"suspended", "resuming", "running"}),
}
"""What may come of it when it fails or nobody was told how it ended, beside what was before."""
AFTERWARDS = {"starting": {"running", "crashed"}, "stopping": {"stopped"}, "destroying": {GONE}}
AFTERWARDS |= {"suspending": {"running", "suspended"}, "resuming": {"running", "suspended"}}
"""What the next agent makes of it."""
ENDS = {
    ENDED: dict.fromkeys(("running", "starting", "suspended", "suspending", "resuming"), DOWN | {"running"}),
    REBOOTED: dict.fromkeys(
        ("running", "starting", "crashed", "failed-to-start", "suspended", "suspending", "resuming"),
        DOWN | {"running"},
    ),
}
"""What may be found of a VM after something happened while there was no agent."""
CUT_SHORT = {"start": {"starting"}, "reboot": {"starting"}, "suspend": {"suspending"}, "resume": {"resuming"}}
"""What an agent that is ended may leave beside `OUTCOMES`, for the next one."""


def has_machine(vm: VM) -> bool:
    """Whether something of it runs on its host, or is held still there."""
    return vm.state is VmState.RUNNING or (vm.state is VmState.SUSPENDED and not vm.is_on_disk)


class World(Protocol):
    """Agents of one node, one after the other, and their host."""

    kind: str
    """Of machines."""
    credential: LongLivedCredential
    """Of role web, for VMs to be created with."""
    given: set[str]
    """Addresses that the node has; and those that it may have, since nobody was told."""
    maybe_given: set[str]

    def another_address(self) -> Address:
        """Of subnet `lan`, that the node does not have yet."""
        ...

    async def start(self, agent: Agent) -> bool:
        """A new agent; whether it came as far as serving."""
        ...

    def client(self) -> AbstractAsyncContextManager[AsyncClient]: ...

    async def is_gone(self, within_s: float = 0.0) -> bool:
        """The agent has been ended by a fault."""
        ...

    async def end(self) -> None:
        """The agent goes, if one is there."""
        ...

    async def settle(self) -> None:
        """Changes whose callers went away are made."""
        ...

    def struck(self) -> list[str]:
        """The steps at which faults struck the agent that was started last."""
        ...

    async def happens(self, meanwhile: str) -> None:
        """While there is no agent."""
        ...

    def runs(self, vm: VM) -> bool:
        """Whether its machine does."""
        ...

    async def check(self, listed: tuple[VM, ...], *, quiet: bool) -> None:
        """What is on disk is what is listed. `quiet`: so is all that is on the host."""
        ...


@dataclass
class Known:
    """What a client knows of a VM: nothing else may be found."""

    states: frozenset[str]
    """`gone` among them: it may not be there."""
    marks: frozenset[str] = frozenset({""})
    """The values that its tag may have."""


@dataclass
class Player:
    """Asks for one thing after the other, and remembers what it was told."""

    world: World
    patience_s: float = 30.0
    """How long an agent has for anything."""
    known: dict[str, Known] = field(default_factory=dict)
    struck: Counter[str] = field(default_factory=Counter)
    asked: Counter[str] = field(default_factory=Counter)
    acknowledged: int = 0
    _marks: int = 0
    _under_way: tuple[str, str] | None = None
    """What was asked for last, and of which VM, while nobody knows how it ended."""

    async def play(self, schedule: Schedule) -> None:
        """All of it; then an agent without a fault, which leaves nothing."""
        try:
            await self._play_all(schedule)
        except BaseException as error:
            error.add_note(f"to see it again: @example(schedule={schedule})")
            raise

    async def _play_all(self, schedule: Schedule) -> None:
        for number, agent in enumerate(schedule.agents, 1):
            try:
                await self._play(agent)
            except BaseException as error:
                error.add_note(f"agent {number} of {len(schedule.agents)}: {agent}")
                raise
        assert await self.world.start(Agent()), "the node does not start any more"
        async with self.world.client() as client:
            await self._settle(client, faulted=False)
            listed = await client.call(api.VM_LIST)
            between = [vm.name for vm in listed if vm.state in BETWEEN]
            assert not between, f"nobody is at work on {between}"
            await self.world.check(listed, quiet=True)
            for vm in listed:
                await client.call(api.VM_DESTROY, {"vm": vm.name})
            await self.world.check(await client.call(api.VM_LIST), quiet=True)
        await self.world.end()

    async def _play(self, agent: Agent) -> None:
        await self._meanwhile(agent.meanwhile)
        try:
            if await self.world.start(agent):
                async with self.world.client() as client:
                    await self._converse(client, agent)
        finally:
            await self.world.end()
            self.struck.update(self.world.struck())
        if self._under_way is not None:
            known = self.known[self._under_way[1]]
            known.states |= CUT_SHORT.get(self._under_way[0], frozenset())
            self._under_way = None

    async def _converse(self, client: AsyncClient, agent: Agent) -> None:
        try:
            await self._settle(client, faulted=bool(agent.faults))
            for word in agent.asks.split():
                if await self.world.is_gone():
                    return
                if word in WAITS:
                    await self._wait(client, word)
                elif word in OF_NODES:
                    await self._change_node(client, word)
                elif not await self._ask(client, word):
                    await self._settle(client, faulted=True)
        except Unreachable:
            assert await self.world.is_gone(5), "an agent that lives does not answer"

    async def _meanwhile(self, what: str) -> None:
        if what:
            await self.world.happens(what)
            ends = ENDS.get(what, {})
            for known in self.known.values():
                known.states = known.states.union(*(ends.get(state, ()) for state in known.states))

    # --- what is found

    async def _settle(self, client: AsyncClient, *, faulted: bool) -> None:
        """Wait until nobody is at work; what is there is what may be. From then on that is what is known."""
        for tries_left in (2, 1, 0):
            try:
                listed = await self._quiet(client)
                break
            except Unreachable:
                if not tries_left or not self.world.struck():
                    raise
        if await self.world.is_gone():
            return
        found = {vm.name: vm for vm in listed}
        assert len(found) == len(listed), "two VMs of one name"
        assert set(found) <= set(self.known), f"nobody asked for {sorted(set(found) - set(self.known))}"
        for name, known in list(self.known.items()):
            state = str(found[name].state) if name in found else GONE
            may = set(known.states)
            for old in known.states:
                may |= AFTERWARDS.get(old, set())
            if len(self.world.struck()) > 1:
                may |= BETWEEN  # what cannot be undone is finished at the next start
            if name not in found:
                assert GONE in may, f"{name} is lost: it was {sorted(known.states)}"
                del self.known[name]
                continue
            vm = found[name]
            assert state in may, f"{name} is {state} ({vm.reason}), and may be {sorted(may)}"
            assert state not in DOWN or not self.world.runs(vm), f"{name} is {state}, and its machine runs"
            if len(self.world.struck()) < 2:
                half = [volume.name for volume in vm.volumes if not volume.made]
                assert not half, f"{name}: nobody is at work on volumes {half}"
            mark = vm.tags.get("mark", "")
            assert mark in known.marks, f"{name}: a change was lost: {mark} is none of {sorted(known.marks)}"
            self.known[name] = Known(frozenset({state}), frozenset({mark}))
        self._under_way = None
        await self.world.check(listed, quiet=not faulted)

    async def _quiet(self, client: AsyncClient) -> tuple[VM, ...]:
        """All VMs, once nobody is at work on any: not the agent by itself, and nobody who holds one."""
        until = asyncio.get_running_loop().time() + self.patience_s
        while True:
            listed = await client.call(api.VM_LIST)
            waiting = self._waiting(listed)
            if not waiting:
                await self._take_turns(client)
                await self.world.settle()
                listed = await client.call(api.VM_LIST)
                waiting = self._waiting(listed)
            if not waiting or await self.world.is_gone():
                return listed
            assert asyncio.get_running_loop().time() < until, f"{waiting}: shown as what they are not"
            await asyncio.sleep(PAUSE_S)

    def _waiting(self, listed: tuple[VM, ...]) -> list[str]:
        """Those that the agent has something to do for: their end is not noted yet, or they are to be started."""
        return [
            vm.name
            for vm in listed
            if "started again in its turn" in vm.reason
            or (vm.state in DOWN and "; restart" in vm.reason)
            or (vm.state == "running" and not self.world.runs(vm))
        ]

    async def _take_turns(self, client: AsyncClient) -> None:
        """Nobody holds a VM for ever: each of them takes a change, or refuses it."""
        for vm in await client.call(api.VM_LIST):
            try:
                async with asyncio.timeout(self.patience_s):
                    await client.call(changes.VM_CHANGE, {"vm": vm.ip}, body=ChangeVm(tags={"probe": None}))
            except REFUSED:
                continue
            except TimeoutError:
                raise AssertionError(f"{vm.name}: somebody holds it, and does not let go") from None

    async def _wait(self, client: AsyncClient, word: str) -> None:
        """Until the agent's background has come so far; or a fault has struck, after which it may not."""
        until = asyncio.get_running_loop().time() + self.patience_s
        while not await self.world.is_gone() and not self.world.struck():
            if WAITS[word](await client.call(api.NODE_SHOW)):
                return
            assert asyncio.get_running_loop().time() < until, f"no {word} in {self.patience_s:g} s"
            await asyncio.sleep(PAUSE_S)

    async def _change_node(self, client: AsyncClient, word: str) -> None:
        """Subnets and addresses, those of VMs or the spare ones."""
        self.asked[word] += 1
        try:
            async with asyncio.timeout(self.patience_s):
                await self._do_to_node(client, word)
        except REFUSED:
            return
        except AtollError as error:
            assert self.world.struck(), f"{word}: {error}"

    async def _do_to_node(self, client: AsyncClient, word: str) -> None:
        spare = {"subnet": SPARE.id}
        match word:
            case "give":
                address = self.world.another_address()
                self.world.maybe_given.add(address.ip)
                await client.call(api.NODE_ADD_ADDRESS, body=api.AddAddress("lan", (address,)))
                if not await self.world.is_gone():
                    self.world.given.add(address.ip)
            case "add-spare":
                # As it was left, or anew.
                if all(pool.subnet.id != SPARE.id for pool in (await client.call(api.NODE_SHOW)).pools):
                    await client.call(api.NODE_ADD_SUBNET, body=SPARE)
                await client.call(api.NODE_ADD_ADDRESS, body=api.AddAddress(SPARE.id, SPARE_ADDRESSES))
            case "change-spare":
                self._marks += 1
                gateway = f"10.79.0.{1 + self._marks % 3}"
                change = given.ChangeSubnet(domain=f"m{self._marks}.test", gateway=gateway)
                await client.call(given.NODE_CHANGE_SUBNET, spare, body=change)
            case "empty-spare":
                ips = tuple(address.ip for address in SPARE_ADDRESSES)
                await client.call(given.NODE_REMOVE_ADDRESS, body=given.RemoveAddress(SPARE.id, ips))
            case "remove-spare":
                await client.call(given.NODE_REMOVE_SUBNET, spare)
            case "set-quota":
                self._marks += 1
                # Of somebody who has nothing here.
                quota = quotas.SetQuota(HolderKind.USER, "nobody", vms=self._marks)
                await client.call(quotas.QUOTA_SET, body=quota)
            case "allow-share":
                await client.call(shares.SHARE_ALLOW, body=Share("spare", "/srv", read_only=True))
            case "deny-share":
                await client.call(shares.SHARE_DENY, query=shares.ShareName("spare"))
            case "change-node":
                self._marks += 1
                ratio = 1 + self._marks % 3 / 2
                await client.call(given.NODE_CHANGE, body=given.ChangeNode(cpu_overcommit=8 * ratio))

    # --- what is asked for

    async def _ask(self, client: AsyncClient, word: str) -> bool:
        """Whether it ended as one is told, for good or ill."""
        name = self._fitting(word)
        if not name:
            # What it needs comes first; all names being taken, the oldest VM makes way.
            if not await self._ask(client, "destroy" if word in CREATES else NEEDS[word]):
                return False
            name = self._fitting(word)
            if not name:
                return True
        self.asked[word] += 1
        before = self._begin(word, name)
        self._under_way = (word, name)
        try:
            async with asyncio.timeout(self.patience_s):
                vm = await self._do(client, word, name)
        except REFUSED:
            if await self.world.is_gone():
                return False
            self._restore(name, before)
            self._under_way = None
            return True
        except (Unreachable, TimedOut) as error:
            assert self.world.struck(), f"{word} {name}: {error}"
            return False
        except TimeoutError:
            raise AssertionError(f"{word} {name}: no answer in {self.patience_s:g} s") from None
        except AtollError as error:
            assert self.world.struck(), f"{word} {name}: {error}"
            assert error.code == "host_failure", f"{word} {name}: {error}"
            return False
        if await self.world.is_gone():
            return False  # what a dead agent says does not count
        self.acknowledged += 1
        self._under_way = None
        self._end(word, name, vm)
        return True

    def _fitting(self, word: str) -> str:
        """The first name that this can be asked for."""
        if word in CREATES:
            return next((name for name in NAMES if name not in self.known), "")
        states = FITS.get(word)
        return next((name for name, known in self.known.items() if not states or known.states <= states), "")

    def _begin(self, action: str, name: str) -> Known | None:
        before = self.known.get(name)
        if action in CREATES:
            self.known[name] = Known(OUTCOMES["create"])
        elif before is not None:
            marks = before.marks
            if action == "change":
                self._marks += 1
                marks |= {f"m{self._marks}"}
            self.known[name] = Known(before.states | OUTCOMES.get(action, frozenset()), marks)
        return before

    def _restore(self, name: str, before: Known | None) -> None:
        if before is None:
            del self.known[name]
        else:
            self.known[name] = before

    def _end(self, action: str, name: str, vm: VM | None) -> None:
        if action == "destroy":
            del self.known[name]
            return
        assert vm is not None
        mark = vm.tags.get("mark", "")
        assert action != "change" or mark == f"m{self._marks}"
        self.known[name] = Known(frozenset({str(vm.state)}), frozenset({mark}))

    async def _do(self, client: AsyncClient, action: str, name: str) -> VM | None:
        vm = {"vm": name}
        match action:
            case _ if action in CREATES:
                return await _last(client.stream(api.VM_CREATE, body=self._create(action, name)))
            case "destroy":
                await client.call(api.VM_DESTROY, vm)
                return None
            case "stop":
                return await client.call(api.VM_STOP, vm, body=StopVm(5 if self.world.kind == "sim" else 0))
            case "start":
                return await _last(client.stream(api.VM_START, vm, body=Wait("started", 10)))
            case "reboot":
                return await _last(client.stream(api.VM_REBOOT, vm, body=Wait("started", 10)))
            case "suspend":
                return await client.call(suspending.VM_SUSPEND, vm, body=SuspendVm())
            case "suspend-to-disk":
                return await client.call(suspending.VM_SUSPEND, vm, body=SuspendVm(SuspendTo.DISK))
            case "resume":
                return await client.call(suspending.VM_RESUME, vm)
            case "change":
                return await self._change(client, name, ChangeVm(tags={"mark": f"m{self._marks}"}))
            case "rewrite":
                return await self._change(client, name, ChangeVm(user_data=uuid.uuid4().bytes))
            case "move":
                now = (await client.call(api.VM_SHOW, vm)).subnet
                return await self._change(client, name, ChangeVm(subnet="lab" if now == "lan" else "lan"))
            case "add-volume":
                there = {volume.name for volume in (await client.call(api.VM_SHOW, vm)).volumes}
                new = next((one for one in ("red", "blue", "green") if one not in there), "red")
                body = AddVolume(VolumeSpec(1, new), attach=new == "red")
                return await _last(client.stream(volumes.VOLUME_ADD, vm, body=body))
            case "publish":
                # One of loopback that nobody else has on this host.
                one = Publication(20_080 + NAMES.index(name), 80, LOOPBACK)
                return await client.call(publishing.VM_PUBLISH, vm, body=publishing.Publish((one,)))
            case "unpublish":
                port = publishing.Unpublish(20_080 + NAMES.index(name))
                return await client.call(publishing.VM_UNPUBLISH, vm, query=port)
            case "delete-volume":
                found = await client.call(api.VM_SHOW, vm)
                first = next((volume.name for volume in found.volumes if volume.store), "")
                if not first:
                    return await self._do(client, "add-volume", name)
                return await client.call(volumes.VOLUME_DELETE, {**vm, "volume": first})
            case "grow-volume":
                found = await client.call(api.VM_SHOW, vm)
                stored = next((volume for volume in found.volumes if volume.store), None)
                if stored is None:
                    return await self._do(client, "add-volume", name)
                path = {**vm, "volume": stored.name}
                larger = ChangeVolume(size_mib=stored.size_mib + 1)
                return await _last(client.stream(volumes.VOLUME_CHANGE, path, body=larger))
        raise AssertionError(action)

    def _create(self, action: str, name: str) -> CreateVm:
        image, memory_mib = ("twin" if "twin" in action else "tiny", 64)
        if self.world.kind != "sim":
            image, memory_mib = "appliance", 128
        memory_mib += action == "large-twin"
        disks = (VolumeSpec(1, "red"),) if action == "create-disk" else ()
        spec = VmSpec(
            name,
            image,
            driver=self.world.kind,
            memory_mib=memory_mib,
            milli_cpus=50,
            volumes=disks,
            subnet="lan",
        )
        credential = self.world.credential if action == "create-role" else None
        if credential is not None:
            spec = structs.replace(spec, role="web")
        if action == "create-restarting":
            spec = structs.replace(spec, restart=RestartPolicy.ON_CRASH)
        if action == "create-shared":
            spec = structs.replace(spec, shares=(ShareMount("spare", "/spare", read_only=True),))
        data = b"#!x" if action == "create-data" else b""
        return CreateVm(spec, data, Wait("started", 10), uuid.uuid4().hex, role_credential=credential)

    async def _change(self, client: AsyncClient, name: str, change: ChangeVm) -> VM:
        return await client.call(changes.VM_CHANGE, {"vm": name}, body=change)


CREATES = frozenset(
    {
        *("create", "create-disk", "create-data", "create-role", "create-restarting", "create-shared"),
        *("twin", "large-twin"),
    }
)
OF_NODES = frozenset(
    {
        "give",
        "add-spare",
        "change-spare",
        "empty-spare",
        "remove-spare",
        "set-quota",
        "change-node",
        "allow-share",
        "deny-share",
    }
)
WAITS: dict[str, Callable[[Node], bool]] = {
    "template": lambda node: node.templates > 0,
    "member": lambda node: node.pooled > 0,
    "fault": lambda node: False,
}
"""What happens in the background, and is waited for."""
FITS: dict[str, frozenset[str]] = {
    "start": DOWN,
    "move": DOWN,
    "stop": frozenset({"running"}),
    "reboot": frozenset({"running"}),
    "publish": frozenset({"running"}),
    "unpublish": frozenset({"running"}),
    "suspend": frozenset({"running"}),
    "suspend-to-disk": frozenset({"running"}),
    "resume": frozenset({"suspended"}),
}
NEEDS = {
    "start": "stop",
    "move": "stop",
    "stop": "create",
    "reboot": "create",
    "suspend": "create",
    "suspend-to-disk": "create",
    "resume": "suspend",
    "change": "create",
    "rewrite": "create",
    "add-volume": "create",
    "delete-volume": "create-disk",
    "publish": "create",
    "unpublish": "create",
    "grow-volume": "create-disk",
    "destroy": "create",
}


async def _last(lines: AsyncIterator[Any]) -> VM:
    last = [line async for line in lines][-1]
    assert isinstance(last, Done)
    vm: VM = last.result
    return vm
