from __future__ import annotations

import hashlib
from datetime import UTC, datetime

import pytest
from msgspec import structs

from atoll.api.hypervisor import CreateVm
from atoll.errors import AtollError, Conflict, Denied, Invalid, NoCapacity, NotFound, PoolEmpty
from atoll.hypervisor.vms.creation import Room, plan_vm
from atoll.identity.access import Operators
from atoll.model.identity import Identity
from atoll.model.image import DirectBoot, Image
from atoll.model.network import Address, Subnet, mac_for
from atoll.model.node import Capacity
from atoll.model.vm import VM, VmSpec, VmState
from atoll.plan.addresses import Given

ANN = Identity("ann", groups=frozenset({"dev"}))
OPERATOR = Identity("oper")
IMAGE = Image("appliance", ("sim", "qemu"), DirectBoot("k", "i"), digest="d1", min_memory_mib=64)
LAN = Subnet("lan", "10.1.0.0/24", "10.1.0.1")
PRIVATE = Subnet("private", "10.2.0.0/24", "10.2.0.1", allowed_users=("bob",))
GIVEN = (
    Given()
    .add_subnet(PRIVATE)
    .add_subnet(LAN)
    .add_addresses("private", [Address("10.2.0.5", mac_for("10.2.0.5"))])
    .add_addresses("lan", [Address(f"10.1.0.{n}", mac_for(f"10.1.0.{n}")) for n in (5, 6)])
)
ROOM = Room(
    node="n1",
    operators=Operators(users=("oper",)),
    total=Capacity(milli_cpus=2000, memory_mib=1024, disk_mib=0),
    vms=(),
    given=GIVEN,
    held=(),
    freed={},
)


def planned(identity: Identity = ANN, room: Room = ROOM, image: Image = IMAGE, **spec: object) -> VM:
    request = CreateVm(
        VmSpec(**{"name": "web", "image": "appliance", "driver": "sim", **spec}), b"#!/bin/sh\n"
    )
    now = datetime(2024, 1, 1, tzinfo=UTC)
    return plan_vm(request, identity, image, room, now=now, instance_id="i-1")


def test_every_input_can_be_read_back():
    vm = planned(memory_mib=256, milli_cpus=1500, tags={"role": "web"}, owner_groups=("dev",), subnet="lan")
    assert (vm.name, vm.image, vm.driver, vm.subnet) == ("web", "appliance", "sim", "lan")
    assert (vm.memory_mib, vm.milli_cpus, vm.vcpus) == (256, 1500, 2)
    assert (vm.tags, vm.owner_users, vm.owner_groups) == ({"role": "web"}, ("ann",), ("dev",))
    assert (vm.ip, vm.mac, vm.instance_id, vm.image_digest) == ("10.1.0.5", mac_for("10.1.0.5"), "i-1", "d1")
    assert vm.user_data_sha256 == hashlib.sha256(b"#!/bin/sh\n").hexdigest()
    assert vm.state is VmState.STARTING


def test_the_next_vm_gets_the_next_address():
    first = planned()
    second = planned(name="web2", room=structs.replace(ROOM, vms=(first,), held={("lan", first.ip)}))
    assert (first.ip, second.ip) == ("10.1.0.5", "10.1.0.6")


def test_a_subnet_that_is_for_others_is_passed_over_and_can_be_asked_for_by_them():
    assert planned().subnet == "lan"
    assert planned(Identity("bob")).subnet == "private"
    assert planned(OPERATOR, subnet="private").subnet == "private"


FULL = structs.replace(ROOM, held={("lan", "10.1.0.5"), ("lan", "10.1.0.6")})
TAKEN = structs.replace(ROOM, vms=(planned(),), held={("lan", "10.1.0.5")})


@pytest.mark.parametrize(
    ("error", "says", "wishes"),
    [
        (Conflict, "is not for driver docker", {"driver": "docker"}),
        (Invalid, "memory_mib 32: is less than image appliance needs", {"memory_mib": 32}),
        (Conflict, "VM web: there is one of this name", {"room": TAKEN}),
        (Denied, "ann may not create a VM for bob alone", {"owner_users": ("bob",)}),
        (NotFound, "subnet 'wan': not on this node", {"subnet": "wan"}),
        (Denied, "ann may not use subnet private", {"subnet": "private"}),
        (PoolEmpty, "creating a VM on n1: no free address in subnet lan", {"room": FULL}),
        (PoolEmpty, "no subnet that you may use", {"room": structs.replace(ROOM, given=Given())}),
        (NoCapacity, "memory 2 GiB of 1 GiB free", {"memory_mib": 2048}),
        (NoCapacity, "cpus 2.5 of 2 free", {"milli_cpus": 2500}),
    ],
)
def test_what_cannot_be_made_is_refused_with_the_reason(
    error: type[AtollError], says: str, wishes: dict[str, object]
):
    with pytest.raises(error) as refusal:
        planned(**wishes)
    assert type(refusal.value) is error
    assert says in refusal.value.brief


def test_an_operator_may_make_a_vm_for_somebody_else():
    assert planned(OPERATOR, owner_users=("bob",)).owner_users == ("bob",)


def test_what_is_denied_is_not_told_whether_there_is_room():
    with pytest.raises(Denied):
        planned(subnet="private", room=structs.replace(ROOM, held={("private", "10.2.0.5")}))
