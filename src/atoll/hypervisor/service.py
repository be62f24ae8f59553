"""The decisions of a Hypervisor: what may be done to which VM, in which order, and what a failure leaves.

Effects: through records, machines and the network. One thing at a time is done to a VM; the node's own state
changes between awaits.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterable

from msgspec import Struct

from atoll import __version__
from atoll.api.hypervisor import CreateVm, Progress, Wait
from atoll.api.route import Done
from atoll.drivers.machine.base import Console, Exit, HasConsole
from atoll.errors import AtollError, Conflict
from atoll.hypervisor.creation import Room, plan_vm
from atoll.hypervisor.events import Events
from atoll.hypervisor.follow import Answers, Follower, answers
from atoll.hypervisor.inventory import Inventory
from atoll.hypervisor.machines import Machines
from atoll.hypervisor.network.base import Network
from atoll.hypervisor.readiness import Board
from atoll.hypervisor.records import Record, Records
from atoll.identity.access import Operators, check_owner
from atoll.images.store import ImageStore
from atoll.model.event import EventKind
from atoll.model.identity import Identity
from atoll.model.image import Image
from atoll.model.network import Address, Subnet
from atoll.model.node import Capacity, DriverInfo, Node, Pool
from atoll.model.vm import VM, VmState, check_transition
from atoll.plan import addresses, capacity
from atoll.plan.recovery import Want
from atoll.system import clock
from atoll.system.undo import Undo

log = logging.getLogger(__name__)

GRACE_S = 15.0
THROTTLE_AFTER_S = 30.0
KEEP_READY_AFTER_S = 1.0
DOWN = (VmState.STOPPED, VmState.CRASHED, VmState.FAILED_TO_START)


class NodeFacts(Struct, frozen=True):
    """What does not change while the agent runs."""

    name: str
    ip: str
    boot_id: str
    total: Capacity
    operators: Operators
    drivers: tuple[DriverInfo, ...]


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
    ) -> None:
        self._facts = facts
        self._store = records
        self._machines = machines
        self._network = network
        self._images = images
        self._board = board
        self._vms = Inventory(facts.name, records, vms, self._changed)
        self._given = records.given()
        self._giving = asyncio.Lock()
        self._exits: dict[str, asyncio.Future[Exit]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._follower = Follower(board, self._vms.current, clock.monotonic, answers)
        self.events = Events(clock.now, lambda: (self.node(), self.list()))

    # --- what is there

    def list(self) -> tuple[VM, ...]:
        return self._vms.list()

    def show(self, reference: str) -> VM:
        """The VM of this IP or name."""
        return self._vms.show(reference)

    def node(self) -> Node:
        free = addresses.free_addresses(self._given, self._vms.held(), self._vms.freed)
        states = [str(vm.state) for vm in self.list()]
        return Node(
            ip=self._facts.ip,
            name=self._facts.name,
            version=__version__,
            boot_id=self._facts.boot_id,
            total=self._facts.total,
            free=capacity.free(self._facts.total, self.list()),
            drivers=self._facts.drivers,
            pools=tuple(
                Pool(
                    subnet=subnet,
                    free=free[subnet.id],
                    used=len(self._given.addresses.get(subnet.id, ())) - len(free[subnet.id]),
                )
                for subnet in self._given.subnets
            ),
            vms={state: states.count(state) for state in sorted(set(states))},
            owner_users=self._facts.operators.users,
            owner_groups=self._facts.operators.groups,
        )

    def held(self) -> frozenset[str]:
        return self._vms.held()

    def find_by_ip(self, ip: str) -> VM | None:
        return self._vms.find_by_ip(ip)

    def find_by_mac(self, mac: str) -> VM | None:
        return self._vms.find_by_mac(mac)

    def subnets(self) -> tuple[Subnet, ...]:
        return self._given.subnets

    def subnet_of(self, vm: VM) -> Subnet:
        return self._given.subnet(vm.subnet)

    def check_owner(self, identity: Identity, method: str, reference: str) -> VM:
        """The VM, if the caller may do this to it."""
        vm = self.show(reference)
        check_owner(identity, method, vm.name, vm.owner_users, vm.owner_groups, self._facts.operators)
        return vm

    # --- the node

    async def add_subnet(self, subnet: Subnet) -> Node:
        async with self._giving:
            given = self._given.add_subnet(subnet)
            await self._network.serve(given.subnets)
            return self._give(given)

    async def add_addresses(self, subnet_id: str, new: Iterable[Address]) -> Node:
        async with self._giving:
            return self._give(self._given.add_addresses(subnet_id, new))

    def _give(self, given: addresses.Given) -> Node:
        if given != self._given:
            self._store.write_given(given)
            self._given = given
            self.events.emit(EventKind.NODE, node=self.node())
        return self.node()

    # --- create

    async def create(self, request: CreateVm, identity: Identity) -> AsyncIterator[Progress | Done[VM]]:
        """Make and start a VM; undone as a whole unless it got as far as running."""
        began = clock.monotonic()
        if (known := await self._made_by(request.request_id)) is not None:
            self.check_owner(identity, "vm.create", known.ip)
            yield Done(known)
            return
        image = self._images.get(request.spec.image)
        vm = self._claim(request, identity, image)
        self._board.begin(vm.ip, began)
        async with self._vms.lock(vm), Undo() as undo:
            undo.add(self.undo_create, vm)
            self._vms.save(vm)
            yield self._progress(vm, "address")
            if request.user_data:
                self._store.write_user_data(vm.ip, request.user_data)
            yield self._progress(vm, "volume")
            await self._machines.launch(vm)
            self._board.reach(vm.ip, "started")
            vm = self._vms.update(vm, state=VmState.RUNNING, committed=True)
            undo.commit()
        self._later(THROTTLE_AFTER_S, self._throttle, vm)
        wait = Wait(request.wait.wait_for or image.ready, request.wait.timeout_s)
        async with contextlib.aclosing(self._follow(vm, wait, ("address", "volume"))) as lines:
            async for line in lines:
                yield line

    async def _made_by(self, request_id: str | None) -> VM | None:
        """The VM that an earlier call with this id made. One that is under way is waited for."""
        if request_id is None or (record := self._vms.find_by_request(request_id)) is None:
            return None
        if not record.committed:
            async with self._vms.lock(record.vm):
                record = self._vms.find_by_request(request_id)
        return record.vm if record is not None and record.committed else None

    def _claim(self, request: CreateVm, identity: Identity, image: Image) -> VM:
        """All checks, then the address. No await is between them: nobody else gets it."""
        self._machines.driver(request.spec.driver)
        room = Room(
            node=self._facts.name,
            operators=self._facts.operators,
            total=self._facts.total,
            vms=self._vms.list(),
            given=self._given,
            held=self._vms.held(),
            freed=self._vms.freed,
        )
        vm = plan_vm(request, identity, image, room, now=clock.now(), instance_id=str(uuid.uuid4()))
        self._vms.claim(Record(vm, Want.RUNNING, committed=False, boot_id=self._facts.boot_id))
        return vm

    async def undo_create(self, vm: VM) -> None:
        """Nobody was told of it: it goes. What cannot be ended keeps its address, and is destroyed later."""
        try:
            await self._machines.halt(vm)
        except AtollError as error:
            self._vms.update(vm, state=VmState.DESTROYING, want=Want.GONE, reason=error.brief)
            raise
        self._vms.forget(vm)

    # --- life

    async def start(self, reference: str, wait: Wait) -> AsyncIterator[Progress | Done[VM]]:
        """Start a VM that is down. One that runs already is a success."""
        async with self._vms.alone_with(self.show(reference)) as vm:
            if vm.state is not VmState.RUNNING:
                check_transition("start", vm.name, vm.state)
                await self._launch(vm)
        async with contextlib.aclosing(self._follow(vm, wait)) as lines:
            async for line in lines:
                yield line

    async def _launch(self, vm: VM) -> None:
        self._board.begin(vm.ip, clock.monotonic())
        vm = self._vms.update(
            vm, state=VmState.STARTING, ready={}, want=Want.RUNNING, boot_id=self._facts.boot_id
        )
        try:
            await self._machines.launch(vm)
        except BaseException as error:
            self._vms.update(vm, state=VmState.FAILED_TO_START, reason=str(error) or "interrupted")
            raise
        self._board.reach(vm.ip, "started")
        self._vms.update(vm, state=VmState.RUNNING)
        self._later(THROTTLE_AFTER_S, self._throttle, vm)

    async def stop(self, reference: str, grace_s: float) -> VM:
        """Ask the guest to power down, then end it. One that is down already is a success."""
        async with self._vms.alone_with(self.show(reference)) as vm:
            if vm.state in DOWN:
                return vm
            check_transition("stop", vm.name, vm.state)
            return await self._stop(vm, grace_s)

    async def _stop(self, vm: VM, grace_s: float) -> VM:
        self._vms.update(vm, state=VmState.STOPPING, want=Want.STOPPED)
        obeyed = grace_s > 0 and await self._power_down(vm, grace_s)
        await self._machines.halt(vm)
        reason = "" if obeyed else "ended by force" + (f" after {grace_s:g} s" if grace_s else "")
        return self._vms.update(vm, state=VmState.STOPPED, reason=reason)

    async def _power_down(self, vm: VM, grace_s: float) -> bool:
        """Whether the guest went by itself in time."""
        gone = self._exits[vm.ip] = asyncio.get_running_loop().create_future()
        try:
            await self._machines.driver(vm.driver).power_down(self._machines.machine(vm))
            await asyncio.wait_for(gone, grace_s)
            return True
        except Conflict:
            return True  # it had gone before it could be asked
        except (TimeoutError, AtollError) as error:
            log.info("VM %s did not power down: %s", vm.ip, error)
            return False
        finally:
            del self._exits[vm.ip]

    async def reboot(self, reference: str, wait: Wait) -> AsyncIterator[Progress | Done[VM]]:
        """Shut the guest down and start it again."""
        async with self._vms.alone_with(self.show(reference)) as vm:
            check_transition("reboot", vm.name, vm.state)
            await self._stop(vm, GRACE_S)
            await self._launch(vm)
        async with contextlib.aclosing(self._follow(vm, wait)) as lines:
            async for line in lines:
                yield line

    async def destroy(self, reference: str) -> None:
        """End it and remove all that is its own. One that goes while we wait for our turn is a success."""
        vm = self.show(reference)
        async with self._vms.lock(vm):
            if self._vms.holds(vm):
                await self.finish_destroy(vm)

    async def finish_destroy(self, vm: VM) -> None:
        """The record goes last: killed half-way, this is done again at start-up."""
        self._vms.update(vm, state=VmState.DESTROYING, want=Want.GONE)
        await self._machines.halt(vm)
        self._vms.forget(vm)

    async def relaunch(self, vm: VM) -> None:
        """The host was rebooted under it."""
        async with self._vms.alone_with(vm):
            await self._launch(vm)

    async def adopt(self, vm: VM) -> None:
        """It ran on while there was no agent."""
        self._board.resume(vm.ip, vm.ready)
        await self._machines.adopt(vm)
        if vm.state is not VmState.RUNNING:
            self._vms.update(vm, state=VmState.RUNNING)

    async def finish_stop(self, vm: VM) -> None:
        """An earlier agent was asked to stop it. Nothing is told anew of one that is stopped already."""
        await self._machines.halt(vm)
        if vm.state is not VmState.STOPPED:
            self._vms.update(vm, state=VmState.STOPPED)

    async def note_down(self, vm: VM, exit_: Exit) -> None:
        """It went down by itself."""
        if exit_ is Exit.POWERED_OFF:
            self._vms.update(vm, state=VmState.STOPPED, want=Want.STOPPED, reason="the guest powered off")
        else:
            self._vms.update(vm, state=VmState.CRASHED, reason="the machine ended unexpectedly")
        await self._machines.halt(vm)

    def on_exit(self, ip: str, exit_: Exit) -> None:
        """Called by a driver when a machine stopped running."""
        waiting, vm = self._exits.get(ip), self.find_by_ip(ip)
        if waiting is not None:
            if not waiting.done():
                waiting.set_result(exit_)
        elif vm is not None:
            self._spawn(self._after_exit(vm, exit_))

    async def _after_exit(self, vm: VM, exit_: Exit) -> None:
        async with self._vms.lock(vm):
            if not self._vms.holds(vm) or self._vms.current(vm).state is not VmState.RUNNING:
                return
            try:
                seen = await self._machines.seen(vm)
                # Old news if it was started again before it was our turn.
                if seen is None or seen.exit is not None:
                    await self.note_down(vm, exit_)
            except AtollError as error:
                log.error("VM %s %s ended; noting it: %s", vm.ip, vm.name, error)

    def check_console(self, vm: VM) -> None:
        """Refuse a console that cannot be had, before anyone is connected to it."""
        if not isinstance(self._machines.driver(vm.driver), HasConsole):
            raise Conflict(f"VM {vm.name}: machines of kind {vm.driver} have no console")
        if vm.state is not VmState.RUNNING:
            raise Conflict(f"VM {vm.name}: is {vm.state}, its console is closed", hint="see: atoll vm log")

    async def console(self, vm: VM) -> Console:
        driver = self._machines.driver(vm.driver)
        assert isinstance(driver, HasConsole)
        return await driver.console(self._machines.machine(vm))

    async def close(self) -> None:
        """Touch nothing any more. VMs run on."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- how far a VM has come

    def reached(self, ip: str, stage: str) -> None:
        """Told by the DHCP and metadata servers."""
        vm = self._vms.find_by_ip(ip)
        if vm is not None and self._board.reach(ip, stage):
            self._later(KEEP_READY_AFTER_S, self._keep_ready, vm)

    async def _follow(
        self, vm: VM, wait: Wait, told: tuple[str, ...] = ()
    ) -> AsyncGenerator[Progress | Done[VM], None]:
        """Its stages as it reaches them, then the VM."""
        async with contextlib.aclosing(self._follower.follow(vm, wait, told)) as stages:
            async for progress in stages:
                yield progress
        self._attempt(self._keep_ready, vm)
        self._attempt(self._throttle, vm)
        yield Done(self._vms.current(vm))

    def _keep_ready(self, vm: VM) -> None:
        record = self._vms.record(vm)
        ready = {**record.vm.ready, **self._board.stages(vm.ip)}
        if record.committed and ready != record.vm.ready:
            self._vms.update(vm, ready=ready)

    def _throttle(self, vm: VM) -> None:
        """Once it has started it gets its share of the CPUs, and no more."""
        if self._vms.current(vm).state is VmState.RUNNING:
            self._machines.limit(vm, starting=False)

    def _progress(self, vm: VM, stage: str) -> Progress:
        self._board.reach(vm.ip, stage)
        return Progress(stage, self._board.stages(vm.ip)[stage], vm.ip)

    # --- inner workings

    def _changed(self, kind: EventKind, vm: VM) -> None:
        self.events.emit(kind, vm=vm)
        if kind is EventKind.DESTROYED:
            self._board.forget(vm.ip)
        else:
            self._board.wake(vm.ip)

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
