"""The hot pool: copies of templates that run, have been through their start once, and wait for their identity.

A member has an address of the node set aside, and with it the name of its link, MAC, cgroup, directory and
firewall chain, and ids of its own: handing it over is one record and one message. It is no VM: nobody sees it, its
directory holds no record, and so the next agent removes what this one leaves. It counts as memory that is in use,
and gives way to VMs. It has its address, memory and ids until all of it has ended.

Effects: machines, through Machines. The decisions are in atoll.plan.hotpool.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path

from msgspec import Struct, structs

from atoll.drivers.machine.base import Exit
from atoll.errors import AtollError, Conflict, TimedOut
from atoll.hypervisor.launch.holds import Used
from atoll.hypervisor.launch.machines import Machines
from atoll.hypervisor.launch.templates import Templates
from atoll.model.network import Address
from atoll.model.node import Capacity
from atoll.model.vm import VM, MachineType, VmState, instance_id_of
from atoll.plan import firewall
from atoll.plan import hotpool as plan
from atoll.plan.addresses import Place
from atoll.plan.hotpool import Left, PoolLine
from atoll.serving.signals import Signal
from atoll.system import clock, files, host, steps

log = logging.getLogger(__name__)

CHECK_EVERY_S = 5.0
SETTLE_S = 0.2
LONGEST_SETTLE_S = 2.0
REHEARSAL_S = 60.0
PAUSE_S = 0.02
REMEMBERED = 256


class PoolKey(Struct, frozen=True):
    """Says which members can stand in for each other: copies of one template in one subnet."""

    template: str
    subnet: str


class Member(Struct, eq=False):
    vm: VM
    """What will be handed over: address, instance id and size are those of the VM that it becomes."""
    key: PoolKey
    parked: bool = False
    leaving: bool = False
    """It is of no use any more, or gives way: it is being ended, or will be."""
    making: asyncio.Task[None] | None = None
    ending: asyncio.Task[AtollError | OSError | None] | None = None
    stages: set[str] = set()
    """Those of its rehearsal."""


class Pooling(Struct, frozen=True):
    """How a node pools."""

    templates: Templates | None = None
    most: int = 0
    """Members of one kind; 0: there is no pool."""
    reserve_mib: int = 0
    """Memory of the host that is left alone."""


class PoolPlace(Struct, frozen=True):
    """What the pool asks of its node."""

    free_capacity: Callable[[], Capacity]
    """That which no VM uses; the hot pool draws on it."""
    free_addresses: Callable[[], dict[str, tuple[Address, ...]]]
    """Those that neither VMs nor members hold, by subnet."""
    directory: Callable[[str], Path]
    discard: Callable[[str], Awaitable[None]]
    is_recorded: Callable[[str], bool]
    """Whether there is the record of a VM at this address: what is there is that VM's."""
    is_open: Callable[[], bool]
    """Whether the node takes VMs."""
    ready: Callable[[VM], str]
    """The stage at which a guest of this VM's image is of use."""
    is_current: Callable[[VM], bool]
    """Whether its image is still the one that VMs are made of."""


class HotPool:
    """The members, by the addresses that are set aside for them."""

    def __init__(self, pooling: Pooling, machines: Machines, node: PoolPlace) -> None:
        self._pooling = pooling
        self._machines = machines
        self._node = node
        self._members: dict[str, Member] = {}
        self.changed: Signal[[]] = Signal()
        """Told whenever members come, go or become ready."""
        self._created: dict[PoolKey, deque[float]] = {}
        self._like: dict[PoolKey, VM] = {}
        self._wake = asyncio.Event()
        self._taken = 0.0

    def __len__(self) -> int:
        return len(self._members)

    @property
    def templates(self) -> int:
        """How many there are to make members of."""
        return 0 if self._pooling.templates is None else self._pooling.templates.ready

    @property
    def waiting(self) -> int:
        """How many members can be handed over just now."""
        return sum(member.parked for member in self._members.values())

    def held(self) -> frozenset[Place]:
        """Where members are, also those that are being ended."""
        return frozenset((member.vm.subnet, ip) for ip, member in self._members.items())

    def yielding(self) -> frozenset[Place]:
        """Where members are that can give way, or be handed over."""
        return frozenset((member.vm.subnet, ip) for ip, member in self._members.items() if not member.leaving)

    def images(self) -> Used:
        """Those that members are made of."""
        return frozenset((member.vm.image, member.vm.image_digest) for member in self._members.values())

    def demand(self) -> Capacity:
        """What the members count for. They run only until they wait, so they take no CPU."""
        memory_mib = sum(member.vm.memory_mib for member in self._members.values())
        return Capacity(milli_cpus=0, memory_mib=memory_mib, disk_mib=0)

    def rehearsing(self, subnet: str, mark: str) -> tuple[VM, int] | None:
        """The member with this MAC or address that is in its rehearsal, as the VM that it plays, and the place of
        its interface. The others have no network."""
        for member in self._members.values():
            (nic,) = member.vm.all_nics
            if not (member.parked or member.leaving) and nic.subnet == subnet and mark in nic.marks:
                return member.vm, 0
        return None

    # --- for those who create VMs; nothing here waits

    def choose(self, vm: VM) -> Member | None:
        """A member that can become this VM."""
        if not self._pooling.most or not self._machines.can_rehearse(vm):
            return None
        key = self._machines.template_key(vm)
        if key is None:
            return None
        pool_key = PoolKey(key, vm.subnet)
        self._note(pool_key, vm)
        fitting = (member for member in self._members.values() if member.parked and member.key == pool_key)
        # Where metadata is given for tokens only, the instance id is of another kind.
        return next((one for one in fitting if one.vm.imdsv2_required == vm.imdsv2_required), None)

    def hand_over(self, member: Member) -> None:
        """It is the VM's that has its address and instance id now, and no member any more."""
        del self._members[member.vm.ip]
        self.changed()

    def make_way(self, vm: VM, short_mib: int, unfit: Member | None = None) -> tuple[Member, ...]:
        """Members that have to end for a VM: those that hold its addresses, and those whose memory it needs.

        They are members until they have ended: the caller waits for that. `unfit`: one that was chosen, in vain.
        """
        there = self._at({(nic.subnet, nic.ip) for nic in vm.all_nics})
        going = [*there, unfit] if unfit is not None and unfit not in there else there
        others = [member for member in self._members.values() if member not in going]
        # Those that end already first, then what is still being made: it is of no use yet.
        for member in sorted(others, key=lambda member: (not member.leaving, member.parked)):
            if sum(one.vm.memory_mib for one in going) >= short_mib:
                break
            going.append(member)
        for member in going:
            self._dismiss(member)
        return tuple(going)

    def _at(self, places: Collection[Place]) -> list[Member]:
        return [member for ip, member in self._members.items() if (member.vm.subnet, ip) in places]

    async def vacate(self, places: Collection[Place]) -> None:
        """Let go of these addresses: the node has them no more."""
        await self.end(*self._at(places))

    async def end(self, *members: Member) -> None:
        """Returns when nothing of them is left, whoever ends them. One that cannot be ended stays a member."""
        endings = [self._begin_to_end(member) for member in members if self._is_member(member)]
        if endings:
            # Not cancelled with us: nobody else would do it.
            await asyncio.wait(endings)
        for error in filter(None, (ending.result() for ending in endings)):
            raise error

    def _is_member(self, member: Member) -> bool:
        return self._members.get(member.vm.ip) is member

    def _dismiss(self, member: Member) -> None:
        member.parked = False
        member.leaving = True

    def _begin_to_end(self, member: Member) -> asyncio.Task[AtollError | OSError | None]:
        self._dismiss(member)
        if member.ending is None:
            member.ending = asyncio.create_task(self._end(member), name=f"pool end {member.vm.ip}")
        return member.ending

    async def _end(self, member: Member) -> AtollError | OSError | None:
        """What kept it from ending, if anything did."""
        ip = member.vm.ip
        try:
            if member.making is not None:
                member.making.cancel()
                await asyncio.wait({member.making})
            await self._machines.halt(member.vm)
            steps.step("pool.halted")
            # A VM that could not wait for our end, and could not be undone either, has its record there.
            if not self._node.is_recorded(ip):
                await self._node.discard(ip)
            steps.step("pool.discarded")
        except (AtollError, OSError) as error:
            log.error("hot pool: member %s cannot be ended: %s", ip, error)
            return error
        finally:
            member.ending = None
        self._machines.release_ids(member.vm)
        del self._members[ip]
        self.changed()
        return None

    def on_exit(self, ip: str, exit_: Exit) -> None:
        """A machine ended by itself. One that was a member is of no use any more."""
        self._give_up(ip)

    def on_link(self, link: str | None, there: bool) -> None:
        """A link came or went. A member that lost its own is of no use any more."""
        if link is not None and not there and (port := firewall.port_of(link)) is not None:
            self._give_up(port[0])

    def _give_up(self, ip: str) -> None:
        if (member := self._members.get(ip)) is not None:
            self._dismiss(member)  # the next round ends it
            self._wake.set()

    def reached(self, ip: str, stage: str) -> None:
        """Told of every stage that anybody reaches."""
        member = self._members.get(ip)
        if member is not None:
            member.stages = member.stages | {stage}

    def wake(self) -> None:
        """Something changed that the pool may have to follow."""
        self._wake.set()

    # --- in the background

    async def tend(self) -> None:
        """For ever: one step at a time towards what the plan says."""
        while self._pooling.most:
            try:
                await self._end_leaving()
                while await self._step():
                    pass
            except (AtollError, OSError) as error:
                log.warning("hot pool: %s", error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CHECK_EVERY_S):
                    await self._wake.wait()
            await self._settle()
            self._wake.clear()

    async def _settle(self) -> None:
        """Let those who create go first, unless they never end."""
        until = clock.monotonic() + LONGEST_SETTLE_S
        while clock.monotonic() < min(self._taken + SETTLE_S, until):  # noqa: ASYNC110 - time passes by itself
            await asyncio.sleep(SETTLE_S / 4)

    async def close(self) -> None:
        """Members are of no use without their agent."""
        await self.end(*self._members.values())

    async def _end_leaving(self) -> None:
        """Those that died, and those that could not be ended before."""
        leaving = [member for member in self._members.values() if member.leaving]
        if leaving:
            await asyncio.wait([self._begin_to_end(member) for member in leaving])

    async def _step(self) -> bool:
        step = plan.next_step(self._lines(), self._left())
        if step is None:
            return False
        key = PoolKey(step.key, step.subnet)
        if step.add:
            return await self._add(key)
        await self.end(next(member for member in self._members.values() if member.key == key))
        return True

    def _lines(self) -> list[PoolLine]:
        now = clock.monotonic()
        for key in [key for key, created in self._created.items() if now - created[-1] > plan.IDLE_S]:
            del self._created[key], self._like[key]
        keys = {*self._created, *(member.key for member in self._members.values())}
        lines = []
        for key in keys:
            have = sum(1 for member in self._members.values() if member.key == key)
            like = self._like.get(key)
            ready = like is not None and self._node.is_open() and self._node.is_current(like)
            if ready and self._template(key) is not None:
                want = plan.target(self._created.get(key, ()), now, self._pooling.most)
            else:
                want = 0
            lines.append(PoolLine(key.template, key.subnet, like.memory_mib if like else 0, have, want))
        return lines

    def _left(self) -> Left:
        return Left(
            capacity=self._node.free_capacity().minus(self.demand()),
            available_mib=host.memory_mib()[1],
            reserve_mib=self._pooling.reserve_mib,
            addresses={subnet: len(free) for subnet, free in self._node.free_addresses().items()},
        )

    async def _add(self, key: PoolKey) -> bool:
        like = self._like[key]
        supplies = self._machines.supplies
        while (image := supplies.ready(like.image, like.driver)) is None:
            await supplies.prepare(like.image, like.driver)
        free = self._node.free_addresses().get(key.subnet, ())
        if not free or image.digest != like.image_digest:
            return False  # taken, or replaced, meanwhile
        vm = _like(like, free[0])
        member = self._members[vm.ip] = Member(vm, key)
        self._machines.take_ids(vm)
        self.changed()
        making = member.making = asyncio.create_task(self._prepare(member), name=f"pool {vm.ip}")
        await asyncio.wait({making})
        member.making = None
        if making.cancelled():
            return True  # it gave way
        error = making.exception()
        if error is None:
            return True
        await self.end(member)
        if not isinstance(error, AtollError | OSError):
            raise error
        # Not again at once, whatever it is: VMs that are created meanwhile are forked, or started cold.
        log.warning("hot pool: a member could not be made: %s", error)
        return False

    async def _prepare(self, member: Member) -> None:
        vm = member.vm
        directory = self._template(member.key)
        if directory is None:
            raise Conflict(f"template {member.key.template} is gone")
        files.make_dirs(self._node.directory(vm.ip), 0o711)
        steps.step("pool.begun")
        await self._machines.fork_for_pool(vm, directory)
        steps.step("pool.forked")
        await self._machines.rehearse(vm)
        steps.step("pool.rehearsed")
        until = clock.monotonic() + REHEARSAL_S
        while not await self._through(member):
            if clock.monotonic() > until:
                raise TimedOut(f"the guest did not answer in {REHEARSAL_S:g} s")
            await asyncio.sleep(PAUSE_S)
        await self._machines.park(vm)
        steps.step("pool.parked")
        member.parked = not member.leaving
        self.changed()

    async def _through(self, member: Member) -> bool:
        """Whether its guest has done all that one of its image does."""
        stage = self._node.ready(member.vm)
        if stage.startswith("port:") and "metadata" in member.stages:
            return await self._machines.converses(member.vm, int(stage.removeprefix("port:")))
        return stage == "started" or stage in member.stages

    def _template(self, key: PoolKey) -> Path | None:
        return None if self._pooling.templates is None else self._pooling.templates.find(key.template)

    def _note(self, key: PoolKey, vm: VM) -> None:
        self._taken = clock.monotonic()
        self._created.setdefault(key, deque(maxlen=REMEMBERED)).append(self._taken)
        self._like[key] = vm
        self._wake.set()


def _unowned(address: Address, subnet: str) -> VM:
    """What is at an address that no VM has yet."""
    return VM(
        ip=address.ip,
        mac=address.mac,
        name=f"pool-{address.ip.replace('.', '-')}",
        state=VmState.STARTING,
        driver="",
        image="",
        image_digest="",
        memory_mib=0,
        milli_cpus=0,
        vcpus=0,
        machine_type=MachineType.AUTO,
        subnet=subnet,
        owner_users=(),
        owner_groups=(),
        tags={},
        created_at=clock.now(),
        instance_id="",
        ready={},
    )


def _like(vm: VM, address: Address) -> VM:
    """A VM to be: its size, address and instance id are settled, the rest is its owner's."""
    return structs.replace(
        _unowned(address, vm.subnet),
        driver=vm.driver,
        image=vm.image,
        image_digest=vm.image_digest,
        memory_mib=vm.memory_mib,
        milli_cpus=vm.milli_cpus,
        vcpus=vm.vcpus,
        machine_type=vm.machine_type,
        volumes=vm.volumes,
        imdsv2_required=vm.imdsv2_required,
        instance_id=instance_id_of(uuid.uuid4(), imdsv2_required=vm.imdsv2_required),
    )
