"""The whole life of real VMs: volumes that come and go, changes, rules of their own, a node that is drained."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from atoll.hypervisor.vms.stages import THROTTLE_GRACE_S
from atoll.system import cgroups, processes

if TYPE_CHECKING:
    from tests.host.conftest import Cli

DISKS = "for d in /sys/block/vd*; do echo disk=$(cat $d/serial):$(cat $d/size):$(basename $d); done"


@pytest.fixture(scope="module")
def life(fresh_cloud: Cli) -> Iterator[Cli]:
    """A cloud of this file's own."""
    yield fresh_cloud
    for name in fresh_cloud.names():
        fresh_cloud("vm", "change", name, "--no-protect")
        fresh_cloud.destroy(name)


def disks_of(cloud: Cli, name: str) -> dict[str, tuple[int, str]]:
    """What the guest finds: size in MiB and device, by serial number."""
    with cloud.shell(name) as shell:
        lines = [line[5:].split(":") for line in shell.run(DISKS).splitlines() if line.startswith("disk=")]
    return {serial: (int(sectors) // 2048, device) for serial, sectors, device in lines if serial[:1] != "$"}


def until(true: Any, what: str, timeout: float = 30) -> None:
    deadline = time.monotonic() + timeout
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def test_volumes_come_with_a_vm_and_while_it_runs_and_keep_what_is_on_them(life: Cli, tmp_path: Path) -> None:
    vm = life.create("disks", "--volume", "size=16MiB,fs=ext4,name=data", "--volume", "size=4MiB,type=memory")
    assert disks_of(life, "disks") == {"data": (16, "vda"), "vol1": (4, "vdb")}
    content = os.urandom(3 << 20)
    (tmp_path / "content").write_bytes(content)
    life("volume", "add", "disks", "--name", "hot", "--size", "8MiB", "--format", "qcow2")
    life("volume", "add", "disks", "--name", "given", "--content", str(tmp_path / "content"))
    found = disks_of(life, "disks")
    assert {name: size for name, (size, _) in found.items()} == {"data": 16, "vol1": 4, "hot": 8, "given": 3}
    with life.shell("disks") as shell:
        said = shell.run(f"sha256sum /dev/{found['given'][1]}")
        shell.run(
            "for d in /dev/vda /dev/vdb; do echo written-by-the-guest | dd of=$d bs=512 conv=sync; done; sync"
        )
    assert hashlib.sha256(content).hexdigest() in said

    qemu = life.qemu(vm["ip"])
    opened = {os.readlink(f"/proc/{qemu}/fd/{number}") for number in os.listdir(f"/proc/{qemu}/fd")}
    volumes = life.directory / "node" / "volumes" / vm["ip"]
    assert {path for path in opened if path.startswith(str(life.directory / "node" / "volumes"))} == {
        str(volumes / name) for name in ("data.raw", "hot.qcow2", "given.raw")
    }
    owner = (volumes / "data.raw").stat().st_uid
    assert owner == os.stat(f"/proc/{qemu}").st_uid

    for name in ("hot", "data"):
        life("volume", "detach", "disks", name)
    assert set(disks_of(life, "disks")) == {"vol1", "given"}
    refusal = life.refused("volume", "shrink", "disks", "given", "2MiB")
    assert (refusal.status, "holds no ext4" in refusal.brief) == (4, True)
    life("volume", "grow", "disks", "hot", "32MiB")
    life("volume", "attach", "disks", "data")
    life("volume", "attach", "disks", "hot")
    life("volume", "reorder", "disks", "hot", "data", "given", "vol1")
    assert life.show("disks")["pending"] == ["volumes"]
    life("vm", "reboot", "disks")
    assert disks_of(life, "disks") == {
        "hot": (32, "vda"), "data": (16, "vdb"), "given": (3, "vdc"), "vol1": (4, "vdd"),
    }  # fmt: skip
    with life.shell("disks") as shell:
        assert "written-by-the-guest" in shell.run("head -c 20 /dev/vdb").partition("vdb")[2]
        assert "written-by-the-guest" not in shell.run("head -c 20 /dev/vdd").partition("vdd")[2]
    life.destroy("disks")
    assert not volumes.exists()


BY_ID = "cd /dev/disk/by-id; for l in *; do echo $l $(cat /sys/block/$(basename $(readlink $l))/serial); done"


def test_a_volume_grows_under_a_guest_that_uses_it_and_finds_it_by_its_name(life: Cli) -> None:
    life.create("grower", "--volume", "size=16MiB,fs=ext4,name=data")
    inside = ("vm", "exec", "grower", "--", "sh", "-c")
    assert "/dev/disk/by-id/virtio-data" in life("volume", "show", "grower", "data").stdout
    life(*inside, "mkdir '/mnt x' && mount /dev/disk/by-id/virtio-data '/mnt x' && echo kept > '/mnt x/file'")
    said = life("volume", "grow", "grower", "data", "+48MiB").stderr
    assert "grown in the guest" in said
    seen = life(*inside, "cat '/mnt x/file'; blockdev --getsize64 /dev/vda; df -mP '/mnt x' | tail -1").stdout
    kept, size, used = seen.splitlines()
    assert (kept, int(size)) == ("kept", 64 << 20)
    assert int(used.split()[1]) > 50
    life("volume", "add", "grower", "--name", "late", "--size", "4MiB")
    # The guest hears of it a moment later, and of its end too.
    names = ["virtio-data", "data", "virtio-late", "late"]
    until(lambda: life(*inside, BY_ID).stdout.split() == names, "there is no link to the new disk")
    assert "its file system is as it was" in life("volume", "grow", "grower", "late", "8MiB").stderr
    life("volume", "detach", "grower", "late")
    links = (*inside, "ls /dev/disk/by-id")
    until(
        lambda: life(*links).stdout.split() == ["virtio-data"], "the link to the disk that has gone is left"
    )
    life.destroy("grower")


def test_what_crashes_is_started_again_and_changes_take_hold(life: Cli) -> None:
    vm = life.create("phoenix", "--restart", "on-crash", "--tag", "a=1")
    old = life.qemu(vm["ip"])
    changed = life.json(
        "vm", "change", "phoenix", "--memory", "192MiB", "--cpus", "0.5", "--hostname", "bird"
    )
    assert (changed["pending"], changed["memory_mib"]) == (["memory_mib"], 192)
    quota = next(path for path in cgroups.join_paths(life.group(vm["ip"])) if "/cpu" in str(path)).parent
    limit = quota / "cpu.cfs_quota_us"
    time.sleep(THROTTLE_GRACE_S)  # the end of its start finds the change made
    assert (limit.read_text() if limit.exists() else (quota / "cpu.max").read_text()).split()[0] == "50000"
    os.kill(old, signal.SIGKILL)
    until(lambda: life.show("bird")["restarts"] == 1 and life.answers(vm["ip"]), "it does not come back")
    now = life.show("bird")
    assert (now["state"], now["pending"], now["reason"]) == ("running", [], "started again: it crashed")
    assert life.qemu(vm["ip"]) != old
    with life.shell("bird") as shell:
        said = shell.run("hostname; grep MemTotal /proc/meminfo")
    assert "\nbird\n" in said
    assert int(said.split("MemTotal:")[1].split()[0]) > 140 << 10


def test_what_is_protected_stays_and_what_it_was_made_of_can_be_read_back(life: Cli, tmp_path: Path) -> None:
    life("vm", "change", "bird", "--protect")
    refusal = life.refused("vm", "destroy", "bird", "--yes")
    assert (refusal.status, refusal.brief) == (4, "cannot destroy VM bird: it is protected")
    assert refusal.hint == "lift that first: atoll vm change bird --no-protect"
    request = json.loads(life("vm", "show", "bird", "--as-request").stdout)
    assert (request["spec"]["memory_mib"], request["spec"]["restart"]) == (192, "on-crash")
    (tmp_path / "request").write_text(json.dumps(request))
    twin = life.json(
        "vm", "create", "--request", str(tmp_path / "request"), "--name", "twin", "--wait-for", "started"
    )
    assert (twin["memory_mib"], twin["tags"], twin["protected"]) == (192, {"a": "1"}, True)
    life("vm", "change", "twin", "--no-protect")


def test_a_vm_moves_to_another_subnet_and_is_found_there(life: Cli) -> None:
    life("subnet", "add", "dmz", "10.88.0.0/24", "--pool", "10.88.0.5")
    before = life.show("twin")
    assert life.refused("vm", "change", "twin", "--subnet", "dmz").status == 4
    life("vm", "stop", "twin", "--force")
    after = life.json("vm", "change", "twin", "--subnet", "dmz")
    assert (after["ip"], after["instance_id"]) == ("10.88.0.5", before["instance_id"])
    up = life.json("vm", "start", "twin", "--wait-for", "metadata")
    assert up["ip"] == "10.88.0.5"
    assert not life.record(before["ip"]).exists()
    life.destroy("twin")


def test_what_expires_while_the_agent_is_away_goes_when_it_is_back(life: Cli) -> None:
    vm = life.create("mayfly", "--wait-for", "started", "--expires", "5s")
    life.kill_agent()
    qemu = processes.identify(life.qemu(vm["ip"]))
    time.sleep(5)
    assert qemu is not None
    assert processes.alive(qemu)
    life("up")
    until(lambda: "mayfly" not in life.names(), "it stays")
    assert not processes.alive(qemu)
    assert not life.record(vm["ip"]).parent.exists()


def test_a_drained_node_makes_and_starts_nothing_and_who_did_what_is_known(life: Cli) -> None:
    assert life.json("node", "drain")["drained"]
    for words in (("vm", "create", "--name", "x", "--image", "appliance"), ("vm", "reboot", "bird")):
        refusal = life.refused(*words)
        assert (refusal.status, "is drained" in refusal.brief) == (6, True)
    assert not life.json("node", "undrain")["drained"]
    noted = [(entry["user"], entry["method"], entry["result"]) for entry in life.json("audit", "list")]
    assert noted.count(("admin", "vm.create", "no_capacity")) == 1
    assert ("atoll", "vm.restart", "ok") in noted
    assert ("atoll", "vm.expire", "ok") in noted
    rows = life.json("vm", "top", "--for", "0.2s")
    assert [row["name"] for row in rows] == ["(node)", "bird"]
    assert rows[1]["memory_mib"] > 50
    page = life.request("GET", "/metrics").body.decode()
    assert 'atoll_vm_memory_bytes{ip="' in page
    assert float(page.split("\natoll_node_cpu_seconds_total ")[1].split()[0]) > 0
