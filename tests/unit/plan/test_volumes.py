from __future__ import annotations

import pytest

from atoll.errors import AtollError, Conflict, Invalid, NoCapacity, NotFound
from atoll.model.volume import (
    FileSystem,
    StoreInfo,
    Volume,
    VolumeFormat,
    VolumeSpec,
    VolumeType,
    find,
    named,
)
from atoll.plan.volumes import (
    Space,
    StoreEvidence,
    check_resize,
    choose_store,
    free_by_store,
    place,
    reordered,
    store_infos,
    store_problem,
    total_mib,
)

FAST, SLOW, OTHER = Space("fast", 1, 100), Space("slow", 2, 300), Space("other", 2, 300)
SPACES = (FAST, SLOW, OTHER)
ROOT = Volume(VolumeFormat.MEMORY, 0, type=VolumeType.MEMORY)


def kept(size_mib: int, store: str, name: str = "x") -> Volume:
    return Volume(VolumeFormat.RAW, size_mib, name, store=store)


def test_stores_on_one_file_system_share_what_is_free():
    free = free_by_store(SPACES, [kept(30, "fast"), kept(100, "slow"), kept(50, "other")])
    assert free == {"fast": 70, "slow": 150, "other": 150}
    assert total_mib(SPACES) == 400
    assert store_infos((FAST,), [kept(120, "fast")]) == (StoreInfo("fast", 100, 0),)


def test_a_volume_goes_where_most_is_free():
    assert choose_store(10, None, SPACES, []) == "slow"
    assert choose_store(10, None, SPACES, [kept(250, "slow")]) == "fast"


def test_volumes_spread_over_stores_that_are_equal():
    (first, second, third) = place([VolumeSpec(10)] * 3, (SLOW, OTHER), [])
    assert [first.store, second.store, third.store] == ["slow", "other", "slow"]


def test_a_volume_that_is_pinned_goes_there():
    (volume,) = place([VolumeSpec(10, store="fast")], SPACES, [])
    assert volume.store == "fast"
    with pytest.raises(NotFound, match="store 'nope': not on this node"):
        place([VolumeSpec(10, store="nope")], SPACES, [])


def test_what_does_not_fit_is_refused_with_what_is_free():
    with pytest.raises(NoCapacity, match="no store has that much left: fast 70 MiB") as refusal:
        place([VolumeSpec(80, store="fast")], SPACES, [kept(30, "fast")])
    assert refusal.value.exit_status == 6
    with pytest.raises(NoCapacity, match="there is no store"):
        place([VolumeSpec(1)], (), [])


def test_volumes_of_one_request_count_against_each_other():
    with pytest.raises(NoCapacity):
        place([VolumeSpec(60), VolumeSpec(60)], (FAST,), [])


def test_a_volume_in_memory_needs_no_store():
    (volume,) = place([VolumeSpec(8, type=VolumeType.MEMORY)], (), [])
    assert (volume.store, volume.in_memory) == ("", True)


def test_volumes_without_a_name_get_the_first_that_is_free():
    specs = [VolumeSpec(1), VolumeSpec(1, "vol1"), VolumeSpec(1)]
    assert named(specs) == ("vol2", "vol1", "vol3")
    assert named([VolumeSpec(1)], ["vol1", "vol2"]) == ("vol3",)


def test_a_name_that_is_taken_is_refused():
    with pytest.raises(Conflict, match="volume data: there is one of this name"):
        place([VolumeSpec(1, "data")], SPACES, [], own=[ROOT, kept(1, "fast", "data")])


def test_a_vm_has_so_many_volumes_and_no_more():
    own = [ROOT, *(kept(1, "fast", f"v{n}") for n in range(16))]
    with pytest.raises(Invalid, match="must be at most 16"):
        place([VolumeSpec(1)], SPACES, [], own=own)


A, B, C = (kept(1, "fast", name) for name in "abc")


def test_the_root_stays_first_whatever_the_order():
    assert reordered((ROOT, A, B, C), ("c", "a", "b"), "web") == (ROOT, C, A, B)


@pytest.mark.parametrize("names", [("a",), ("a", "b", "b"), ("a", "b", "c", "d"), ("root", "a", "b")])
def test_an_order_names_each_volume_once(names: tuple[str, ...]):
    with pytest.raises(Invalid, match="must name each volume of VM web once"):
        reordered((ROOT, A, B, C), names, "web")


@pytest.mark.parametrize(("name", "error"), [("root", Conflict), ("nope", NotFound)])
def test_only_a_volume_beside_the_root_can_be_worked_on(name: str, error: type[AtollError]):
    with pytest.raises(error):
        find((ROOT, A), name, "web")


def test_only_what_holds_ext4_is_cut():
    plain = Volume(VolumeFormat.RAW, 100, "data", store="fast")
    check_resize(plain, 200, "web")
    with pytest.raises(Conflict, match="holds no ext4 file system"):
        check_resize(plain, 50, "web")
    check_resize(Volume(VolumeFormat.RAW, 100, "data", FileSystem.EXT4, store="fast"), 50, "web")
    with pytest.raises(Conflict, match="is in memory"):
        check_resize(Volume(VolumeFormat.RAW, 100, "data", type=VolumeType.MEMORY), 200, "web")


OURS, THEIRS = "a" * 32, "b" * 32


@pytest.mark.parametrize(
    ("mark", "named", "found", "others", "problem"),
    [
        (OURS, 3, 0, 5, ""),
        (THEIRS, 3, 3, 0, "it is the store of the agent in /there"),
        ("", 0, 0, 0, ""),
        ("", 3, 1, 4, ""),
        ("", 3, 0, 0, "is its file system mounted?"),
        ("", 0, 0, 1, "does not say whose it is"),
    ],
)
def test_a_store_is_used_if_it_is_marked_or_new_or_known_by_its_volumes(
    mark: str, named: int, found: int, others: int, problem: str
):
    said = store_problem(StoreEvidence(mark, "/there", named, found, others), OURS)
    assert problem in said
    assert bool(said) == bool(problem)


def test_no_volume_goes_to_a_store_that_is_not_used():
    spaces = [Space("away", -1, 4096, "not mounted"), Space("here", 1, 100)]
    assert choose_store(50, None, spaces, []) == "here"
    with pytest.raises(Conflict, match="store 'away' is not used: not mounted"):
        choose_store(50, "away", spaces, [])
    with pytest.raises(NoCapacity):
        choose_store(200, None, spaces, [])
    assert [(info.free_mib, info.problem) for info in store_infos(spaces, [])] == [
        (0, "not mounted"),
        (100, ""),
    ]
