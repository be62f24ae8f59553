"""The hot pool: copies of templates that run, have been through their start once, and wait to be somebody.

A member has an address of the node set aside, and with it the name of its link, MAC, user, cgroup, directory
and firewall chain: handing it over is one record and one message. It is no VM: nobody sees it, its directory
holds no record, and so the next agent removes what this one leaves. It counts as memory that is in use, and
gives way to VMs.

Effects: machines, through Machines. The decisions are in atoll.plan.hotpool.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections import deque
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from msgspec import Struct, structs

from atoll.errors import AtollError, Conflict, TimedOut
from atoll.hypervisor.launch.machines import Machines
from atoll.hypervisor.launch.templates import Templates
from atoll.hypervisor.vms.follow import Answers, converse
from atoll.model.network import Address
from atoll.model.node import Capacity
from atoll.model.vm import VM, MachineType, VmState
from atoll.plan import hotpool as plan
from atoll.plan.addresses import Place
from atoll.plan.hotpool import Left, Line
from atoll.system import clock, files, host, steps

log = logging.getLogger(__name__)

CHECK_EVERY_S = 5.0
SETTLE_S = 0.2
LONGEST_SETTLE_S = 2.0
REHEARSAL_S = 60.0
PAUSE_S = 0.02
REMEMBERED = 256


class Kind(Struct, frozen=True):
    """Members that can stand in for each other."""

    key: str
    subnet: str


class Member(Struct):
    vm: VM
    """What will be handed over: address, instance id and size are those of the VM that it becomes."""
    kind: Kind
    parked: bool = False
    making: asyncio.Task[None] | None = None
    stages: set[str] = set()
    """Those of its rehearsal."""


class Pooling(Struct, frozen=True):
    """How a node pools."""

    templates: Templates | None = None
    most: int = 0
    """Members of one kind; 0: there is no pool."""
    reserve_mib: int = 0
    """Memory of the host that is left alone."""
    converse: Answers = converse
    """Whether a guest answered as it will answer its users."""


class PoolPlace(Struct, frozen=True):
    """What the pool asks of its node."""

    free_capacity: Callable[[], Capacity]
    """What VMs leave."""
    free_addresses: Callable[[], dict[str, tuple[Address, ...]]]
    """Those that neither VMs nor members hold, by subnet."""
    directory: Callable[[str], Path]
    discard: Callable[[str], None]
    is_open: Callable[[], bool]
    """Whether the node takes VMs."""
    ready: Callable[[VM], str]
    """The stage at which a guest of this VM's image is of use."""
    changed: Callable[[], None]
    """Told whenever members come, go or become ready."""


class HotPool:
    """The members, by the addresses that are set aside for them."""

    def __init__(self, pooling: Pooling, machines: Machines, node: PoolPlace) -> None:
        self._pooling = pooling
        self._machines = machines
        self._node = node
        self._members: dict[str, Member] = {}
        self._created: dict[Kind, deque[float]] = {}
        self._like: dict[Kind, VM] = {}
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
        """Where the members are."""
        return frozenset((member.vm.subnet, ip) for ip, member in self._members.items())

    def demand(self) -> Capacity:
        """What the members count for. They run only until they wait, so they take no CPU."""
        memory_mib = sum(member.vm.memory_mib for member in self._members.values())
        return Capacity(milli_cpus=0, memory_mib=memory_mib, disk_mib=0)

    def rehearsing(self, subnet: str, mark: str) -> tuple[VM, int] | None:
        """The member with this MAC or address that is in its rehearsal, as the VM that it plays, and the place of
        its interface. The others have no network."""
        for member in self._members.values():
            (nic,) = member.vm.all_nics
            if not member.parked and nic.subnet == subnet and mark in nic.marks:
                return member.vm, 0
        return None

    # --- for those who create VMs; nothing here waits

    def take(self, vm: VM) -> Member | None:
        """A member that can become this VM: no member any more from now on, but the caller's."""
        # Where metadata is given for tokens only, the instance id is of another kind.
        if not self._pooling.most or vm.imdsv2_required or not self._machines.can_rehearse(vm):
            return None
        key = self._machines.template_key(vm)
        if key is None:
            return None
        kind = Kind(key, vm.subnet)
        self._note(kind, vm)
        for member in self._members.values():
            if member.parked and member.kind == kind:
                self._drop([member])
                return member
        return None

    def make_way(self, vm: VM, short_mib: int) -> tuple[Member, ...]:
        """Members that have to go for a VM: those that hold its addresses, and those whose memory it needs.

        No members any more from now on, but the caller's to end.
        """
        places = {(nic.subnet, nic.ip) for nic in vm.all_nics}
        going = self._at(places)
        others = [member for member in self._members.values() if member not in going]
        # What is still being made first: it is of no use yet.
        for member in sorted(others, key=lambda member: member.parked):
            if sum(one.vm.memory_mib for one in going) >= short_mib:
                break
            going.append(member)
        self._drop(going)
        return tuple(going)

    def _at(self, places: Collection[Place]) -> list[Member]:
        return [member for ip, member in self._members.items() if (member.vm.subnet, ip) in places]

    def _drop(self, members: Iterable[Member]) -> None:
        for member in members:
            del self._members[member.vm.ip]
        self._node.changed()

    async def vacate(self, places: Collection[Place]) -> None:
        """Let go of these addresses: the node has them no more."""
        going = self._at(places)
        self._drop(going)
        await self.end(*going)

    async def end(self, *members: Member) -> None:
        """Leave nothing of them."""
        for member in members:
            if member.making is not None:
                member.making.cancel()
                await asyncio.wait({member.making})
            await self._machines.halt(member.vm)
            steps.step("pool.halted")
            self._node.discard(member.vm.ip)
            steps.step("pool.discarded")

    def on_exit(self, ip: str) -> bool:
        """Whether it was a member that ended by itself."""
        member = self._members.get(ip)
        if member is None:
            return False
        member.parked = False
        member.kind = Kind("", "")  # of no use to anybody: the next round ends it
        self._wake.set()
        return True

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
        members = tuple(self._members.values())
        self._members.clear()
        await self.end(*members)

    async def _step(self) -> bool:
        step = plan.next_step(self._lines(), self._left())
        if step is None:
            return False
        kind = Kind(step.key, step.subnet)
        if step.add:
            return await self._add(kind)
        member = next(member for member in self._members.values() if member.kind == kind)
        self._drop([member])
        await self.end(member)
        return True

    def _lines(self) -> list[Line]:
        now = clock.monotonic()
        kinds = {*self._created, *(member.kind for member in self._members.values())}
        lines = []
        for kind in kinds:
            have = sum(1 for member in self._members.values() if member.kind == kind)
            ready = self._node.is_open() and self._template(kind) is not None
            want = plan.target(self._created.get(kind, ()), now, self._pooling.most) if ready else 0
            memory_mib = self._like[kind].memory_mib if kind in self._like else 0
            lines.append(Line(kind.key, kind.subnet, memory_mib, have, want))
        return lines

    def _left(self) -> Left:
        return Left(
            capacity=self._node.free_capacity().minus(self.demand()),
            available_mib=host.memory_mib()[1],
            reserve_mib=self._pooling.reserve_mib,
            addresses={subnet: len(free) for subnet, free in self._node.free_addresses().items()},
        )

    async def _add(self, kind: Kind) -> bool:
        address = self._node.free_addresses()[kind.subnet][0]
        vm = _like(self._like[kind], address)
        member = self._members[vm.ip] = Member(vm, kind)
        self._node.changed()
        making = member.making = asyncio.create_task(self._prepare(member), name=f"pool {vm.ip}")
        await asyncio.wait({making})
        if making.cancelled():
            return True  # it gave way
        member.making = None
        error = making.exception()
        if error is None:
            return True
        if self._members.get(vm.ip) is member:
            self._drop([member])
            await self.end(member)
        if not isinstance(error, AtollError | OSError):
            raise error
        # Not again at once, whatever it is: VMs that are created meanwhile are forked, or started cold.
        log.warning("hot pool: a member could not be made: %s", error)
        return False

    async def _prepare(self, member: Member) -> None:
        vm = member.vm
        directory = self._template(member.kind)
        if directory is None:
            raise Conflict(f"template {member.kind.key} is gone")
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
        member.parked = True
        self._node.changed()

    async def _through(self, member: Member) -> bool:
        """Whether its guest has done all that one of its image does."""
        stage = self._node.ready(member.vm)
        if stage.startswith("port:") and "metadata" in member.stages:
            return await self._pooling.converse(member.vm.ip, int(stage.removeprefix("port:")))
        return stage == "started" or stage in member.stages

    def _template(self, kind: Kind) -> Path | None:
        return None if self._pooling.templates is None else self._pooling.templates.find(kind.key)

    def _note(self, kind: Kind, vm: VM) -> None:
        self._taken = clock.monotonic()
        self._created.setdefault(kind, deque(maxlen=REMEMBERED)).append(self._taken)
        self._like[kind] = vm
        self._wake.set()


def nobody(address: Address, subnet: str) -> VM:
    """What is at an address that no VM has."""
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
        instance_id=str(uuid.uuid4()),
        ready={},
    )


def _like(vm: VM, address: Address) -> VM:
    """A VM to be: its size, address and instance id are settled, the rest is its owner's."""
    return structs.replace(
        nobody(address, vm.subnet),
        driver=vm.driver,
        image=vm.image,
        image_digest=vm.image_digest,
        memory_mib=vm.memory_mib,
        milli_cpus=vm.milli_cpus,
        vcpus=vm.vcpus,
        machine_type=vm.machine_type,
        volumes=vm.volumes,
    )
