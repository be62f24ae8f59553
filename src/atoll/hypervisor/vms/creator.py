"""Creating a VM: claim an address, write it down, make what it needs, launch it; or leave nothing of it.

Effects: through records, stores, machines and the hot pool. The checks are in creation.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncGenerator, Callable, Iterator
from functools import partial

from msgspec import Struct, structs

from atoll.api.hypervisor import CreateVm, Progress
from atoll.api.route import Done
from atoll.errors import AtollError, Conflict
from atoll.hypervisor.launch.hotpool import HotPool, Member
from atoll.hypervisor.vms.acknowledgements import Acknowledgements
from atoll.hypervisor.vms.creation import credential_end, new_instance_id, plan_vm
from atoll.hypervisor.vms.making import Making, why_given_up
from atoll.hypervisor.vms.permits import Permit
from atoll.hypervisor.vms.records import Record
from atoll.hypervisor.vms.stages import Stages
from atoll.hypervisor.vms.workbench import Workbench
from atoll.identity.access import check_owner
from atoll.model.identity import Identity
from atoll.model.image import Image
from atoll.model.vm import VM, VmState
from atoll.plan.addresses import Place
from atoll.plan.recovery import Want
from atoll.system import aside, clock, steps
from atoll.system.undo import Undo


class Claim(Struct, frozen=True):
    """A VM that has its address, and what has to be done about the hot pool for it."""

    vm: VM
    pooled: bool
    """It runs already, at that address."""
    giving_way: tuple[Member, ...]


class Creator:
    def __init__(
        self, bench: Workbench, stages: Stages, pool: HotPool, acknowledgements: Acknowledgements
    ) -> None:
        self._bench = bench
        self._vms = bench.vms
        self._stages = stages
        self._pool = pool
        self._acknowledgements = acknowledgements
        self._under_way: dict[str, Making] = {}
        """Those that are not committed, by instance id."""

    async def create(
        self, request: CreateVm, identity: Identity, note: Callable[[str], None] = lambda _: None
    ) -> AsyncGenerator[Progress | Done[VM], None]:
        """Make and start a VM; undone as a whole unless it got as far as running. `note` is told why it was."""
        began = clock.monotonic()
        found = await self._made_or_image(request, identity)
        if isinstance(found, VM):
            check_owner(identity, "vm.create", found, self._bench.operators())
            await self._acknowledgements.expect(found)
            yield Done(found)
            return
        claim = self._claim(request, identity, found)
        vm = self._vms.current(claim.vm)
        self._stages.begin(vm, began)
        with self._making(vm, identity.user, note) as making:
            async with self._vms.lock(vm), Undo() as undo:
                undo.add(self._undo, making)
                with making.explained():
                    making.resume()
                    await self._pool.end(*claim.giving_way)
                    steps.step("create.claimed")
                    await self._vms.save(vm)
                    steps.step("create.saved")
                    address = self._stages.progress(vm, "address")
                    making.pause("address")
                    yield address
                    making.resume()
                    await self._furnish(vm, request)
                    volume = self._stages.progress(vm, "volume")
                    making.pause("volume")
                    yield volume
                    making.resume()
                    vm = await self._launch(vm, request, pooled=claim.pooled)
                undo.commit()
        try:
            async with contextlib.aclosing(
                self._stages.follow(vm, request.wait, ("address", "volume"))
            ) as lines:
                async for line in lines:
                    if isinstance(line, Done):
                        await self._acknowledgements.expect(vm)
                    yield line
        except BaseException:
            with contextlib.suppress(AtollError):  # it has a deadline already, only a later one
                await self._acknowledgements.expect(vm)
            raise

    @contextlib.contextmanager
    def _making(self, vm: VM, user: str, note: Callable[[str], None]) -> Iterator[Making]:
        """A create while it is under way. A creator who still listens is told why it was given up."""
        making = self._under_way[vm.instance_id] = Making(vm, user)
        try:
            yield making
        except asyncio.CancelledError:
            if making.is_given_up:
                raise making.refusal() from None
            raise
        finally:
            del self._under_way[vm.instance_id]
            if making.why_undone:
                note(making.why_undone)

    async def _furnish(self, vm: VM, request: CreateVm) -> None:
        """All that it needs before it is launched."""
        records = self._bench.records
        if request.user_data:
            await self._vms.write(vm, records.write_user_data(vm.ip, request.user_data))
        steps.step("create.user-data")
        if request.role_credential is not None:
            await self._vms.write(vm, records.credentials.write(vm, request.role_credential))
        steps.step("create.credential")
        for volume in vm.volumes:
            if volume.store:
                await self._bench.stores.make(vm.ip, volume, self._bench.machines.uid(vm))
        steps.step("create.volumes")

    async def _launch(self, vm: VM, request: CreateVm, *, pooled: bool) -> VM:
        """From the end of this on, the VM exists."""
        started_by = await self._bench.machines.launch(vm, pooled=pooled)
        steps.step("create.launched")
        self._stages.started(vm)
        by = self._acknowledgements.due(request.wait.timeout_s) if request.acknowledge else None
        running = {"state": VmState.RUNNING, "committed": True, "started_by": started_by}
        vm = await self._vms.update(vm, **running, acknowledge_by=by)
        steps.step("create.committed")
        return vm

    async def abandon(self, permit: Permit, by: str) -> None:
        """Undo a create that its creator gives up. When this returns, nothing is left of it; gone is a success."""
        vm = permit.vm
        if (making := self._under_way.get(vm.instance_id)) is not None:
            making.give_up(by)
        async with self._vms.lock(vm):
            if not self._vms.holds(vm):
                return
            record = self._vms.record(vm)
            permit.check(record.vm)
            if record.acknowledge_by is None:
                raise Conflict(
                    f"VM {vm.name}: is made, and its creator was told of it",
                    hint=f"to destroy it: atoll vm destroy {vm.name}",
                )
            stages = self._stages.reached_by(record.vm)
            await self.undo(record.vm, why_given_up(by, max(stages, key=stages.__getitem__, default="")))

    async def _undo(self, making: Making) -> None:
        await self.undo(making.vm, making.why_undone)

    async def undo(self, vm: VM, why: str = "the agent ended while it was made") -> None:
        """Nobody was told of it: it goes. What cannot be ended keeps its address, and is destroyed later."""
        # Noted first: it may have been committed a moment ago, and the next agent would find a VM that crashed.
        # On a full disk it is undone all the same.
        with contextlib.suppress(AtollError):
            await self._vms.update(vm, state=VmState.DESTROYING, want=Want.GONE, reason=why)
        try:
            await self._bench.machines.remove(vm)
            await aside.run(self._bench.stores.discard, vm.ip)
            await self._vms.forget(vm)
        except AtollError as error:
            await self._vms.update(vm, state=VmState.DESTROYING, want=Want.GONE, reason=error.brief)
            raise

    async def _made_or_image(self, request: CreateVm, identity: Identity) -> VM | Image:
        """The VM that an earlier call made; else what to make one of, which is there until the next pause."""
        spec, supplies = request.spec, self._bench.machines.supplies
        while (known := await self._made_by(identity.user, request.request_id)) is None:
            self._bench.holdings.check_not_drained("creating a VM")
            if (image := supplies.ready(spec.image, spec.driver)) is not None:
                return image
            await supplies.prepare(spec.image, spec.driver)
        return known

    async def _made_by(self, user: str, request_id: str | None) -> VM | None:
        """The VM that an earlier call of this user with this id made. One that is under way is waited for."""
        if request_id is None or (record := self._vms.find_by_request(user, request_id)) is None:
            return None
        if not record.committed:
            async with self._vms.lock(record.vm):
                record = self._vms.find_by_request(user, request_id)
        return record.vm if record is not None and record.committed else None

    def _claim(self, request: CreateVm, identity: Identity, image: Image) -> Claim:
        """All checks, then the address. No await is between them: nobody else gets it."""
        pooled = self._pool.yielding()
        self._bench.machines.driver(request.spec.driver)
        room = structs.replace(
            self._bench.room(),
            held=self._vms.held() - pooled,
            # The pool gives way, but only when no other address is left.
            freed=self._vms.freed | dict.fromkeys(pooled, sys.maxsize),
        )
        now, instance_id = clock.now(), new_instance_id(request.spec, image)
        ends_at = credential_end(request, now)
        planned = partial(plan_vm, request, identity, image, now=now, credential_ends_at=ends_at)
        vm = planned(room, instance_id=instance_id)
        member = self._pool.choose(vm)
        if member is not None:
            # Again, with that address before all others: more of a VM may follow from its address.
            first: Place = (member.vm.subnet, member.vm.ip)
            room = structs.replace(room, freed=room.freed | {first: -1})
            vm = planned(room, instance_id=member.vm.instance_id)
        fits = member is not None and member.vm.ip == vm.ip
        if not fits:  # its address was taken from the node meanwhile
            vm = structs.replace(vm, instance_id=instance_id)
        boot_id, ids = self._bench.facts.boot_id, self._bench.machines.take_ids(vm)
        record = Record(vm, Want.RUNNING, committed=False, boot_id=boot_id, ids=ids)
        self._vms.claim(structs.replace(record, requested_by=identity.user))
        if member is not None and fits:
            self._pool.hand_over(member)
            member = None
        short_mib = self._pool.demand().memory_mib - self._bench.unused().memory_mib
        return Claim(vm, fits, self._pool.make_way(vm, short_mib, unfit=member))
