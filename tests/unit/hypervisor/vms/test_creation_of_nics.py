"""VMs with more than one interface: which addresses they get, and who may have them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec import structs

from atoll.api.hypervisor import CreateVm
from atoll.errors import AtollError, Denied, Invalid, NotFound, PoolEmpty
from atoll.hypervisor.vms.creation import Room, plan_vm
from atoll.identity.access import Operators
from atoll.model.identity import Identity
from atoll.model.image import DirectBoot, Image
from atoll.model.network import Address, Subnet, mac_for
from atoll.model.node import Capacity
from atoll.model.vm import MAX_EXTRA_SUBNETS, VM, VmNic, VmSpec
from atoll.plan.addresses import Given

ANN, BOB = Identity("ann"), Identity("bob")
IMAGE = Image("tiny", ("sim",), DirectBoot("k", "i"), digest="d1")
LAN = Subnet("lan", "10.1.0.0/24", "10.1.0.1")
STORAGE = Subnet("storage", "10.2.0.0/24", "10.2.0.1", cidr6="fd00:2::/64", gateway6="fd00:2::1")
PRIVATE = Subnet("private", "10.3.0.0/24", "10.3.0.1", allowed_users=("bob",))


def address(ip: str) -> Address:
    return Address(ip, mac_for(ip))


ROOM = Room(
    node="n1",
    operators=Operators(),
    total=Capacity(milli_cpus=2000, memory_mib=1024, disk_mib=0),
    vms=(),
    given=Given()
    .add_subnet(LAN)
    .add_subnet(STORAGE)
    .add_subnet(PRIVATE)
    .add_addresses("lan", [address("10.1.0.5"), address("10.1.0.6")])
    .add_addresses("storage", [address("10.2.0.5")])
    .add_addresses("private", [address("10.3.0.5")]),
    held=(),
    freed={},
)


def planned(identity: Identity = ANN, room: Room = ROOM, **spec: Any) -> VM:
    request = CreateVm(VmSpec(**{"name": "web", "image": "tiny", "driver": "sim", **spec}))
    now = datetime(2024, 1, 1, tzinfo=UTC)
    return plan_vm(request, identity, IMAGE, room, now=now, instance_id="i-1")


def test_a_vm_has_an_address_in_each_of_its_subnets_in_the_order_asked_for():
    vm = planned(BOB, extra_subnets=("private", "storage"))
    assert (vm.ip, vm.subnet, vm.ip6) == ("10.1.0.5", "lan", "")
    ip6 = STORAGE.ip6_of(mac_for("10.2.0.5"))
    assert vm.nics == (
        VmNic("10.3.0.5", mac_for("10.3.0.5"), "private"),
        VmNic("10.2.0.5", mac_for("10.2.0.5"), "storage", ip6),
    )
    assert [nic.ip for nic in vm.all_nics] == ["10.1.0.5", "10.3.0.5", "10.2.0.5"]


def test_the_first_subnet_is_one_that_the_others_are_not():
    assert planned(extra_subnets=("lan",)).subnet == "storage"
    assert planned(extra_subnets=("lan",)).extra_subnets == ("lan",)


@pytest.mark.parametrize(
    ("spec", "kind", "why"),
    [
        ({"extra_subnets": ("private",)}, Denied, "private"),
        ({"extra_subnets": ("nowhere",)}, NotFound, "'nowhere': not on this node"),
        ({"extra_subnets": ("lan", "storage")}, PoolEmpty, "no subnet is left for its first interface"),
        ({"subnet": "lan", "extra_subnets": ("lan",)}, Invalid, "named twice"),
        ({"extra_subnets": ("storage", "storage")}, Invalid, "named twice"),
        ({"extra_subnets": ("Storage",)}, Invalid, "extra_subnets"),
        (
            {"extra_subnets": tuple(f"s{n}" for n in range(MAX_EXTRA_SUBNETS + 1))},
            Invalid,
            "8 subnets.*must be at most 7",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(spec: dict[str, Any], kind: type[AtollError], why: str):
    with pytest.raises(kind, match=why):
        planned(**spec)


@pytest.mark.parametrize("held", ["storage 10.2.0.5", "lan 10.1.0.5 lan 10.1.0.6"])
def test_a_vm_gets_all_of_its_addresses_or_is_refused(held: str):
    with pytest.raises(PoolEmpty, match="no free address in subnet (lan|storage)"):
        words = held.split()
        room = structs.replace(ROOM, held=set(zip(words[::2], words[1::2], strict=True)))
        planned(room=room, subnet="lan", extra_subnets=("storage",))
