"""Keeping the kernel ready for moves changes nothing about where this process is."""

from __future__ import annotations

import os
from pathlib import Path

from atoll.system import cgroup_moves, cgroups


def test_this_process_is_moved_to_where_it_is() -> None:
    before = Path("/proc/self/cgroup").read_text()
    lists = [path for path in cgroups.own_lists(before) if path.exists()]
    assert str(os.getpid()) in lists[0].read_text().split()

    with cgroup_moves.expected():
        cgroup_moves.stay()

    assert Path("/proc/self/cgroup").read_text() == before


def test_a_list_without_this_process_is_not_its_own() -> None:
    # As in a container that has the host's tree mounted and a cgroup namespace of its own.
    assert cgroup_moves._own_group("0::/atoll-test-none/there\n9:cpu:/atoll-test-none/there\n") is None
