"""The VM that a request makes: every check there is, then the VM as it will be. Pure; creator.py makes it."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Collection, Sequence
from datetime import datetime

from msgspec import structs

from atoll.api.hypervisor import CreateVm
from atoll.errors import Conflict, Denied, Invalid, PoolEmpty
from atoll.hypervisor.vms.room import Room
from atoll.identity import long_lived
from atoll.identity.access import Operators, check_owners_given, check_subnet
from atoll.identity.roles import check_creator, check_role_given
from atoll.model.hardware import Netboot, Watchdog
from atoll.model.identity import Identity
from atoll.model.image import Image
from atoll.model.network import Subnet
from atoll.model.share import ShareMount
from atoll.model.vm import VM, ConsoleKind, VmNic, VmSpec, VmState, instance_id_of, vcpus_for
from atoll.model.volume import Volume, VolumeFormat, VolumeSpec, VolumeType
from atoll.plan import capacity, shares
from atoll.plan.addresses import check_gives_key, choose, free_addresses, nic_of
from atoll.plan.honours import check_honoured, remarks
from atoll.plan.volumes import check_root, place


def needs_tokens(spec: VmSpec, image: Image) -> bool:
    """Whether metadata is given for tokens only: as it is asked for, else where the image's guests can."""
    return image.imdsv2 if spec.imdsv2_required is None else spec.imdsv2_required


def new_instance_id(spec: VmSpec, image: Image) -> str:
    return instance_id_of(uuid.uuid4(), imdsv2_required=needs_tokens(spec, image))


def credential_end(request: CreateVm, now: datetime) -> datetime | None:
    """When the credential of its role ends that a request brings, or Invalid; None when it brings none."""
    if request.role_credential is None or request.spec.role is None:
        return None
    return long_lived.check(request.role_credential, request.spec.role, now)


def plan_vm(
    request: CreateVm,
    identity: Identity,
    image: Image,
    room: Room,
    *,
    now: datetime,
    instance_id: str,
    credential_ends_at: datetime | None = None,
) -> VM:
    """The VM; or NotFound, Conflict, Invalid, Denied, PoolEmpty, NoCapacity.

    `credential_ends_at` is when the request's credential of the role ends, which has been checked.
    """
    spec = request.spec
    check_creator(identity, room.role_callers)
    _check_image(spec, image)
    if any(vm.name == spec.name for vm in room.vms):
        raise Conflict(
            f"VM {spec.name}: there is one of this name", hint="choose another name, or destroy it first"
        )
    check_owners_given(identity, spec.owner_users, room.operators)
    if spec.role is not None:
        _check_role(spec.name, spec.role, identity, room, shown=credential_ends_at is not None)
    first, *others = _nics(spec, identity, room)
    vm = VM(
        ip=first.ip,
        mac=first.mac,
        name=spec.name,
        state=VmState.STARTING,
        driver=spec.driver,
        image=spec.image,
        image_digest=image.digest,
        memory_mib=spec.memory_mib,
        milli_cpus=spec.milli_cpus,
        vcpus=vcpus_for(spec.milli_cpus, room.vcpus),
        machine_type=spec.machine_type,
        subnet=first.subnet,
        ip6=first.ip6,
        nics=tuple(others),
        owner_users=spec.owner_users or (identity.user,),
        owner_groups=spec.owner_groups,
        tags=spec.tags,
        created_at=now,
        instance_id=instance_id,
        ready={},
        volumes=(_root(spec, room), *_as_asked(spec.volumes)),
        user_data_sha256=hashlib.sha256(request.user_data).hexdigest() if request.user_data else "",
        request_id=request.request_id or "",
        ssh_keys=spec.ssh_keys,
        role=spec.role,
        imdsv2_required=needs_tokens(spec, image),
        restart=spec.restart,
        destroy_on_power_down=spec.destroy_on_power_down,
        protected=spec.protected,
        expires_at=check_expiry(spec.expires_at, now),
        console=spec.console,
        kernel_options=spec.kernel_options,
        watchdog=spec.watchdog,
        watchdog_action=spec.watchdog_action,
        netboot=spec.netboot,
        role_credential_expires_at=credential_ends_at,
        shares=spec.shares,
    )
    doing = f"creating a VM on {room.node}"
    room.check_quotas(vm, None, doing)
    capacity.check_fits(capacity.demand(vm), capacity.free(room.total, room.vms), doing, room.promised)
    check_disks(vm, room.disk_kinds)
    check_screen(vm, room.screen_kinds)
    check_hardware(vm, room.hardware_kinds)
    check_shares(vm, spec.shares, identity, room, doing)
    if vm.root_mib is not None:
        check_root(vm.root_mib, room.spaces, room.volumes)
    check_honoured(vm, image, request.user_data)
    placed = place(spec.volumes, room.spaces, room.volumes, vm.volumes[:1])
    said = remarks(vm, image, request.user_data, own_kernel=vm.driver in room.hardware_kinds)
    return structs.replace(vm, volumes=(vm.volumes[0], *placed), remarks=said)


def _check_role(vm: str, role: str, identity: Identity, room: Room, *, shown: bool) -> None:
    if not shown:
        # Whoever shows a credential of the role can act in it already; the node lends them nothing of its own.
        check_role_given(identity, role, room.operators)
    if not room.has_roles:
        raise Conflict(
            f"VM {vm}: role {role}: nobody issues credentials for roles on {room.node}",
            hint="name an issuer in the agent's configuration: roles",
        )
    if shown and not room.takes_credentials:
        raise Conflict(
            f"VM {vm}: role {role}: the issuer of {room.node} is its own CA, which takes no credential for a role",
            hint=f"leave it out; it takes a certificate with group {role}, or an operator of the node",
        )


def _root(spec: VmSpec, room: Room) -> Volume:
    """Its root: in its memory, or what it may change of its image, on the node's disk."""
    if spec.driver in room.root_kinds:
        return Volume(VolumeFormat.RAW, spec.root_mib or room.root_mib)
    if spec.root_mib is not None:
        raise Conflict(
            f"VM {spec.name}: machines of kind {spec.driver} have their root in memory, and it has no size of its own",
            hint="give it memory, or a volume",
        )
    return Volume(VolumeFormat.MEMORY, 0, type=VolumeType.MEMORY)


def _as_asked(specs: Sequence[VolumeSpec]) -> list[Volume]:
    """What they count for, wherever they come to be."""
    return [Volume(spec.format, spec.size_mib, spec.name or "", spec.fs, spec.type) for spec in specs]


def check_disks(vm: VM, kinds: Collection[str]) -> None:
    """Refuse volumes for a kind of machine that has no disks."""
    if len(vm.volumes) > 1 and vm.driver not in kinds:
        raise Conflict(
            f"VM {vm.name}: machines of kind {vm.driver} take no volumes",
            hint=f"these do: {', '.join(sorted(kinds)) or 'none on this node'}",
        )


def check_screen(vm: VM, kinds: Collection[str]) -> None:
    """Refuse a screen for a kind of machine that has none."""
    if vm.console is ConsoleKind.VNC and vm.driver not in kinds:
        raise Conflict(
            f"VM {vm.name}: machines of kind {vm.driver} have no screen",
            hint=f"these do: {', '.join(sorted(kinds)) or 'none on this node'}; others have a serial console",
        )


def check_hardware(vm: VM, kinds: Collection[str]) -> None:
    """Refuse what a kind of machine without a kernel and devices of its own cannot have."""
    asked = {
        "kernel options": bool(vm.kernel_options),
        f"watchdog {vm.watchdog}": vm.watchdog is not Watchdog.NONE,
        f"netboot {vm.netboot}": vm.netboot is not Netboot.NEVER,
    }
    for what, is_asked in asked.items():
        if is_asked and vm.driver not in kinds:
            raise Conflict(
                f"VM {vm.name}: {what}: machines of kind {vm.driver} have the kernel of their host",
                hint=f"these have one of their own: {', '.join(sorted(kinds)) or 'none on this node'}",
            )


def check_shares(vm: VM, asked: Sequence[ShareMount], identity: Identity, room: Room, doing: str) -> None:
    """Refuse folders that its kind or its node has not, or that are not for the caller."""
    shares.check_kind(vm, room.share_kinds)
    for mount in asked:
        operates = room.operators.include(identity)
        shares.check_mount(mount, room.shares, identity, doing, operates=operates)


def check_expiry(expires_at: datetime | None, now: datetime) -> datetime | None:
    if expires_at is not None and expires_at <= now:
        raise Invalid(
            "expires_at", f"{expires_at:%Y-%m-%d %H:%M:%SZ}", "has passed", hint="name a later moment"
        )
    return expires_at


def _check_image(spec: VmSpec, image: Image) -> None:
    if spec.driver not in image.kinds:
        raise Conflict(
            f"image {image.name}: is not for driver {spec.driver}",
            hint=f"it suits: {', '.join(image.kinds)}",
        )
    check_memory(spec.memory_mib, image)


def check_memory(memory_mib: int, image: Image) -> None:
    if memory_mib < image.min_memory_mib:
        raise Invalid(
            "memory_mib",
            memory_mib,
            f"is less than image {image.name} needs",
            hint=f"give it {image.min_memory_mib}MiB",
        )


def _nics(spec: VmSpec, identity: Identity, room: Room) -> list[VmNic]:
    """An address in each of its subnets; the first subnet is one that it has no other interface in."""
    for named in filter(None, (spec.subnet, *spec.extra_subnets)):
        check_subnet(identity, room.given.subnet(named), room.operators)
    allowed = [subnet.id for subnet in room.given.subnets if _may_use(identity, subnet, room.operators)]
    if spec.subnet is not None:
        check_gives_key(room.given.subnet(spec.subnet))
    private = [subnet.id for subnet in room.given.subnets if subnet.private]
    left = [subnet for subnet in allowed if subnet not in (*spec.extra_subnets, *private)]
    if allowed and not left:
        raise PoolEmpty(
            f"creating a VM on {room.node}: no subnet is left for its first interface",
            hint="name fewer extra subnets",
        )
    free = free_addresses(room.given, room.held, room.freed)
    nics: list[VmNic] = []
    for wanted in (spec.subnet, *spec.extra_subnets):
        # Where subnets overlap, a guest could not tell two interfaces with one address or MAC apart.
        own = {mark for nic in nics for mark in nic.marks}
        apart = {
            subnet: tuple(one for one in some if own.isdisjoint((one.ip, one.mac)))
            for subnet, some in free.items()
        }
        nics.append(nic_of(*choose(room.given, apart, wanted, left, room.node)))
    return nics


def _may_use(identity: Identity, subnet: Subnet, operators: Operators) -> bool:
    try:
        check_subnet(identity, subnet, operators)
    except Denied:
        return False
    return True
