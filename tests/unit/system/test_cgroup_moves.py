"""The kernel is kept ready for moves as long as somebody starts machines, and no longer."""

from __future__ import annotations

import threading
from pathlib import Path

from atoll.system.cgroup_layout import Layout, own_directories
from atoll.system.cgroup_moves import Readiness


def test_it_is_kept_ready_until_the_last_one_is_done() -> None:
    touches = threading.Semaphore(0)
    readiness = Readiness(touches.release)

    with readiness.wanted():
        with readiness.wanted():
            assert touches.acquire(timeout=5)
        for _ in range(3):
            assert touches.acquire(timeout=5)
        worker = readiness._thread
        assert worker is not None
    worker.join(5)
    assert not worker.is_alive()

    while touches.acquire(blocking=False):
        pass
    with readiness.wanted():
        assert touches.acquire(timeout=5)


def test_the_group_of_a_process_is_found_in_each_hierarchy_that_is_used() -> None:
    first = Layout(1, {"cpu": Path("/g/cpu"), "memory": Path("/g/memory")})
    own = "5:cpu,cpuacct:/system/atoll\n4:memory:/\n3:freezer:/frozen\n1:name=systemd:/x\n0::/unified\n"
    assert own_directories(first, own) == (Path("/g/cpu/system/atoll"), Path("/g/memory"))

    second = Layout(2, {"": Path("/g")})
    assert own_directories(second, "0::/system.slice/atoll.service\n") == (
        Path("/g/system.slice/atoll.service"),
    )


def test_a_group_outside_of_its_cgroup_namespace_is_not_guessed_at() -> None:
    assert own_directories(Layout(2, {"": Path("/g")}), "0::/../../elsewhere\n") == ()
