from __future__ import annotations

from hypothesis import given
from hypothesis.strategies import integers

from atoll.drivers.machine.docker.roots import START_SLACK, limit_for, storage_options
from atoll.system.mounts import options_in

MIB = 1 << 20
LINES = [
    "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard",
    "99 27 7:3 / /var/lib/docker rw,nosuid - xfs /dev/loop3 rw,attr2,prjquota",
]


@given(integers(1, 1 << 40), integers(0, 1 << 42))
def test_a_container_may_hold_its_size_and_never_twice_as_much(size: int, found: int) -> None:
    assert size <= limit_for(size, found) <= 2 * size


def test_one_that_is_too_large_may_run_to_be_tidied_up_but_not_grow() -> None:
    assert limit_for(100 * MIB, 150 * MIB) == 150 * MIB + START_SLACK


def test_the_engine_is_told_the_size_in_its_own_words() -> None:
    assert storage_options(1024) == {"size": "1024M"}


def test_the_options_of_a_mount_are_found_by_its_device() -> None:
    kind, options = options_in(LINES, "7:3")
    assert kind == "xfs"
    assert {"prjquota", "nosuid"} <= options
    assert options_in(LINES, "8:1") == ("", frozenset())
