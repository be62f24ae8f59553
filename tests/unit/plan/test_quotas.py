from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from atoll.errors import Conflict, Invalid, NoCapacity, OverQuota
from atoll.model.quota import (
    MAX_QUOTAS,
    Amounts,
    Holder,
    HolderKind,
    Limits,
    Quota,
    Quotas,
    Resource,
    check_holder,
)
from atoll.model.vm import VM, VmNic, VmState
from atoll.model.volume import Volume, VolumeFormat
from atoll.plan.capacity import at_most
from atoll.plan.quotas import (
    all_uses,
    check_within,
    demand,
    holders,
    limits_of,
    use_of,
    used_by,
    used_by_all,
    with_limits,
    without_limits,
)
from samples import a_vm

ANN, BOB = Holder(HolderKind.USER, "ann"), Holder(HolderKind.USER, "bob")
WEB, DEFAULT = Holder(HolderKind.GROUP, "web"), Holder(HolderKind.DEFAULT)
OPERATORS = "root, group ops"


def vm(number: int = 5, disk_mib: int = 0, **fields) -> VM:
    volumes = (
        Volume(VolumeFormat.RAW, 0),
        *([Volume(VolumeFormat.RAW, disk_mib, "d", store="s")] if disk_mib else []),
    )
    return a_vm(f"10.1.0.{number}", instance_id=f"i{number}", volumes=volumes, **fields)


def check(new: VM, quotas: Quotas, *others: VM, old: VM | None = None) -> None:
    there = others if old is None else (*others, old)
    check_within(new, old, quotas, there, "creating a VM on n1", OPERATORS)


def own(holder: Holder, **limits: int) -> Quotas:
    return with_limits(Quotas(), holder, Limits(**limits))


# --- what counts, and for whom


@pytest.mark.parametrize("state", VmState)
def test_a_vm_counts_for_the_same_in_every_state(state: VmState):
    nic = VmNic("blue", "10.2.0.5", "52:54:0a:02:00:05")
    one = vm(disk_mib=64, state=state, nics=(nic,))
    assert demand(one) == Amounts(1, 250, 128, 64, 2)


def test_a_vm_counts_for_each_of_its_owners():
    one = vm(owner_users=("ann", "bob", "ann"), owner_groups=("web", "db"))
    assert holders(one) == (ANN, BOB, WEB, Holder(HolderKind.GROUP, "db"))
    used = used_by_all([one, vm(6)])
    assert (used[ANN].vms, used[BOB].vms, used[WEB].memory_mib) == (2, 1, 128)


def test_the_default_is_for_users_who_have_none_of_their_own():
    quotas = Quotas(users=(Quota("bob", Limits(vms=9)),), default=Limits(vms=1))
    assert limits_of(ANN, quotas) == (Limits(vms=1), True)
    assert limits_of(BOB, quotas) == (Limits(vms=9), False)
    assert limits_of(WEB, quotas) == (None, False)
    with pytest.raises(OverQuota, match="over the default quota of user ann"):
        check(vm(6), quotas, vm(5))
    check(vm(6, owner_users=("bob",)), quotas, vm(5, owner_users=("bob",)))


def test_a_refusal_says_which_how_much_what_was_asked_and_who_can_raise_it():
    with pytest.raises(OverQuota) as caught:
        check(vm(6, memory_mib=512), own(ANN, vms=1, memory_mib=600, milli_cpus=9000), vm(5))
    refusal = caught.value
    assert refusal.brief == (
        "creating a VM on n1: over the quota of user ann: vms 1 of 1 used and 1 more asked for,"
        " memory 128 MiB of 600 MiB used and 512 MiB more asked for"
    )
    assert "operators (root, group ops) can raise it" in refusal.hint
    assert "atoll quota set --user ann --vms 2 --memory 640MiB" in refusal.hint
    assert "stopped count too" in refusal.hint
    assert refusal.details["over"][0] == {"resource": "vms", "limit": 1, "used": 1, "asked": 1}
    assert isinstance(refusal, NoCapacity)
    assert (refusal.code, refusal.exit_status) == ("over_quota", 6)


def test_any_of_several_owners_can_be_the_one_whose_quota_is_full():
    both = vm(6, owner_users=("bob", "ann"), owner_groups=("web",))
    with pytest.raises(OverQuota, match="quota of user ann"):
        check(both, own(ANN, vms=1), vm(5))
    with pytest.raises(OverQuota, match="quota of group web"):
        check(both, own(WEB, vms=0))


def test_a_change_that_asks_for_no_more_passes_also_where_more_is_used_than_the_quota():
    old = vm(memory_mib=512)
    check(structs.replace(old, memory_mib=256), own(ANN, memory_mib=100), old=old)
    check(structs.replace(old, tags={"a": "b"}), own(ANN, vms=0), old=old)
    with pytest.raises(OverQuota):
        check(structs.replace(old, memory_mib=513), own(ANN, memory_mib=100), old=old)


def test_who_becomes_an_owner_needs_quota_for_the_whole_of_it():
    old = vm(owner_users=("ann",))
    given = structs.replace(old, owner_users=("ann", "bob"))
    check(given, own(BOB, vms=1, memory_mib=128), old=old)
    with pytest.raises(OverQuota, match="quota of user bob: memory 0 MiB of 127 MiB used and 128 MiB more"):
        check(given, own(BOB, vms=1, memory_mib=127), old=old)


# --- whatever the order

SMALL = st.integers(0, 3)
LIMITS = st.builds(
    Limits,
    vms=st.none() | SMALL,
    milli_cpus=st.none() | st.integers(0, 1500),
    memory_mib=st.none() | st.integers(0, 500),
    disk_mib=st.none() | st.integers(0, 100),
    addresses=st.none() | st.integers(0, 5),
)
QUOTAS = st.builds(
    Quotas,
    users=LIMITS.map(lambda limits: (Quota("ann", limits),)),
    groups=LIMITS.map(lambda limits: (Quota("web", limits),)),
    default=st.none() | LIMITS,
)
NICS = st.integers(0, 2).map(
    lambda count: tuple(
        VmNic(f"s{index}", f"10.{index}.0.9", f"52:54:00:00:00:0{index}") for index in range(count)
    )
)
CONTENT = st.fixed_dictionaries(
    {
        "memory_mib": st.sampled_from([32, 128, 256]),
        "milli_cpus": st.sampled_from([100, 500]),
        "owner_users": st.sampled_from([("ann",), ("bob",), ("ann", "bob"), ()]),
        "owner_groups": st.sampled_from([(), ("web",), ("web", "db")]),
        "disk_mib": st.sampled_from([0, 16, 64]),
        "nics": NICS,
        "state": st.sampled_from([VmState.RUNNING, VmState.STOPPED]),
    }
)
DEEDS = st.lists(
    st.tuples(st.sampled_from(["create", "change", "destroy", "fails"]), SMALL, CONTENT), max_size=25
)


@given(QUOTAS, DEEDS)
def test_no_order_of_creates_changes_and_destroys_passes_a_quota(quotas: Quotas, deeds):
    """`fails`: a change that is under way, of which nobody knows yet whether it will be, then is not."""
    there: dict[int, VM] = {}
    for deed, number, content in deeds:
        new, old = vm(number, **content), there.get(number)
        if deed == "destroy":
            there.pop(number, None)
            continue
        try:
            check_within(new, old, quotas, there.values(), "doing", OPERATORS)
        except OverQuota:
            continue
        if deed == "fails" and old is not None:
            meanwhile = {**there, number: at_most(old, new)}
            _assert_within(quotas, [old, *(one for key, one in there.items() if key != number)])
            # What others may get while it is under way leaves room for both of its ends.
            other = vm(9, **content)
            try:
                check_within(other, None, quotas, meanwhile.values(), "doing", OPERATORS)
            except OverQuota:
                continue
            for end in (old, new):
                _assert_within(quotas, [*({**there, number: end}).values(), other])
            continue
        there[number] = new
        _assert_within(quotas, there.values())


def _assert_within(quotas: Quotas, vms) -> None:
    for holder, used in used_by_all(vms).items():
        limits, _ = limits_of(holder, quotas)
        for each in Resource:
            limit = limits.of(each) if limits is not None else None
            assert limit is None or used.of(each) <= limit, (holder, each)


# --- what is told, and changed


def test_what_is_left_is_never_less_than_nothing():
    use = use_of(ANN, own(ANN, vms=1), Amounts(vms=3))
    assert (use.free.vms, use.free.memory_mib) == (0, None)


def test_everybody_who_has_a_quota_or_owns_something_is_told_of():
    quotas = structs.replace(own(WEB, vms=3), default=Limits(vms=2), users=(Quota("zoe", Limits(vms=1)),))
    uses = all_uses(quotas, [vm(5), vm(6, owner_groups=("db",))])
    assert [(use.kind, use.name, use.used.vms, use.by_default) for use in uses] == [
        (HolderKind.DEFAULT, "", 0, True),
        (HolderKind.USER, "ann", 2, True),
        (HolderKind.USER, "zoe", 0, False),
        (HolderKind.GROUP, "db", 1, False),
        (HolderKind.GROUP, "web", 0, False),
    ]


@given(st.sampled_from([ANN, WEB, DEFAULT]), LIMITS, QUOTAS)
def test_a_quota_that_is_set_is_there_until_it_is_deleted(holder: Holder, limits: Limits, quotas: Quotas):
    there = with_limits(quotas, holder, limits)
    assert limits_of(holder, there)[0] == limits
    assert with_limits(there, holder, limits) == there
    gone = without_limits(there, holder)
    assert without_limits(gone, holder) == gone
    assert limits_of(holder, gone)[0] == (quotas.default if holder == ANN else None)


def test_quotas_are_so_many_at_most():
    full = Quotas(users=tuple(Quota(f"u{number}") for number in range(MAX_QUOTAS)))
    with pytest.raises(Conflict, match=f"there are {MAX_QUOTAS} already"):
        with_limits(full, ANN, Limits())
    assert len(with_limits(full, Holder(HolderKind.USER, "u0"), Limits(vms=1)).users) == MAX_QUOTAS


@pytest.mark.parametrize(("kind", "name"), [("user", ""), ("group", "a/b"), ("default", "ann")])
def test_a_quota_is_given_to_nobody_who_cannot_be(kind: str, name: str):
    with pytest.raises(Invalid):
        check_holder(HolderKind(kind), name)


@given(st.lists(CONTENT, max_size=6))
def test_what_some_have_is_what_all_have_as_far_as_it_is_theirs(contents):
    vms = [vm(number, **content) for number, content in enumerate(contents)]
    all_of_them = used_by_all(vms)
    assert used_by([ANN, WEB], vms) == {holder: all_of_them.get(holder, Amounts()) for holder in (ANN, WEB)}


def test_a_limit_below_nothing_is_refused():
    with pytest.raises(Invalid, match="vms -1"):
        Limits(vms=-1)
