from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from atoll.api.hypervisor import CreateVm
from atoll.api.replay import as_request
from atoll.hypervisor.vms.creation import Room, plan_vm
from atoll.identity.access import Operators
from atoll.model.identity import Identity
from atoll.model.image import DirectBoot, Image
from atoll.model.network import Address, Subnet, mac_for
from atoll.model.node import Capacity
from atoll.model.vm import VM, MachineType, RestartPolicy, VmSpec
from atoll.model.volume import FileSystem, VolumeFormat, VolumeSpec, VolumeType
from atoll.plan.addresses import Given
from atoll.plan.volumes import Space

SPEC = VmSpec(
    name="web",
    image="appliance",
    driver="sim",
    memory_mib=256,
    milli_cpus=1500,
    machine_type=MachineType.Q35,
    subnet="lan",
    extra_subnets=("dmz",),
    tags={"a": "b"},
    owner_users=("ann", "bob"),
    owner_groups=("dev",),
    restart=RestartPolicy.ON_CRASH,
    protected=True,
    imdsv2_required=True,
    destroy_on_power_down=True,
    expires_at=datetime(2030, 1, 1, tzinfo=UTC),
    volumes=(
        VolumeSpec(64, "data", VolumeFormat.QCOW2, FileSystem.EXT4, store="fast"),
        VolumeSpec(8, "scratch", type=VolumeType.MEMORY),
    ),
)
ROOM = Room(
    node="n1",
    operators=Operators(),
    total=Capacity(4000, 1024, 1024),
    vms=(),
    given=Given()
    .add_subnet(Subnet("lan", "10.1.0.0/24", "10.1.0.1"))
    .add_addresses("lan", [Address("10.1.0.5", mac_for("10.1.0.5"))])
    .add_subnet(Subnet("dmz", "10.2.0.0/24", "10.2.0.1"))
    .add_addresses("dmz", [Address("10.2.0.5", mac_for("10.2.0.5"))]),
    held=(),
    freed={},
    spaces=(Space("fast", 1, 1024),),
    disk_kinds=frozenset({"sim"}),
)


def made(request: CreateVm) -> VM:
    image = Image("appliance", ("sim",), DirectBoot("k", "i"), digest="d")
    now = datetime(2024, 1, 1, tzinfo=UTC)
    return plan_vm(request, Identity("ann"), image, ROOM, now=now, instance_id="i")


def test_every_input_of_a_create_can_be_read_back_from_the_vm():
    assert all(hasattr(VM, name) for name in VmSpec.__struct_fields__)


def test_the_request_of_a_vm_is_the_one_that_made_it():
    asked = CreateVm(SPEC, b"#!/bin/sh")
    assert as_request(made(asked), b"#!/bin/sh") == asked


def test_the_request_of_a_vm_makes_the_same_vm_again_after_a_trip_through_json():
    vm = made(CreateVm(SPEC, b"\x00\xff"))
    text = msgspec.json.encode(as_request(vm, b"\x00\xff"))
    assert made(msgspec.json.decode(text, type=CreateVm)) == vm
