"""The VM that a request makes: every check there is, then the VM as it will be. Pure; service.py makes it."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from datetime import datetime

from msgspec import Struct

from atoll.api.hypervisor import CreateVm
from atoll.errors import Conflict, Denied, Invalid
from atoll.identity.access import Operators, check_owners_given, check_subnet
from atoll.model.identity import Identity
from atoll.model.image import Image
from atoll.model.network import Address, Subnet
from atoll.model.node import Capacity
from atoll.model.vm import VM, VmSpec, VmState, vcpus_for
from atoll.model.volume import Volume, VolumeFormat
from atoll.plan import capacity
from atoll.plan.addresses import Given, choose, free_addresses


class Room(Struct, frozen=True):
    """What a node has at this moment."""

    node: str
    operators: Operators
    total: Capacity
    vms: tuple[VM, ...]
    given: Given
    held: Collection[str]
    """Addresses that are in use."""
    freed: dict[str, int]
    """When addresses were given back, as a count: the later the larger."""


def plan_vm(
    request: CreateVm, identity: Identity, image: Image, room: Room, *, now: datetime, instance_id: str
) -> VM:
    """The VM; or NotFound, Conflict, Invalid, Denied, PoolEmpty, NoCapacity."""
    spec = request.spec
    _check_image(spec, image)
    if any(vm.name == spec.name for vm in room.vms):
        raise Conflict(
            f"VM {spec.name}: there is one of this name", hint="choose another name, or destroy it first"
        )
    check_owners_given(identity, spec.owner_users, room.operators)
    subnet, address = _address(spec, identity, room)
    vm = VM(
        ip=address.ip,
        mac=address.mac,
        name=spec.name,
        state=VmState.STARTING,
        driver=spec.driver,
        image=spec.image,
        image_digest=image.digest,
        memory_mib=spec.memory_mib,
        milli_cpus=spec.milli_cpus,
        vcpus=vcpus_for(spec.milli_cpus, room.total.milli_cpus // 1000),
        machine_type=spec.machine_type,
        subnet=subnet.id,
        owner_users=spec.owner_users or (identity.user,),
        owner_groups=spec.owner_groups,
        tags=spec.tags,
        created_at=now,
        instance_id=instance_id,
        ready={},
        volumes=(Volume(VolumeFormat.MEMORY, 0),),
        user_data_sha256=hashlib.sha256(request.user_data).hexdigest() if request.user_data else "",
        request_id=request.request_id or "",
    )
    capacity.check_fits(capacity.demand(vm), capacity.free(room.total, room.vms), room.node)
    return vm


def _check_image(spec: VmSpec, image: Image) -> None:
    if spec.driver not in image.kinds:
        raise Conflict(
            f"image {image.name}: is not for driver {spec.driver}",
            hint=f"it suits: {', '.join(image.kinds)}",
        )
    if spec.memory_mib < image.min_memory_mib:
        raise Invalid(
            "memory_mib",
            spec.memory_mib,
            f"is less than image {image.name} needs",
            hint=f"give it {image.min_memory_mib}MiB",
        )


def _address(spec: VmSpec, identity: Identity, room: Room) -> tuple[Subnet, Address]:
    if spec.subnet is not None:
        check_subnet(identity, room.given.subnet(spec.subnet), room.operators)
    allowed = [subnet.id for subnet in room.given.subnets if _may_use(identity, subnet, room.operators)]
    free = free_addresses(room.given, room.held, room.freed)
    return choose(room.given, free, spec.subnet, allowed, room.node)


def _may_use(identity: Identity, subnet: Subnet, operators: Operators) -> bool:
    try:
        check_subnet(identity, subnet, operators)
    except Denied:
        return False
    return True
