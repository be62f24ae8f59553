"""The volumes of VMs beside their roots: add, fill, attach, detach, resize, move, reorder, delete.

A volume is claimed by the record before its file is made, so that nobody else gets its space, and counts once it is
whole. The record says what the guest is to have; a machine that cannot take or give a disk while it runs has it, or
is rid of it, from its next start on.

Effects: through inventory, machines and stores. Where volumes go is decided in atoll.plan.volumes.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Collection

from msgspec import UNSET, structs

from atoll.api.route import Content, Done
from atoll.api.volumes import AddVolume, ChangeVolume, UploadVolume, VolumeStep
from atoll.drivers.machine.base import CanGrowDisks, CanHotplug
from atoll.errors import Conflict, Invalid, NotFound
from atoll.hypervisor.launch.own_commands import run_in
from atoll.hypervisor.vms.changes import running_as, with_pending, with_volumes
from atoll.hypervisor.vms.creation import check_disks
from atoll.hypervisor.vms.permits import Permit
from atoll.hypervisor.vms.workbench import Workbench
from atoll.hypervisor.volumes.stores import Stores
from atoll.model.lifecycle import DOWN, Action, begin
from atoll.model.vm import VM, MachineType, VmState
from atoll.model.volume import (
    Volume,
    VolumeFormat,
    VolumeSpec,
    check_interfaces,
    check_volume_name,
    find,
)
from atoll.plan import capacity
from atoll.plan.disk_content import QCOW2_HEADER, in_mib, qcow2_size_mib
from atoll.plan.volumes import check_resize, choose_store, place, reordered
from atoll.system import aside, clock, steps

GUEST_GROWS_S = 20.0
"""How long a guest may take to make its file system larger."""

Lines = AsyncIterator[VolumeStep | Done[VM]]


class Volumes:
    """Works on the volumes of one VM at a time."""

    def __init__(self, bench: Workbench, stores: Stores) -> None:
        self._vms = bench.vms
        self._machines = bench.machines
        self._stores = stores
        self._room = bench.room

    async def add(self, permit: Permit, request: AddVolume) -> Lines:
        """A new volume. One just like it under its name is a success."""
        began = clock.monotonic()
        async with self._vms.alone_with(permit) as vm:
            if _just_like(vm, request.volume):
                yield Done(vm)
                return
            volume = self._plan(vm, request.volume)
            try:
                vm = await self._claim(vm, volume)
                steps.step("volume.claimed")
                if volume.store:
                    await self._stores.make(vm.ip, volume, self._machines.uid(vm))
                steps.step("volume.made")
                yield VolumeStep("made", clock.monotonic() - began)
                vm = await self._finish(vm, structs.replace(volume, made=True))
            except BaseException:
                await aside.whole(self._unclaim(vm, volume))
                raise
            steps.step("volume.finished")
            yield Done(await self._attach(vm, volume.name) if request.attach else vm)

    async def upload(self, permit: Permit, name: str, request: UploadVolume, content: Content) -> VM:
        """A new volume with this content."""
        check_volume_name(name)
        size_mib, chunks = await _measured(request, content)
        async with self._vms.alone_with(permit) as vm:
            spec = VolumeSpec(
                size_mib, name, request.format, store=request.store, interface=request.interface
            )
            volume = self._plan(vm, spec)
            try:
                vm = await self._claim(vm, volume)
            except BaseException:
                await aside.whole(self._unclaim(vm, volume))
                raise
        # Nobody has to wait for a slow sender: the VM is let go of meanwhile. Afterwards it may be gone, or no longer
        # the sender's.
        try:
            async with contextlib.AsyncExitStack() as turn:
                uid = self._machines.uid(vm)
                async with self._stores.receive(vm.ip, volume, chunks, request.sha256, uid) as fs:
                    vm = await turn.enter_async_context(self._vms.alone_with(permit))
                    find(vm.volumes, name, vm.name)
                vm = await self._finish(vm, structs.replace(volume, made=True, fs=fs))
                return await self._attach(vm, name) if request.attach else vm
        except BaseException:
            if self._vms.holds(vm):
                await aside.whole(self._unclaim(vm, volume))
            raise

    async def change(self, permit: Permit, name: str, change: ChangeVolume) -> Lines:
        """Taken from the guest first, given to it last."""
        began = clock.monotonic()
        async with self._vms.alone_with(permit) as vm:
            find(vm.volumes, name, vm.name)
            if change.attached is False:
                vm = await self._detach(vm, name)
                yield VolumeStep("detached", clock.monotonic() - began)
            if change.store is not UNSET:
                vm = await self._move(vm, name, change.store)
                yield VolumeStep("moved", clock.monotonic() - began)
            if change.size_mib is not UNSET:
                vm = await self._resize(vm, name, change.size_mib)
                yield VolumeStep("resized", clock.monotonic() - began)
                if self._is_used(vm, name):
                    step, note = await self._grow_in_guest(vm, name)
                    yield VolumeStep(step, clock.monotonic() - began, note)
            if change.attached is True:
                vm = await self._attach(vm, name)
                yield VolumeStep("attached", clock.monotonic() - began)
            yield Done(vm)

    async def reorder(self, permit: Permit, names: tuple[str, ...]) -> VM:
        async with self._vms.alone_with(permit) as vm:
            return await self._set(vm, reordered(vm.volumes, names, vm.name))

    async def delete(self, permit: Permit, name: str) -> VM:
        """Gone is a success."""
        async with self._vms.alone_with(permit) as vm:
            try:
                volume = find(vm.volumes, name, vm.name)
            except NotFound:
                return vm
            if volume.attached:
                vm = await self._detach(vm, name)
            self._check_free(vm, volume, "deleting")
            # Out of the record before its file goes: one that is named must be there. Killed in between, the mark
            # tells it from a file that nobody knows.
            if volume.store:
                await aside.run(self._stores.loosen, vm.ip, volume)
                steps.step("volume.loosened")
            try:
                left = tuple(other for other in vm.volumes if other.name != name)
                vm = await aside.whole(self._set(vm, left))
                steps.step("volume.forgotten")
            finally:
                await aside.whole(self._settle_file(vm, volume))
            steps.step("volume.removed")
            return vm

    def _plan(self, vm: VM, spec: VolumeSpec) -> Volume:
        """The volume, after all checks. `_claim` follows without an await between them: nobody else gets its space."""
        room = self._room()
        (placed,) = place([spec], room.spaces, room.volumes, vm.volumes)
        volume = structs.replace(placed, attached=False, made=False)
        new = structs.replace(vm, volumes=(*vm.volumes, volume))
        check_disks(new, room.disk_kinds)
        check_interfaces(new.volumes, has_pci=vm.machine_type is not MachineType.MICROVM)
        doing = f"adding a volume to VM {vm.name} on {room.node}"
        room.check_quotas(new, vm, doing)
        capacity.check_grows(new, vm, room.promised, room.vms, doing)
        return volume

    async def _claim(self, vm: VM, volume: Volume) -> VM:
        return await self._set(vm, (*vm.volumes, volume))

    async def _unclaim(self, vm: VM, volume: Volume) -> None:
        """It never was; unless it is whole by now, and only could not be attached."""
        current = self._vms.current(vm)
        if volume.name in {other.name for other in current.volumes if other.made}:
            return
        await self._stores.remove(vm.ip, volume)
        if not self._vms.holds(vm):
            return
        current = self._vms.current(vm)
        await self._set(current, tuple(other for other in current.volumes if other.name != volume.name))

    async def _finish(self, vm: VM, volume: Volume) -> VM:
        return await self._set(vm, _with(vm.volumes, volume))

    async def _attach(self, vm: VM, name: str) -> VM:
        """Now where the machine can, else from its next start on."""
        volume = find(vm.volumes, name, vm.name)
        _check_made(volume, vm)
        self._stores.check_usable(volume)
        if volume.attached:
            return vm
        volume = structs.replace(volume, attached=True)
        driver = self._hotplug(vm)
        disk = self._machines.disk(vm, volume)
        live = driver is not None and await driver.can_attach(self._machines.machine(vm), disk)
        new = await self._set(vm, _with(vm.volumes, volume))
        if driver is None or not live:
            return new
        try:
            self._machines.limit(new, starting=False)
            await driver.attach(self._machines.machine(vm), disk)
        except BaseException:
            await self._set(new, vm.volumes)
            raise
        return await self._has(new, {*_had(vm), name})

    async def _detach(self, vm: VM, name: str) -> VM:
        volume = find(vm.volumes, name, vm.name)
        if not volume.attached:
            return vm
        volume = structs.replace(volume, attached=False)
        new = await self._set(vm, _with(vm.volumes, volume))
        driver = self._hotplug(vm)
        if driver is None or not await driver.can_detach(self._machines.machine(vm), name):
            return new
        try:
            await driver.detach(self._machines.machine(vm), name)
        except BaseException:
            await self._set(new, vm.volumes)
            raise
        return await self._has(new, {*_had(vm)} - {name})

    async def _resize(self, vm: VM, name: str, size_mib: int) -> VM:
        volume = find(vm.volumes, name, vm.name)
        check_resize(volume, size_mib, vm.name)
        resized = structs.replace(volume, size_mib=size_mib)
        used = size_mib >= volume.size_mib and self._grows_while_used(vm, resized)
        if not used:
            self._check_free(vm, volume, "resizing")
        if size_mib < volume.size_mib:
            await self._stores.shrink(vm.ip, volume, size_mib, self._machines.uid(vm))
            return await self._set(vm, _with(vm.volumes, resized))
        # Claimed first. Of the same size is done again: it may have been cut short.
        room = self._room()
        grown = structs.replace(vm, volumes=_with(vm.volumes, resized))
        room.check_quotas(grown, vm, f"growing volume {name} of VM {vm.name} on {room.node}")
        choose_store(size_mib - volume.size_mib, volume.store, room.spaces, room.volumes)
        vm = await self._set(vm, grown.volumes)
        try:
            steps.step("volume.grows")
            if used:
                await self._grow_used(vm, resized)
            else:
                await self._stores.grow(vm.ip, volume, size_mib, self._machines.uid(vm))
        except BaseException:
            await self._set(vm, _with(vm.volumes, volume))
            raise
        steps.step("volume.grown")
        return vm

    def _is_used(self, vm: VM, name: str) -> bool:
        """Whether a machine that runs has it."""
        return vm.state is VmState.RUNNING and name in _had(vm)

    def _grows_while_used(self, vm: VM, volume: Volume) -> bool:
        driver = self._machines.driver(vm.driver)
        return (
            self._is_used(vm, volume.name)
            and isinstance(driver, CanGrowDisks)
            and driver.grows_while_used(self._machines.disk(vm, volume))
        )

    async def _grow_used(self, vm: VM, volume: Volume) -> None:
        """Its machine has the file open, and makes it larger itself."""
        self._stores.check_usable(volume)
        driver = self._machines.driver(vm.driver)
        assert isinstance(driver, CanGrowDisks)
        await driver.grow_disk(self._machines.machine(vm), self._machines.disk(vm, volume))

    async def _grow_in_guest(self, vm: VM, name: str) -> tuple[str, str]:
        """What is mounted from it in the guest becomes as large, or why not."""
        device = find(vm.volumes, name, vm.name).device
        done = await run_in(self._machines, vm, "resize2fs", device, timeout_s=GUEST_GROWS_S)
        if done.worked:
            return "grown in the guest", ""
        why = done.said or f"resize2fs ended with status {done.status}"
        return "seen by the guest", f"its file system is as it was ({why}); in the guest: resize2fs {device}"

    async def _move(self, vm: VM, name: str, store: str) -> VM:
        volume = find(vm.volumes, name, vm.name)
        if volume.store == store:
            return vm
        if not volume.store:
            raise Conflict(f"volume {name} of VM {vm.name}: is in memory and in no store")
        self._check_free(vm, volume, "moving")
        room = self._room()
        choose_store(volume.size_mib, store, room.spaces, room.volumes)
        moved = structs.replace(volume, store=store)
        await aside.run(self._stores.loosen, vm.ip, volume)
        try:
            await self._stores.copy_to(vm.ip, volume, moved, self._machines.uid(vm))
            return await aside.whole(self._set(vm, _with(vm.volumes, moved)))
        finally:
            for one in (volume, moved):
                await aside.whole(self._settle_file(vm, one))

    async def _settle_file(self, vm: VM, volume: Volume) -> None:
        """Keep the file of a volume that was made loose if the record names it now, else remove it."""
        named = ((other.store, other.file) for other in self._vms.current(vm).volumes)
        if not volume.store:
            return
        if (volume.store, volume.file) in named:
            await aside.run(self._stores.fasten, vm.ip, volume)
        else:
            await self._stores.remove(vm.ip, volume)

    def _check_free(self, vm: VM, volume: Volume, doing: str) -> None:
        """Refuse while the guest has it, or somebody is at work on it."""
        _check_made(volume, vm)
        if vm.state in DOWN:
            return
        if vm.state is not VmState.RUNNING:
            begin(Action.ALTER, vm.name, vm.state)
        if volume.name in _had(vm):
            raise Conflict(
                f"{doing} volume {volume.name} of VM {vm.name}: the guest has it",
                hint=f"detach it first: atoll volume detach {vm.name} {volume.name}, or stop the VM",
            )

    def _hotplug(self, vm: VM) -> CanHotplug | None:
        """What can give and take disks now; None where the next start is soon enough."""
        driver = self._machines.driver(vm.driver)
        return driver if vm.state is VmState.RUNNING and isinstance(driver, CanHotplug) else None

    async def _has(self, vm: VM, names: Collection[str]) -> VM:
        """Note that the machine that runs has these disks now."""
        there = tuple(volume.name for volume in vm.volumes if volume.name in names)
        running = structs.replace(vm.running or running_as(vm), volumes=there)
        new = with_pending(structs.replace(vm, running=running), vm)
        return await self._vms.update(vm, running=new.running, pending=new.pending)

    async def _set(self, vm: VM, volumes: tuple[Volume, ...]) -> VM:
        return await self._vms.update(vm, **with_volumes(vm, volumes))


def _check_made(volume: Volume, vm: VM) -> None:
    if not volume.made:
        raise Conflict(
            f"volume {volume.name} of VM {vm.name}: its content is on its way", hint="wait until it is there"
        )


def _had(vm: VM) -> tuple[str, ...]:
    """The disks that the machine has which runs now."""
    return (vm.running or running_as(vm)).volumes


def _with(volumes: tuple[Volume, ...], changed: Volume) -> tuple[Volume, ...]:
    return tuple(changed if volume.name == changed.name else volume for volume in volumes)


def _just_like(vm: VM, spec: VolumeSpec) -> bool:
    """The VM has a volume of this name that is what is asked for."""
    there = next((volume for volume in vm.volumes if volume.name == spec.name and volume.made), None)
    asked = (spec.size_mib, spec.format, spec.fs, spec.type, spec.interface)
    return there is not None and asked == (
        there.size_mib,
        there.format,
        there.fs,
        there.type,
        there.interface,
    )


async def _measured(request: UploadVolume, content: Content) -> tuple[int, AsyncIterator[bytes]]:
    """How large a volume the content needs, or is asked for; and the content, of which nothing is lost."""
    chunks = content.chunks
    if request.format is VolumeFormat.QCOW2:
        head = b""
        while len(head) < QCOW2_HEADER and (chunk := await anext(chunks, b"")):
            head += chunk
        needed, chunks = qcow2_size_mib(head), _again(head, chunks)
    elif content.length is not None:
        needed = in_mib(content.length)
    elif request.size_mib is not None:
        needed = request.size_mib
    else:
        raise Invalid("size_mib", None, "is needed where the length of the content is not told")
    size_mib = needed if request.size_mib is None else request.size_mib
    if size_mib < needed:
        raise Invalid("size_mib", size_mib, f"is less than the content needs: {needed} MiB")
    return size_mib, chunks


async def _again(head: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield head
    async for chunk in rest:
        yield chunk
