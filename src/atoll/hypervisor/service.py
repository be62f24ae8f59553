"""The decisions of a Hypervisor: what may be done to which VM, in which order, and what a failure leaves.

Effects: through records, machines and the network. One thing at a time is done to a VM; the node's own state
changes between awaits.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine

from msgspec import Struct, structs

from atoll import __version__
from atoll.api.hypervisor import CreateVm, Progress, Wait
from atoll.api.route import Done
from atoll.drivers.machine.base import Exit
from atoll.errors import AtollError, Conflict
from atoll.guestnet.dhcp.answer import Lease
from atoll.guestnet.netboot.library import Client
from atoll.hypervisor.consoles.screens import Screens
from atoll.hypervisor.launch.hotpool import HotPool, Member, Pooling, PoolPlace
from atoll.hypervisor.launch.machines import Machines
from atoll.hypervisor.network.base import Network
from atoll.hypervisor.network.holdings import Holdings
from atoll.hypervisor.vms.acknowledgements import Acknowledgements
from atoll.hypervisor.vms.changes import Changes
from atoll.hypervisor.vms.creation import Room, new_instance_id, plan_vm
from atoll.hypervisor.vms.duties import Duties
from atoll.hypervisor.vms.exits import Exits
from atoll.hypervisor.vms.follow import Answers, Follower, answers
from atoll.hypervisor.vms.inventory import Inventory
from atoll.hypervisor.vms.lost_links import LinkPlace, LostLinks
from atoll.hypervisor.vms.policies import Policies
from atoll.hypervisor.vms.readiness import Board
from atoll.hypervisor.vms.records import Record, Records
from atoll.hypervisor.volumes.stores import Stores
from atoll.hypervisor.volumes.volumes import Volumes
from atoll.identity.access import Operators, check_owner
from atoll.images.store import ImageStore
from atoll.model.event import EventKind
from atoll.model.identity import Identity
from atoll.model.image import Image
from atoll.model.lifecycle import Action, begin, check_not_protected
from atoll.model.network import Subnet
from atoll.model.node import Capacity, DriverInfo, Node, Overcommit
from atoll.model.vm import VM, StartedBy, VmNic, VmState
from atoll.plan import capacity, firewall
from atoll.plan.addresses import nic_of
from atoll.plan.policies import Backoff
from atoll.plan.recovery import Want
from atoll.plan.volumes import store_infos
from atoll.serving.audit import AuditLog, Auditor
from atoll.serving.events import Events
from atoll.system import clock, steps
from atoll.system.undo import Undo

log = logging.getLogger(__name__)

GRACE_S = 15.0
THROTTLE_AFTER_S = 30.0
THROTTLE_GRACE_S = 1.0
"""Its first answers are a part of its start."""
KEEP_READY_AFTER_S = 1.0


class NodeFacts(Struct, frozen=True):
    """What does not change while the agent runs."""

    name: str
    ip: str
    boot_id: str
    total: Capacity
    operators: Operators
    drivers: tuple[DriverInfo, ...]
    has_roles: bool = False
    """Whether VMs can be given roles: somebody issues their credentials."""
    cores: int = 0
    overcommit: Overcommit = Overcommit()
    backoff: Backoff = Backoff()
    acknowledge_within_s: float = 15.0
    """How long a creator that said it would has to acknowledge the VM that it was given."""


class Claim(Struct, frozen=True):
    """A VM that has its address, and what has to be done about the hot pool for it."""

    vm: VM
    pooled: bool
    """It runs already, at that address."""
    giving_way: tuple[Member, ...]


class Hypervisor:
    """One node and its VMs."""

    def __init__(
        self,
        facts: NodeFacts,
        records: Records,
        machines: Machines,
        network: Network,
        images: ImageStore,
        board: Board,
        vms: dict[str, Record],
        answers: Answers = answers,
        pooling: Pooling | None = None,
        stores: Stores | None = None,
        audit: AuditLog | None = None,
    ) -> None:
        self._facts = facts
        self._store = records
        self._machines = machines
        self._network = network
        self._images = images
        self._board = board
        self._vms = Inventory(facts.name, records, vms, self._changed)
        self.holdings = Holdings(facts.name, records, network, self._vms, self._node_changed)
        self._tasks: set[asyncio.Task[None]] = set()
        self._follower = Follower(board, self._vms.current, clock.monotonic, answers)
        self.pool = HotPool(
            pooling or Pooling(),
            machines,
            PoolPlace(
                free_capacity=self._left,
                free_addresses=self.holdings.free,
                directory=records.directory,
                discard=records.discard,
                is_open=lambda: not self.holdings.drained,
                ready=lambda vm: images.get(vm.image).ready,
            ),
        )
        self._vms.reserved = self.pool.held
        self._stores = stores or Stores({})
        self._auditor = Auditor(audit, self._vms.find) if audit is not None else None
        self._policies = Policies(self._vms, facts.backoff, self._launch, self.finish_destroy, self._note_own)
        self.exits = Exits(self._vms, machines, self._policies, self._spawn)
        self._duties = Duties(self._vms.records, lambda: self.holdings.drained, self._policies.do, clock.now)
        self.lost_links = LostLinks(self._vms, LinkPlace(machines.seen, self._spawn, self._note_own))
        self.acknowledgements = Acknowledgements(self._vms, facts.acknowledge_within_s)
        self.changes = Changes(self._vms, records, machines, images, self._stores, self._room)
        self.volumes = Volumes(self._vms, machines, self._stores, self._room)
        self.screens = Screens(machines)
        self.events = Events(clock.now, lambda: (self.node(), self.list()))

    # --- what is there

    def list(self) -> tuple[VM, ...]:
        return self._vms.list()

    def show(self, reference: str) -> VM:
        """The VM of this IP or name."""
        return self._vms.show(reference)

    def node(self) -> Node:
        states = [str(vm.state) for vm in self.list()]
        return Node(
            ip=self._facts.ip,
            name=self._facts.name,
            version=__version__,
            boot_id=self._facts.boot_id,
            total=self._facts.total,
            free=self._left().minus(self.pool.demand()),
            drivers=self._facts.drivers,
            pools=self.holdings.pools(),
            vms={state: states.count(state) for state in sorted(set(states))},
            owner_users=self._facts.operators.users,
            owner_groups=self._facts.operators.groups,
            drained=self.holdings.drained,
            stores=store_infos(self._stores.spaces, (volume for vm in self.list() for volume in vm.volumes)),
            overcommit=self._facts.overcommit,
            templates=self.pool.templates,
            pooled=self.pool.waiting,
        )

    def held(self) -> frozenset[str]:
        return self._vms.held()

    def find_by_ip(self, ip: str) -> VM | None:
        return self._vms.find_by_ip(ip)

    def find(self, reference: str) -> VM | None:
        """The VM of this IP or name, if there is one."""
        return self._vms.find(reference)

    def lease_of(self, mac: str) -> Lease | None:
        """What DHCP tells the machine with this MAC."""
        vm = self._vms.find_by_mark(mac) or self.pool.rehearsing(mac=mac)
        return self.holdings.leases.of_machine(mac) if vm is None else self.holdings.leases.of_vm(vm, mac)

    def guest_at(self, ip: str) -> VM | None:
        """Whom metadata is about, at this address of any of its interfaces."""
        return self._vms.find_by_mark(ip) or self.pool.rehearsing(ip=ip)

    def netboot_client(self, ip: str) -> Client | None:
        """Who boots over the network from this address."""
        return self.holdings.leases.client(ip, self.find_by_ip(ip))

    def subnet_of(self, at: VM | VmNic) -> Subnet:
        """That of an interface; of a VM, that of its first."""
        return self.holdings.given.subnet(at.subnet)

    def check_owner(self, identity: Identity, method: str, reference: str) -> VM:
        """The VM, if the caller may do this to it."""
        vm = self.show(reference)
        check_owner(identity, method, vm.name, vm.owner_users, vm.owner_groups, self._facts.operators)
        return vm

    # --- create

    async def create(self, request: CreateVm, identity: Identity) -> AsyncIterator[Progress | Done[VM]]:
        """Make and start a VM; undone as a whole unless it got as far as running."""
        began = clock.monotonic()
        if (known := await self._made_by(request.request_id)) is not None:
            self.check_owner(identity, "vm.create", known.ip)
            self.acknowledgements.expect(known)
            yield Done(known)
            return
        self.holdings.check_not_drained("creating a VM")
        image = self._images.get(request.spec.image)
        claim = self._claim(request, identity, image)
        vm = claim.vm
        self._board.begin(vm.ip, began)
        async with self._vms.lock(vm), Undo() as undo:
            undo.add(self.undo_create, vm)
            steps.step("create.claimed")
            await self.pool.end(*claim.giving_way)
            self._vms.save(vm)
            steps.step("create.saved")
            yield self._progress(vm, "address")
            if request.user_data:
                self._store.write_user_data(vm.ip, request.user_data)
            steps.step("create.user-data")
            await self.volumes.make_all(vm)
            steps.step("create.volumes")
            yield self._progress(vm, "volume")
            started_by = await self._machines.launch(vm, pooled=claim.pooled)
            steps.step("create.launched")
            self._reach_started(vm)
            by = self.acknowledgements.due(request.wait.timeout_s) if request.acknowledge else None
            vm = self._vms.update(
                vm, state=VmState.RUNNING, committed=True, started_by=started_by, acknowledge_by=by
            )
            steps.step("create.committed")
            undo.commit()
        self._later(THROTTLE_AFTER_S, self._throttle, vm)
        wait = self._until_ready(vm, request.wait)
        try:
            async with contextlib.aclosing(self._follow(vm, wait, ("address", "volume"))) as lines:
                async for line in lines:
                    if isinstance(line, Done):
                        self.acknowledgements.expect(vm)
                    yield line
        except BaseException:
            self._attempt(self.acknowledgements.expect, vm)
            raise

    async def _made_by(self, request_id: str | None) -> VM | None:
        """The VM that an earlier call with this id made. One that is under way is waited for."""
        if request_id is None or (record := self._vms.find_by_request(request_id)) is None:
            return None
        if not record.committed:
            async with self._vms.lock(record.vm):
                record = self._vms.find_by_request(request_id)
        return record.vm if record is not None and record.committed else None

    def _claim(self, request: CreateVm, identity: Identity, image: Image) -> Claim:
        """All checks, then the address. No await is between them: nobody else gets it."""
        pooled = self.pool.held()
        self._machines.driver(request.spec.driver)
        room = structs.replace(
            self._room(),
            held=self._vms.held() - pooled,
            # The pool gives way, but only when no other address is left.
            freed=self._vms.freed | dict.fromkeys(pooled, sys.maxsize),
        )
        now, instance_id = clock.now(), new_instance_id(request.spec)
        vm = plan_vm(request, identity, image, room, now=now, instance_id=instance_id)
        member = self.pool.take(vm)
        if member is not None:
            # Again, with that address before all others: more of a VM may follow from its address.
            room = structs.replace(room, freed=room.freed | {member.vm.ip: -1})
            vm = plan_vm(request, identity, image, room, now=now, instance_id=member.vm.instance_id)
        self._vms.claim(Record(vm, Want.RUNNING, committed=False, boot_id=self._facts.boot_id))
        short_mib = self.pool.demand().memory_mib - self._left().memory_mib
        going = self.pool.make_way(vm, short_mib)
        if member is None or member.vm.ip == vm.ip:
            return Claim(vm, member is not None, going)
        # Its address was taken from the node meanwhile.
        return Claim(vm, False, (*going, member))

    def _room(self) -> Room:
        return Room(
            node=self._facts.name,
            operators=self._facts.operators,
            total=self._facts.total,
            vms=self._vms.list(),
            given=self.holdings.given,
            held=self._vms.held(),
            freed=self._vms.freed,
            has_roles=self._facts.has_roles,
            cores=self._facts.cores,
            spaces=self._stores.spaces,
            disk_kinds=self._machines.disk_kinds(),
            screen_kinds=self._machines.screen_kinds(),
        )

    def _left(self) -> Capacity:
        """What VMs leave of the node; the pool takes of it."""
        return capacity.free(self._facts.total, self.list())

    async def undo_create(self, vm: VM) -> None:
        """Nobody was told of it: it goes. What cannot be ended keeps its address, and is destroyed later."""
        try:
            await self._machines.halt(vm)
        except AtollError as error:
            self._vms.update(vm, state=VmState.DESTROYING, want=Want.GONE, reason=error.brief)
            raise
        self._stores.discard(vm.ip)
        self._vms.forget(vm)

    # --- life

    async def start(self, reference: str, wait: Wait) -> AsyncIterator[Progress | Done[VM]]:
        """Start a VM that is down. One that runs already is a success."""
        async with self._vms.alone_with(self.show(reference)) as vm:
            was_down = begin(Action.START, vm.name, vm.state) is not None
            if was_down:
                self.holdings.check_not_drained(f"starting VM {vm.name}")
                await self._launch(vm, restarted_at=())
        if not was_down:
            yield Done(vm)
            return
        async with contextlib.aclosing(self._follow(vm, self._until_ready(vm, wait))) as lines:
            async for line in lines:
                yield line

    async def _launch(self, vm: VM, reason: str = "", **changes: object) -> None:
        self._board.begin(vm.ip, clock.monotonic())
        begun = {"want": Want.RUNNING, "boot_id": self._facts.boot_id, "restart_at": None}
        vm = self._vms.update(vm, state=VmState.STARTING, ready={}, **begun, **changes)
        steps.step("start.noted")
        try:
            started_by = await self._machines.launch(vm)
            steps.step("start.launched")
        except BaseException as error:
            self._vms.update(vm, state=VmState.FAILED_TO_START, reason=str(error) or "interrupted")
            raise
        self._reach_started(vm)
        self._vms.update(vm, state=VmState.RUNNING, started_by=started_by, reason=reason)
        steps.step("start.running")
        self._later(THROTTLE_AFTER_S, self._throttle, vm)

    async def stop(self, reference: str, grace_s: float) -> VM:
        """Ask the guest to power down, then end it. One that is down already is a success."""
        async with self._vms.alone_with(self.show(reference)) as vm:
            if begin(Action.STOP, vm.name, vm.state) is None:
                waits = self._vms.record(vm).restart_at is not None
                return self._vms.update(vm, want=Want.STOPPED, restart_at=None) if waits else vm
            return await self._stop(vm, grace_s)

    async def _stop(self, vm: VM, grace_s: float) -> VM:
        self._vms.update(vm, state=VmState.STOPPING, want=Want.STOPPED)
        steps.step("stop.noted")
        obeyed = grace_s > 0 and await self._power_down(vm, grace_s)
        steps.step("stop.asked")
        await self._machines.halt(vm)
        steps.step("stop.halted")
        reason = "" if obeyed else "ended by force" + (f" after {grace_s:g} s" if grace_s else "")
        vm = self._vms.update(vm, state=VmState.STOPPED, reason=reason)
        steps.step("stop.stopped")
        return vm

    async def _power_down(self, vm: VM, grace_s: float) -> bool:
        """Whether the guest went by itself in time."""
        with self.exits.awaited(vm) as end:
            try:
                # The asking counts: a machine that hangs does not even take it.
                async with asyncio.timeout(grace_s):
                    await self._machines.driver(vm.driver).power_down(self._machines.machine(vm))
                    await end
            except Conflict:
                pass  # it had gone before it could be asked
            except (TimeoutError, AtollError) as error:
                log.info("VM %s did not power down: %s", vm.ip, error)
                return False
        return True

    async def reboot(self, reference: str, wait: Wait) -> AsyncIterator[Progress | Done[VM]]:
        """Shut the guest down and start it again."""
        async with self._vms.alone_with(self.show(reference)) as vm:
            begin(Action.REBOOT, vm.name, vm.state)
            self.holdings.check_not_drained(f"starting VM {vm.name} again")
            await self._stop(vm, GRACE_S)
            await self._launch(vm)
        async with contextlib.aclosing(self._follow(vm, self._until_ready(vm, wait))) as lines:
            async for line in lines:
                yield line

    async def destroy(self, reference: str) -> None:
        """End it and remove all that is its own. One that goes while we wait for our turn is a success."""
        vm = self.show(reference)
        async with self._vms.lock(vm):
            if self._vms.holds(vm):
                check_not_protected(self._vms.current(vm))
                await self.finish_destroy(vm)

    async def finish_destroy(self, vm: VM) -> None:
        """The record goes last: killed half-way, this is done again at start-up."""
        self._vms.update(vm, state=VmState.DESTROYING, want=Want.GONE)
        steps.step("destroy.noted")
        await self._machines.halt(vm)
        steps.step("destroy.halted")
        self._stores.discard(vm.ip)
        steps.step("destroy.discarded")
        self._vms.forget(vm)
        steps.step("destroy.forgotten")

    async def clear(self, ip: str) -> None:
        """Unplug what an agent before us had at an address that no VM has: a member of its hot pool."""
        for subnet in self.holdings.given.subnets:
            for address in self.holdings.given.addresses.get(subnet.id, ()):
                if address.ip == ip:
                    await self._network.unplug(nic_of(subnet, address), subnet)

    async def relaunch(self, vm: VM) -> None:
        """The host was rebooted under it. On a drained node it waits."""
        async with self._vms.alone_with(vm):
            if self.holdings.drained:
                reason = "the host was rebooted, and the node is drained"
                self._vms.update(vm, state=VmState.STOPPED, reason=reason, restart_at=clock.now())
            else:
                await self._launch(vm)

    async def adopt(self, vm: VM, lost: tuple[str, ...] = ()) -> None:
        """It ran on while there was no agent; it may have lost links since."""
        self._board.resume(vm.ip, vm.ready)
        await self._machines.adopt(vm)
        if vm.state is not VmState.RUNNING:
            self._vms.update(vm, state=VmState.RUNNING)
        self.lost_links.note(vm, lost)

    async def keep_damaged(self, vm: VM, runs: bool) -> None:
        """Nobody knows what it is: it is left as it is found. What runs of it keeps its place in the network."""
        if runs:
            await self._machines.adopt(vm)

    async def finish_stop(self, vm: VM) -> None:
        """An earlier agent was asked to stop it. Nothing is told anew of one that is stopped already."""
        await self._machines.halt(vm)
        if vm.state is not VmState.STOPPED:
            self._vms.update(vm, state=VmState.STOPPED)

    async def finish_exit(self, vm: VM) -> None:
        """It went down, and that was noted; what it used may be left."""
        await self._machines.halt(vm)

    async def sweep(self) -> None:
        """Take out of the network what is of no VM, such as the hot pool of an agent that was killed."""
        pools = self.holdings.given.addresses.values()
        await self._network.sweep(self.held(), {one.ip: one.mac for pool in pools for one in pool})

    def _note_own(self, method: str, vm: VM, error: AtollError | None = None) -> None:
        if self._auditor is not None:
            self._spawn(self._auditor.own(method, vm, error))

    def on_link(self, link: str | None, there: bool) -> None:
        """Told by the kernel of a link that came or went; without a name, of any."""
        ip = None if link is None else firewall.ip_of(f"vm-{link}")
        if there or ip is None or not self.pool.on_exit(ip):
            self.lost_links.changed(link, there)

    def on_exit(self, ip: str, exit_: Exit) -> None:
        """Called by a driver when a machine stopped running."""
        if not self.pool.on_exit(ip):
            self.exits.on_exit(ip, exit_)

    def begin(self) -> None:
        """All VMs are found: from now on their own rules are kept."""
        for vm in self.list():
            self._attempt(self.volumes.drop_unmade, vm)
        self._spawn(self._duties.keep())

    async def close(self) -> None:
        """Touch nothing any more. VMs run on; what is none yet goes."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.pool.close()

    # --- how far a VM has come

    def reached(self, ip: str, stage: str) -> None:
        """Told by the DHCP and metadata servers."""
        self.pool.reached(ip, stage)
        vm = self._vms.find_by_ip(ip)
        if vm is not None and vm.state is not VmState.DAMAGED and self._board.reach(ip, stage):
            self._later(KEEP_READY_AFTER_S, self._keep_ready, vm)

    def _until_ready(self, vm: VM, wait: Wait) -> Wait:
        """What is waited for unless somebody says otherwise: the stage at which its image is of use."""
        return Wait(wait.wait_for or self._images.get(vm.image).ready, wait.timeout_s)

    async def _follow(
        self, vm: VM, wait: Wait, told: tuple[str, ...] = ()
    ) -> AsyncGenerator[Progress | Done[VM], None]:
        """Its stages as it reaches them, then the VM."""
        async with contextlib.aclosing(self._follower.follow(vm, wait, told)) as stages:
            async for progress in stages:
                yield progress
        self._attempt(self._keep_ready, vm)
        self._later(THROTTLE_GRACE_S, self._throttle, vm)
        if self._vms.current(vm).started_by == StartedBy.COLD:
            self._machines.want_template(vm)
        yield Done(self._vms.current(vm))

    def _keep_ready(self, vm: VM) -> None:
        record = self._vms.record(vm)
        ready = {**record.vm.ready, **self._board.stages(vm.ip)}
        if record.committed and ready != record.vm.ready:
            self._vms.update(vm, ready=ready)

    def _throttle(self, vm: VM) -> None:
        """Once it has started it gets its share of the CPUs, and no more."""
        now = self._vms.current(vm)
        if now.state is VmState.RUNNING:
            self._machines.limit(now, starting=False)

    def _reach_started(self, vm: VM) -> None:
        self._board.reach(vm.ip, "started")
        if self._machines.gives_address(vm):
            self._board.reach(vm.ip, "dhcp")

    def _progress(self, vm: VM, stage: str) -> Progress:
        self._board.reach(vm.ip, stage)
        return Progress(stage, self._board.stages(vm.ip)[stage], vm.ip)

    # --- inner workings

    def _node_changed(self) -> None:
        self.pool.wake()
        self._duties.wake()
        self.events.emit(EventKind.NODE, node=self.node())

    def _changed(self, kind: EventKind, vm: VM) -> None:
        self.events.emit(kind, vm=vm)
        self._duties.wake()
        if kind is EventKind.DESTROYED:
            self._board.forget(vm.ip)
            for nic in vm.all_nics:
                self.holdings.leases.forget(nic.ip)
        else:
            self._board.wake(vm.ip)
            self.holdings.leases.wake()

    def _attempt(self, function: Callable[[VM], None], vm: VM) -> None:
        """Do what nobody waits for the result of, if the VM is still there."""
        if self._vms.holds(vm):
            try:
                function(vm)
            except AtollError as error:
                log.error("VM %s %s: %s", vm.ip, vm.name, error)

    def _later(self, delay_s: float, function: Callable[[VM], None], vm: VM) -> None:
        async def wait() -> None:
            await asyncio.sleep(delay_s)
            self._attempt(function, vm)

        self._spawn(wait())

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
