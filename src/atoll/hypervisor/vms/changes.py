"""Changes of a VM that is there: every check, then the VM as it will be (pure), and the making of it.

What takes hold at once: name (the guest learns it with its next lease), tags, owners, keys, user data, the share of
the CPUs, the VM's rules, and memory where it is a limit (containers). What a running machine cannot take (memory,
virtual CPUs, machine type, console, kernel options, watchdog, netboot, shares) is noted, and waits for the next start.
A new subnet means a new address, and needs a VM that is down.

Effects: through inventory, records and machines.
"""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Any

from msgspec import UNSET, structs

from atoll.api.changes import ChangeVm
from atoll.errors import Conflict, Denied, Invalid, NotFound
from atoll.hypervisor.vms.creation import (
    check_expiry,
    check_hardware,
    check_memory,
    check_screen,
    check_shares,
)
from atoll.hypervisor.vms.permits import Permit
from atoll.hypervisor.vms.room import Room
from atoll.hypervisor.vms.workbench import Workbench
from atoll.identity.access import check_subnet
from atoll.model.checks import check_tags
from atoll.model.identity import Identity
from atoll.model.lifecycle import HELD, Action, begin
from atoll.model.share import check_mounts
from atoll.model.vm import (
    MAX_OWNERS,
    VM,
    MachineType,
    Running,
    VmState,
    check_console,
    check_folders,
    check_netboot,
    check_policies,
    check_watchdog,
    vcpus_for,
)
from atoll.model.volume import ROOT, Volume, check_interfaces
from atoll.plan import capacity
from atoll.plan.addresses import check_gives_key, choose, free_addresses, nic_of
from atoll.plan.honours import check_honoured, remarks
from atoll.plan.shares import with_mounts
from atoll.system import aside, clock, steps

_AS_GIVEN = (
    "name",
    "memory_mib",
    "milli_cpus",
    "machine_type",
    "console",
    "kernel_options",
    "watchdog",
    "watchdog_action",
    "netboot",
    "owner_users",
    "owner_groups",
    "ssh_keys",
    "restart",
    "destroy_on_power_down",
    "protected",
    "expires_at",
)
_NEEDS_RESTART = (
    *("memory_mib", "vcpus", "machine_type", "console", "volumes"),
    *("kernel_options", "watchdog", "watchdog_action", "netboot", "shares"),
)


class Changes:
    """Changes VMs, one at a time each."""

    def __init__(self, bench: Workbench) -> None:
        self._bench = bench
        self._vms = bench.vms

    async def change(self, permit: Permit, change: ChangeVm, identity: Identity) -> VM:
        """All of it, or nothing."""
        async with self._vms.alone_with(permit) as vm:
            if change.memory_mib is not UNSET:
                check_memory(change.memory_mib, self._bench.machines.image(vm))
            if vm.state is VmState.RUNNING and vm.driver in self._bench.machines.memory_kinds():
                return await self._change_live(vm, change, identity)
            return await self._keep(vm, change, identity)

    async def _change_live(self, vm: VM, change: ChangeVm, identity: Identity) -> VM:
        """Its memory is a limit. Less of it is taken first: a machine may need more. More is claimed first."""
        machines = self._bench.machines
        new = self._planned(vm, change, identity)
        if new.memory_mib >= vm.memory_mib:
            kept = await self._keep(vm, change, identity)
            if new.memory_mib > vm.memory_mib:
                steps.step("change.grown")
                await machines.resize_memory(kept)
            return kept
        await machines.resize_memory(new)
        steps.step("change.shrunk")
        try:
            return await self._keep(vm, change, identity)
        except BaseException:
            await machines.resize_memory(vm)
            raise

    async def _keep(self, vm: VM, change: ChangeVm, identity: Identity) -> VM:
        self._planned(vm, change, identity)
        if change.user_data is not UNSET and change.user_data:
            await self._bench.records.write_user_data(vm.ip, change.user_data)
            steps.step("change.user-data")
        # Again, and no await from the checks to the claim: nobody else gets what they find free.
        new = self._planned(vm, change, identity)
        if new.ip == vm.ip:
            return await self._take(vm, new)
        return await self._vms.move(vm, new, self._carry)

    def _planned(self, vm: VM, change: ChangeVm, identity: Identity) -> VM:
        new = plan_change(vm, change, identity, self._bench.room(), clock.now())
        if vm.state is VmState.DAMAGED:  # its record says nothing of its image, and will not be written
            return new
        try:
            image = self._bench.machines.image(vm)
        except NotFound:  # nobody can tell any more
            return new
        if change.user_data is not UNSET or change.ssh_keys is not UNSET:
            check_honoured(new, image, b"" if change.user_data is UNSET else change.user_data)
        own_kernel = new.driver in self._bench.machines.hardware_kinds()
        said = remarks(new, image, self._user_data(new, change), own_kernel=own_kernel)
        return structs.replace(new, remarks=said)

    def _user_data(self, new: VM, change: ChangeVm) -> bytes:
        """What it will be given."""
        if change.user_data is not UNSET:
            return change.user_data
        return self._bench.records.user_data_of(new)

    async def become_primary_owner(self, permit: Permit, identity: Identity) -> VM:
        """The caller comes first of its owners."""
        async with self._vms.alone_with(permit) as vm:
            new = structs.replace(vm, owner_users=with_primary(vm.owner_users, identity.user))
            room = self._bench.room()
            room.check_quotas(new, vm, f"becoming the primary owner of VM {vm.name} on {room.node}")
            return await self._take(vm, new)

    async def _carry(self, source: str, target: str) -> None:
        await aside.run(self._bench.stores.carry, source, target)

    async def _take(self, vm: VM, new: VM) -> VM:
        differences = differing(vm, new)
        if differences:
            new = await self._vms.update(vm, **differences)
            steps.step("change.recorded")
        has_machine = new.state is VmState.RUNNING or (new.state in HELD and not new.is_on_disk)
        if "milli_cpus" in differences and has_machine:
            self._bench.machines.limit(new, starting=False)
        return new


def plan_change(vm: VM, change: ChangeVm, identity: Identity, room: Room, now: datetime) -> VM:
    """The VM as it will be; or NotFound, Conflict, Invalid, Denied, PoolEmpty, NoCapacity. Pure."""
    given = {name: value for name in _AS_GIVEN if (value := getattr(change, name)) is not UNSET}
    new = structs.replace(vm, **given, **_user_data(vm, change))
    others = [other for other in room.vms if other.instance_id != vm.instance_id]
    if any(other.name == new.name for other in others):
        raise Conflict(f"VM {new.name}: there is one of this name", hint="choose another name")
    if change.tags is not UNSET:
        kept = {key: value for key, value in (vm.tags | change.tags).items() if value is not None}
        new = structs.replace(new, tags=check_tags("tag", kept))
    if change.milli_cpus is not UNSET:
        new = structs.replace(new, vcpus=vcpus_for(new.milli_cpus, room.vcpus))
    if change.expires_at is not UNSET:
        check_expiry(change.expires_at, now)
    check_policies(new.restart, new.destroy_on_power_down)
    check_console(new.console, new.machine_type)
    check_watchdog(new.watchdog, new.machine_type)
    check_netboot(new)
    check_interfaces(new.volumes, has_pci=new.machine_type is not MachineType.MICROVM)
    check_screen(new, room.screen_kinds)
    check_hardware(new, room.hardware_kinds)
    if change.add_shares is not UNSET or change.remove_shares is not UNSET:
        new = _with_shares(new, change, identity, room)
    check_folders(new.shares, new.machine_type)
    if "owner_users" in given or "owner_groups" in given:
        _check_owners(vm, new, identity, room)
    if change.subnet is not UNSET and change.subnet != vm.subnet:
        new = _with_address(new, change.subnet, identity, room)
    new = with_pending(_with_live(vm, new, room), new)
    doing = f"changing VM {vm.name} on {room.node}"
    room.check_quotas(new, vm, doing)
    capacity.check_grows(new, vm, room.promised, room.vms, doing)
    return new


def _with_shares(vm: VM, change: ChangeVm, identity: Identity, room: Room) -> VM:
    added = () if change.add_shares is UNSET else change.add_shares
    removed = () if change.remove_shares is UNSET else change.remove_shares
    shares = with_mounts(vm.shares, added, removed)
    check_mounts(shares)
    new = structs.replace(vm, shares=shares)
    if added:
        check_shares(new, added, identity, room, f"changing VM {vm.name} on {room.node}")
    return new


def with_pending(vm: VM, new: VM) -> VM:
    """What a machine that runs cannot take is noted as waiting for its next start. Pure."""
    if vm.state is not VmState.RUNNING and vm.state not in HELD:
        return structs.replace(new, running=None, pending=())
    running = vm.running or running_as(vm)
    wanted = running_as(new)
    pending = tuple(name for name in _NEEDS_RESTART if getattr(wanted, name) != getattr(running, name))
    return structs.replace(new, running=running if pending else None, pending=pending)


def with_volumes(vm: VM, volumes: tuple[Volume, ...]) -> dict[str, Any]:
    """What changes of a VM that is given these volumes. Pure."""
    new = with_pending(vm, structs.replace(vm, volumes=volumes))
    return {"volumes": volumes, "running": new.running, "pending": new.pending}


def _with_live(vm: VM, new: VM, room: Room) -> VM:
    """The VM whose machine has what it takes while it runs, where its kind does. Pure."""
    if vm.driver not in room.memory_kinds or vm.state in HELD:
        return vm
    running = structs.replace(vm.running or running_as(vm), memory_mib=new.memory_mib, vcpus=new.vcpus)
    return structs.replace(vm, running=running)


def running_as(vm: VM) -> Running:
    """What a machine of this VM is started with."""
    volumes = tuple(volume.name for volume in vm.volumes if volume.attached)
    return Running(
        memory_mib=vm.memory_mib,
        vcpus=vm.vcpus,
        machine_type=vm.machine_type,
        console=vm.console,
        volumes=volumes,
        kernel_options=vm.kernel_options,
        watchdog=vm.watchdog,
        watchdog_action=vm.watchdog_action,
        netboot=vm.netboot,
        shares=vm.shares,
    )


def as_started(vm: VM) -> VM:
    """The VM as its machine was started, whatever was changed since. Pure."""
    if vm.running is None:
        return vm
    was = structs.asdict(vm.running)
    had = was.pop("volumes")
    volumes = tuple(
        structs.replace(volume, attached=volume.name in had) if volume.name != ROOT else volume
        for volume in vm.volumes
    )
    return structs.replace(vm, volumes=volumes, **was)


def with_primary(owners: tuple[str, ...], user: str) -> tuple[str, ...]:
    """The same owners with this one first. Pure."""
    changed = (user, *(owner for owner in owners if owner != user))
    if len(changed) > MAX_OWNERS:
        raise Conflict(
            f"owner {user}: there are {MAX_OWNERS} owners already",
            hint="take one away first: atoll vm change",
        )
    return changed


def differing(vm: VM, new: VM) -> dict[str, Any]:
    """The fields that are different, as they will be. Pure."""
    return {
        name: getattr(new, name) for name in VM.__struct_fields__ if getattr(vm, name) != getattr(new, name)
    }


def _user_data(vm: VM, change: ChangeVm) -> dict[str, str]:
    if change.previous_user_data:
        if vm.previous_user_data_sha256 is None:
            raise Conflict(
                f"VM {vm.name}: its user data was never changed", hint="there is nothing to go back to"
            )
        return {
            "user_data_sha256": vm.previous_user_data_sha256,
            "previous_user_data_sha256": vm.user_data_sha256,
        }
    if change.user_data is UNSET:
        return {}
    sha256 = hashlib.sha256(change.user_data).hexdigest() if change.user_data else ""
    if sha256 == vm.user_data_sha256:
        return {}
    return {"user_data_sha256": sha256, "previous_user_data_sha256": vm.user_data_sha256}


def _check_owners(vm: VM, new: VM, identity: Identity, room: Room) -> None:
    if not new.owner_users and not new.owner_groups:
        raise Invalid("owner", "", f"VM {vm.name} must have one", hint="name a user or a group")
    if not identity.among(new.owner_users, new.owner_groups) and not room.operators.include(identity):
        raise Denied(
            f"{identity.user} may not give VM {vm.name} away: nobody has to answer for what they did not ask for",
            hint=f"keep {identity.user} among its owners; the others can then take {identity.user} off",
            details={"user": identity.user, "vm": vm.name},
        )


def _with_address(vm: VM, subnet_id: str, identity: Identity, room: Room) -> VM:
    begin(Action.ALTER, vm.name, vm.state)
    if subnet_id in vm.extra_subnets:
        raise Conflict(
            f"moving VM {vm.name}: it has an interface in subnet {subnet_id} already",
            hint="a VM has one interface in each of its subnets, and keeps those beside the first",
        )
    if not all(volume.made for volume in vm.volumes):
        raise Conflict(
            f"moving VM {vm.name}: the content of a volume is on its way", hint="wait until it is there"
        )
    check_subnet(identity, check_gives_key(room.given.subnet(subnet_id)), room.operators)
    free = free_addresses(room.given, room.held, room.freed)
    nic = nic_of(*choose(room.given, free, subnet_id, (subnet_id,), room.node))
    return structs.replace(vm, ip=nic.ip, mac=nic.mac, subnet=nic.subnet, ip6=nic.ip6)
