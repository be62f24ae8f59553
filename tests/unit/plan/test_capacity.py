from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from atoll.errors import Invalid, NoCapacity
from atoll.model.lifecycle import HELD
from atoll.model.node import Capacity, Overcommit
from atoll.model.vm import VM, ConsoleKind, MachineType, Running, SuspendTo, Suspension, VmState
from atoll.model.volume import Volume, VolumeFormat, VolumeType
from atoll.plan.capacity import Promised, at_most, check_fits, check_grows, demand, free, overcommitted
from samples import a_vm

AMOUNTS = st.integers(0, 1 << 20)
CAPACITIES = st.builds(Capacity, AMOUNTS, AMOUNTS, AMOUNTS)


def vm(
    milli_cpus: int = 250, memory_mib: int = 128, disk_mib: int = 0, state: VmState = VmState.RUNNING
) -> VM:
    return a_vm(
        state=state,
        memory_mib=memory_mib,
        milli_cpus=milli_cpus,
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
        check_fits(wanted, left, "creating a VM on n1")
    else:
        with pytest.raises(NoCapacity, match="creating a VM on n1: not enough left"):
            check_fits(wanted, left, "creating a VM on n1")


def test_what_is_short_is_named_with_what_is_free():
    with pytest.raises(NoCapacity) as refusal:
        check_fits(Capacity(500, 4096, 0), Capacity(1500, 1000, 0), "creating a VM on n1")
    assert refusal.value.brief.endswith("not enough left: memory 4 GiB of 1000 MiB free")
    assert refusal.value.details["free"]["memory_mib"] == 1000


def test_a_node_that_gave_more_than_it_has_shows_nothing_free():
    with pytest.raises(NoCapacity, match=r"cpus 0\.5 of 0 free"):
        check_fits(Capacity(500, 0, 0), Capacity(-250, 0, 0), "creating a VM on n1")


def test_a_volume_in_memory_counts_as_memory_and_a_machine_as_what_it_has():
    ram = Volume(VolumeFormat.RAW, 8, "scratch", type=VolumeType.MEMORY)
    one = structs.replace(vm(250, 128, 10), volumes=(Volume(VolumeFormat.RAW, 10, "data"), ram))
    assert demand(one) == Capacity(250, 136, 10)
    still = Running(512, 1, MachineType.AUTO, ConsoleKind.SERIAL, ())
    assert demand(structs.replace(one, running=still)).memory_mib == 520


def test_a_change_that_asks_for_no_more_fits_on_a_node_that_is_too_full():
    full = Capacity(100, 100, 0)
    check_grows(vm(250, 64), vm(250, 128), Promised(full), [vm(250, 128)], "changing")
    with pytest.raises(NoCapacity, match="changing: not enough left: memory 1 MiB of 0 MiB free"):
        check_grows(vm(250, 129), vm(250, 128), Promised(full), [vm(250, 128)], "changing")


def test_more_than_there_is_is_promised_only_where_that_is_allowed():
    assert overcommitted(Capacity(2000, 1000, 50), Overcommit()) == Capacity(2000, 1000, 50)
    assert overcommitted(Capacity(2000, 1000, 50), Overcommit(cpus=4, memory=1.5)) == Capacity(8000, 1500, 50)
    assert overcommitted(Capacity(2000, -5, 0), Overcommit()).memory_mib == 0
    for ratio in (0.5, 65, float("nan")):
        with pytest.raises(Invalid, match="overcommit cpus"):
            Overcommit(cpus=ratio)


def test_a_refusal_for_cpus_names_the_over_commit_and_how_much_of_it_would_do():
    promised = Promised(Capacity(3000, 1000, 0), Overcommit(cpus=1.5))
    with pytest.raises(NoCapacity) as caught:
        check_fits(Capacity(1500, 0, 0), Capacity(250, 0, 0), "creating a VM on n1", promised)
    assert "CPUs may be promised 1.5 times" in caught.value.hint
    assert caught.value.hint.endswith("atoll node change --cpu-overcommit 2.2")
    assert "stopped count too" in caught.value.hint


@given(st.integers(1, 64_000), st.integers(0, 64_000), st.sampled_from([1.0, 1.5, 4.0]), st.integers(1, 8))
def test_the_over_commit_that_a_refusal_names_is_enough(asked: int, used: int, ratio: float, cores: int):
    there = Capacity(cores * 1000, 1000, 0)
    total = overcommitted(there, Overcommit(cpus=ratio))
    left = Capacity(total.milli_cpus - used, 1000, 0)
    try:
        check_fits(Capacity(asked, 0, 0), left, "creating", Promised(total, Overcommit(cpus=ratio)))
    except NoCapacity as refusal:
        if "--cpu-overcommit " in refusal.hint:
            named = float(refusal.hint.rpartition(" ")[2])
            after = overcommitted(there, Overcommit(cpus=named))
            check_fits(Capacity(asked, 0, 0), Capacity(after.milli_cpus - used, 0, 0), "creating")


def test_a_vm_whose_owners_change_counts_for_all_of_them_meanwhile():
    now, coming = a_vm(owner_users=("ann",), owner_groups=("web",)), a_vm(owner_users=("bob",))
    both = at_most(now, coming)
    assert set(both.owner_users) == {"ann", "bob"}
    assert both.owner_groups == ("web",)


@given(st.sampled_from(SuspendTo), st.sampled_from(HELD), st.integers(1, 4096))
def test_only_what_is_on_disk_for_good_frees_memory_and_cpus(to: SuspendTo, state: VmState, disk_mib: int):
    held = structs.replace(
        vm(disk_mib=8, state=state),
        suspended=Suspension(to, datetime(2024, 1, 1, tzinfo=UTC), disk_mib if to is SuspendTo.DISK else 0),
    )
    before, now = demand(vm(disk_mib=8)), demand(held)
    if to is SuspendTo.DISK and state is VmState.SUSPENDED:
        assert now == Capacity(0, 0, 8 + disk_mib)
    else:
        assert (now.milli_cpus, now.memory_mib) == (before.milli_cpus, before.memory_mib)
        assert now.disk_mib == 8 + (disk_mib if to is SuspendTo.DISK else 0)
