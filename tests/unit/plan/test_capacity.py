from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import NoCapacity
from atoll.model.node import Capacity
from atoll.model.vm import VM, MachineType, VmState
from atoll.model.volume import Volume, VolumeFormat
from atoll.plan.capacity import check_fits, demand, free

AMOUNTS = st.integers(0, 1 << 20)
CAPACITIES = st.builds(Capacity, AMOUNTS, AMOUNTS, AMOUNTS)


def vm(
    milli_cpus: int = 250, memory_mib: int = 128, disk_mib: int = 0, state: VmState = VmState.RUNNING
) -> VM:
    return VM(
        ip="10.1.0.5",
        mac="52:54:0a:01:00:05",
        name="web",
        state=state,
        driver="sim",
        image="appliance",
        image_digest="00",
        memory_mib=memory_mib,
        milli_cpus=milli_cpus,
        vcpus=1,
        machine_type=MachineType.AUTO,
        subnet="lan",
        owner_users=("ann",),
        owner_groups=(),
        tags={},
        created_at=datetime(2024, 1, 1, tzinfo=UTC),
        instance_id="i",
        ready={},
        volumes=(Volume(VolumeFormat.RAW, disk_mib),),
    )


@pytest.mark.parametrize("state", VmState)
def test_a_vm_counts_in_every_state(state: VmState):
    assert demand(vm(250, 128, 10, state)) == Capacity(250, 128, 10)


@given(
    CAPACITIES, st.lists(st.builds(vm, st.integers(1, 9), st.integers(16, 99), st.integers(0, 9)), max_size=5)
)
def test_what_is_free_and_what_is_used_make_the_whole(total: Capacity, vms: list[VM]):
    left = free(total, vms)
    for name in ("milli_cpus", "memory_mib", "disk_mib"):
        assert getattr(left, name) + sum(getattr(demand(one), name) for one in vms) == getattr(total, name)


@given(CAPACITIES, CAPACITIES)
def test_it_fits_just_when_there_is_enough_of_everything(wanted: Capacity, left: Capacity):
    pairs = [
        (getattr(wanted, name), getattr(left, name)) for name in ("milli_cpus", "memory_mib", "disk_mib")
    ]
    if all(asked <= there for asked, there in pairs):
        check_fits(wanted, left, "n1")
    else:
        with pytest.raises(NoCapacity, match="creating a VM on n1: not enough left"):
            check_fits(wanted, left, "n1")


def test_what_is_short_is_named_with_what_is_free():
    with pytest.raises(NoCapacity) as refusal:
        check_fits(Capacity(500, 4096, 0), Capacity(1500, 1000, 0), "n1")
    assert refusal.value.brief.endswith("not enough left: memory 4 GiB of 1000 MiB free")
    assert refusal.value.details["free"]["memory_mib"] == 1000


def test_a_node_that_gave_more_than_it_has_shows_nothing_free():
    with pytest.raises(NoCapacity, match=r"cpus 0\.5 of 0 free"):
        check_fits(Capacity(500, 0, 0), Capacity(-250, 0, 0), "n1")
