from __future__ import annotations

import pytest
from msgspec.structs import replace

from atoll.model.node import Capacity
from atoll.plan.hotpool import IDLE_S, SPARE_ADDRESSES, WINDOW_S, Left, PoolLine, PoolStep, next_step, target

LEFT = Left(
    capacity=Capacity(milli_cpus=0, memory_mib=1024, disk_mib=0),
    available_mib=4096,
    reserve_mib=512,
    addresses={"lan": 100},
)


def line(have: int, want: int, key: str = "k1", memory_mib: int = 128) -> PoolLine:
    return PoolLine(key, "lan", memory_mib, have, want)


def test_what_nobody_created_lately_is_not_pooled() -> None:
    assert target([], now=0, most=8) == 0
    assert target([0.0], now=IDLE_S + 1, most=8) == 0


def test_one_is_kept_for_what_is_created_now_and_then() -> None:
    assert target([0.0], now=WINDOW_S + 1, most=8) == 1


def test_a_burst_is_followed_up_to_the_most() -> None:
    assert target([0.0, 1.0, 2.0], now=3, most=8) == 3
    assert target([0.0, 1.0, 2.0], now=3, most=2) == 2


def test_a_pool_that_is_as_it_should_be_is_left_alone() -> None:
    assert next_step([line(2, 2), line(0, 0, "k2")], LEFT) is None


def test_the_kind_that_has_least_is_filled_first() -> None:
    assert next_step([line(2, 3), line(0, 1, "k2")], LEFT) == PoolStep("k2", "lan", add=True)


def test_surplus_goes_before_anything_is_added() -> None:
    assert next_step([line(0, 2), line(3, 1, "k2")], LEFT) == PoolStep("k2", "lan", add=False)


@pytest.mark.parametrize(
    "left",
    [
        replace(LEFT, capacity=Capacity(milli_cpus=0, memory_mib=127, disk_mib=0)),
        replace(LEFT, available_mib=2 * 512 + 127),
        replace(LEFT, addresses={"lan": SPARE_ADDRESSES}),
        replace(LEFT, addresses={}),
    ],
)
def test_what_vms_may_need_is_not_taken(left: Left) -> None:
    assert next_step([line(0, 1)], left) is None


def test_where_one_kind_does_not_fit_a_smaller_one_may() -> None:
    left = replace(LEFT, capacity=Capacity(milli_cpus=0, memory_mib=200, disk_mib=0))

    assert next_step([line(0, 1, memory_mib=512), line(0, 1, "k2")], left) == PoolStep("k2", "lan", add=True)


@pytest.mark.parametrize(
    "left",
    [
        replace(LEFT, available_mib=511),
        replace(LEFT, capacity=Capacity(milli_cpus=0, memory_mib=-1, disk_mib=0)),
    ],
)
def test_short_memory_takes_members_that_are_wanted(left: Left) -> None:
    assert next_step([line(2, 2)], left) == PoolStep("k1", "lan", add=False)
    assert next_step([line(0, 2)], left) is None
