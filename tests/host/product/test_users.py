"""The users that VMs run as: each has its own, and can do nothing to the others."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from atoll.plan.ids import Ids
from atoll.system import processes
from atoll.system.ids import running_ids

if TYPE_CHECKING:
    from tests.host.conftest import Cli

TWINS = {"ten": "10.72.1.5", "hundred": "100.72.1.5"}
"""Addresses that end in the same 24 bits."""


@pytest.fixture(scope="module")
def shared(images: Path, making_cloud: Callable[[Path], AbstractContextManager[Cli]]) -> Iterator[Cli]:
    """A cloud with a VM at each of two addresses that are easily mistaken, and a disk in each of them."""
    with making_cloud(images) as cli:
        cli("up")
        for subnet, ip in TWINS.items():
            cli("subnet", "add", subnet, f"{ip.rpartition('.')[0]}.0/24", "--pool", ip)
            cli.create(subnet, "--subnet", subnet, "--volume", "size=16MiB", "--wait-for", "started")
        yield cli


def ids_of(cloud: Cli, ip: str) -> Ids:
    return Ids(**json.loads(cloud.record(ip).read_text())["ids"])


def as_user(uid: int, *command: str) -> subprocess.CompletedProcess[str]:
    words = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", *command]
    return subprocess.run(words, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})


def test_vms_at_addresses_that_end_alike_are_users_that_cannot_touch_each_other(shared: Cli) -> None:
    (one, pid), (other, other_pid) = (
        (ids_of(shared, ip).first, shared.qemu(ip)) for ip in (TWINS["ten"], TWINS["hundred"])
    )
    assert one != other
    assert (os.stat(f"/proc/{pid}").st_uid, os.stat(f"/proc/{other_pid}").st_uid) == (one, other)
    refused = as_user(one, "sh", "-c", f"kill -0 {other_pid}")
    assert "not permitted" in refused.stderr
    assert as_user(other, "sh", "-c", f"kill -0 {other_pid}").returncode == 0
    assert "Permission denied" in as_user(one, "cat", f"/proc/{other_pid}/environ").stderr
    (disk,) = (shared.directory / "node" / "volumes" / TWINS["hundred"]).iterdir()
    assert disk.stat().st_uid == other
    for path in (disk, shared.record(TWINS["hundred"])):
        assert "Permission denied" in as_user(one, "cat", str(path)).stderr


def test_the_next_agent_finds_every_vm_as_the_user_that_it_was(shared: Cli) -> None:
    before = {ip: ids_of(shared, ip) for ip in TWINS.values()}
    shared.kill_agent()
    shared("up")
    shared("vm", "reboot", "ten", "--wait-for", "started")
    assert {ip: ids_of(shared, ip) for ip in TWINS.values()} == before
    assert os.stat(f"/proc/{shared.qemu(TWINS['ten'])}").st_uid == before[TWINS["ten"]].first


def test_containers_have_ranges_of_users_that_do_not_meet(shared: Cli) -> None:
    vms = [shared.create(f"box-{number}", "--driver", "lxc", "--wait-for", "started") for number in range(2)]
    mapped = [ids_mapped(shared, vm) for vm in vms]
    assert mapped == [ids_of(shared, vm["ip"]) for vm in vms]
    low, high = sorted(mapped, key=lambda ids: ids.first)
    assert (low.count, high.count) == (65_536, 65_536)
    assert low.first + low.count <= high.first
    shared.destroy(*(vm["name"] for vm in vms))


def ids_mapped(cloud: Cli, vm: dict[str, Any]) -> Ids:
    """The users of the host that those of a container are, as the kernel says."""
    inits = [
        Path(f"/proc/{pid}/uid_map").read_text().split()
        for pid in processes.processes_in(cloud.group(vm["ip"], "lxc"))
    ]
    ((inside, outside, count),) = {tuple(words) for words in inits if words[2] != "4294967295"}
    assert inside == "0"
    return Ids(int(outside), int(count))


def test_the_user_of_a_vm_that_is_destroyed_owns_nothing_and_is_used_again(shared: Cli) -> None:
    vm = shared.create("short-lived", "--volume", "size=16MiB", "--wait-for", "started")
    ids = ids_of(shared, vm["ip"])
    assert ids.first in running_ids()
    shared.destroy("short-lived")
    assert ids.first not in running_ids()
    left = [path for path in (shared.directory / "node").rglob("*") if path.lstat().st_uid == ids.first]
    assert left == []
    vm = shared.create("next", "--wait-for", "started")
    assert ids_of(shared, vm["ip"]) == ids
    shared.destroy("next")
