"""What a create comes to where its kind keeps the root on the node's disk."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec import structs

from atoll.api.hypervisor import CreateVm
from atoll.api.replay import as_request
from atoll.errors import Conflict, Invalid, NoCapacity
from atoll.hypervisor.vms.creation import Room, plan_vm
from atoll.identity.access import Operators
from atoll.model.identity import Identity
from atoll.model.image import DirectBoot, Image
from atoll.model.network import Address, Subnet, mac_for
from atoll.model.node import Capacity
from atoll.model.vm import VM, VmSpec
from atoll.model.volume import StoreInfo
from atoll.plan.addresses import Given
from atoll.plan.capacity import demand
from atoll.plan.volumes import ROOTS, Space, store_infos

IMAGE = Image("appliance", ("qemu", "lxc"), DirectBoot("k", "i"), "d1")
SUBNET = Subnet(id="blue", cidr="10.1.0.0/24", gateway="10.1.0.1")
SPACES = (Space("fast", 1, 4096), Space(ROOTS, 2, 2048))
ROOM = Room(
    node="n1",
    operators=Operators(),
    total=Capacity(2000, 4096, 6144),
    vms=(),
    given=Given().add_subnet(SUBNET).add_addresses("blue", [Address("10.1.0.5", mac_for("10.1.0.5"))]),
    held=(),
    freed={},
    root_kinds=frozenset({"lxc"}),
    root_mib=512,
    spaces=SPACES,
)


def plan(driver: str, room: Room = ROOM, **asked: Any) -> VM:
    request = CreateVm(VmSpec(name="web", image="appliance", driver=driver, **asked))
    now = datetime(2026, 1, 1, tzinfo=UTC)
    return plan_vm(request, Identity("ann"), IMAGE, room, now=now, instance_id="i-1")


def test_a_root_has_the_size_that_was_asked_for_or_that_of_the_node_and_counts_as_disk() -> None:
    asked, left_out = plan("lxc", root_mib=64), plan("lxc")
    assert (asked.root_mib, left_out.root_mib) == (64, 512)
    assert (demand(asked).disk_mib, demand(left_out).disk_mib) == (64, 512)
    assert as_request(asked, b"").spec.root_mib == 64


def test_a_root_in_memory_has_no_size_of_its_own() -> None:
    assert plan("qemu").root_mib is None
    assert demand(plan("qemu")).disk_mib == 0
    with pytest.raises(Conflict, match="have their root in memory"):
        plan("qemu", root_mib=64)


def test_roots_are_promised_no_more_than_there_is_where_they_are_kept() -> None:
    assert plan("lxc", root_mib=2048).root_mib == 2048
    with pytest.raises(NoCapacity, match="where roots are kept, 2 GiB are left"):
        plan("lxc", root_mib=2049)
    full = structs.replace(ROOM, vms=(structs.replace(plan("lxc", root_mib=2000), name="other"),))
    with pytest.raises(NoCapacity, match="48 MiB are left"):
        plan("lxc", full, root_mib=64)


def test_the_place_of_roots_is_no_store() -> None:
    volumes = plan("lxc").volumes
    assert store_infos(SPACES, volumes) == (StoreInfo("fast", 4096, 4096),)


@pytest.mark.parametrize("size", [0, 15, -1])
def test_a_root_that_holds_nothing_is_refused(size: int) -> None:
    with pytest.raises(Invalid, match="root_mib"):
        plan("lxc", root_mib=size)
