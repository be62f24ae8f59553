"""What the first process of a container of ours may do, as the kernel sees it."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from atoll.drivers.machine.base import Machine
from atoll.drivers.machine.docker import config as docker_config
from atoll.drivers.machine.lxc import apparmor
from atoll.drivers.machine.lxc import config as lxc_config
from atoll.system import cgroups, namespaces
from atoll.system.links import Links

# linux/capability.h
NUMBERS = {
    "chown": 0, "dac_override": 1, "fowner": 3, "kill": 5, "setgid": 6, "setuid": 7, "net_bind_service": 10,
    "net_admin": 12, "sys_module": 16, "sys_rawio": 17, "sys_admin": 21, "sys_boot": 22, "sys_time": 25,
    "audit_control": 30, "setfcap": 31, "mac_override": 32, "mac_admin": 33, "syslog": 34, "wake_alarm": 35,
    "block_suspend": 36, "audit_read": 37,
}  # fmt: skip
NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "uts")


@pytest.fixture
async def lxc(lxc_lab: Any, exits: Any) -> tuple[Machine, Path]:
    """A container of kind lxc that has been started, and its first process in /proc."""
    return await started(lxc_lab, exits)


@pytest.fixture
async def docker(docker_lab: Any, exits: Any) -> tuple[Machine, Path]:
    return await started(docker_lab, exits)


async def started(lab: Any, exits: Any) -> tuple[Machine, Path]:
    driver, machine = lab.driver(exits), lab.machine()
    await driver.start(machine)
    await lab.booted(machine)
    return machine, Path(f"/proc/{lab.init(machine).pid}")


def status_of(process: Path) -> dict[str, list[str]]:
    lines = (line.partition(":") for line in (process / "status").read_text().splitlines())
    return {key: value.split() for key, _, value in lines}


def has(mask: str, name: str) -> bool:
    return bool(int(mask, 16) >> NUMBERS[name] & 1)


def bits(mask: str) -> set[int]:
    return {bit for bit in range(64) if int(mask, 16) >> bit & 1}


def own_namespaces(process: Path) -> set[str]:
    mine = Path("/proc/self/ns")
    names = (*NAMESPACES, "user")
    return {name for name in names if (process / "ns" / name).readlink() != (mine / name).readlink()}


def assert_is_limited(machine: Machine, process: Path) -> None:
    pid = int(process.name)
    assert pid in cgroups.members(machine.cgroup)
    groups = (process / "cgroup").read_text()
    for controller in ("cpu", "memory", "pids"):
        line = next(line for line in groups.splitlines() if controller in line.split(":")[1].split(","))
        assert f"/{machine.cgroup}/" in line


def assert_has_nothing_open_but_its_terminal(process: Path) -> None:
    opened = {os.readlink(link) for link in (process / "fd").iterdir()}
    assert opened
    # 10 is what a shell reads its script from.
    assert {name for name in opened if name != "/sbin/init"} <= {"/dev/console", "/dev/pts/0", "/0"}


def test_root_of_an_lxc_container_is_nobody_on_the_host(lxc: tuple[Machine, Path]) -> None:
    machine, process = lxc
    status, ids = status_of(process), lxc_config.id_range(machine)
    assert status["Uid"] == status["Gid"] == [str(ids.outside)] * 4
    assert status["Groups"] == []
    for name in ("uid_map", "gid_map"):
        assert (process / name).read_text().split() == ["0", str(ids.outside), "65536"]


def test_an_lxc_container_has_namespaces_of_its_own_and_dropped_rights_cannot_be_gained(
    lxc: tuple[Machine, Path],
) -> None:
    _, process = lxc
    assert own_namespaces(process) == {*NAMESPACES, "user"}
    status = status_of(process)
    for kind in ("CapPrm", "CapEff", "CapBnd"):
        for name in lxc_config.DROPPED_CAPABILITIES:
            assert not has(status[kind][0], name), (kind, name)
        # An init of its own configures the network and powers off.
        assert has(status[kind][0], "net_admin")
        assert has(status[kind][0], "sys_boot")
    assert status["Seccomp"] == ["2"]


def keeping(machine: Machine) -> dict[str, Path]:
    """The processes of the host's own that keep a container, by name."""
    here = Path("/proc/self/ns/pid").readlink()
    pids = (Path(f"/proc/{pid}") for pid in cgroups.members(machine.cgroup))
    return {(pid / "comm").read_text().strip(): pid for pid in pids if (pid / "ns/pid").readlink() == here}


def test_what_keeps_an_lxc_container_has_six_rights_of_root_and_no_more(lxc: tuple[Machine, Path]) -> None:
    found = keeping(lxc[0])
    assert found.keys() == {"sh", "lxc-start", "tail"}
    allowed = {"dac_override", "net_admin", "setfcap", "setgid", "setuid", "sys_admin"}
    allowed |= set(apparmor.profile().rights)
    for name, process in found.items():
        status = status_of(process)
        # That which keeps the last words is nobody.
        nobody = name == "tail"
        assert status["Uid"] == status["Gid"] == ["65534" if nobody else "0"] * 4, name
        granted = {NUMBERS[right] for right in allowed}
        assert bits(status["CapBnd"][0]) == granted, name
        assert bits(status["CapPrm"][0]) == bits(status["CapEff"][0]) == (set() if nobody else granted), name
        assert status["CapInh"] == status["CapAmb"] == ["0" * 16], name
        # The container would have both from the others: programs that change their user could not be run in it.
        assert (status["NoNewPrivs"], status["Seccomp"]) == (["1" if nobody else "0"], ["0"]), name


def test_an_lxc_container_is_under_the_profile_that_its_node_says(lxc: tuple[Machine, Path]) -> None:
    _, process = lxc
    chosen = apparmor.profile()
    if chosen.name == apparmor.UNCONFINED:
        assert chosen.meaning.startswith("none: ")
        return
    current = (process / "attr/apparmor/current").read_text()
    assert current.strip().endswith("(enforce)")
    assert chosen.name in (current.split()[0], apparmor.GENERATED)


def test_what_keeps_an_lxc_container_is_detached_limited_and_holds_no_file_of_another_vm(
    lxc: tuple[Machine, Path],
) -> None:
    machine, _ = lxc
    for name, process in keeping(machine).items():
        assert_is_limited(machine, process)
        opened = {os.readlink(link) for link in (process / "fd").iterdir()}
        ours = {
            path
            for path in opened
            if path.startswith("/") and not path.startswith(("/dev/", "/proc/", "/sys/"))
        }
        assert all(path.startswith((str(machine.directory), "/mnt/")) for path in ours), (name, ours)


def test_an_lxc_container_is_limited_and_holds_no_file_of_the_host(lxc: tuple[Machine, Path]) -> None:
    machine, process = lxc
    assert_is_limited(machine, process)
    assert_has_nothing_open_but_its_terminal(process)


def test_the_disk_of_an_lxc_container_is_for_root_alone_and_its_mounts_for_its_monitor(
    lxc: tuple[Machine, Path],
) -> None:
    machine, process = lxc
    assert (machine.directory / "lxc/root.ext4").stat().st_mode & 0o777 == 0o600
    assert str(machine.directory) not in (process / "mountinfo").read_text()
    mounted = Path("/proc/self/mountinfo").read_text()
    assert str(machine.directory) not in mounted
    assert " /mnt/root " not in mounted


def test_what_a_container_writes_belongs_on_disk_to_whom_it_sees(lxc: tuple[Machine, Path]) -> None:
    machine, process = lxc
    # As root of the container: through its own root directory.
    (process / "root/made").touch()
    os.chown(process / "root/made", *[machine.uid + 1000] * 2)
    subprocess.run(["sync", "--file-system", process / "root"], check=True)
    on_disk = ["debugfs", "-R", "stat upper/made", machine.directory / "lxc/root.ext4"]
    assert re.search(
        r"User: +1000 ", subprocess.run(on_disk, check=True, capture_output=True, text=True).stdout
    )


def test_a_docker_container_has_few_rights_and_can_gain_none(docker: tuple[Machine, Path]) -> None:
    _, process = docker
    status = status_of(process)
    granted = {NUMBERS[name.lower()] for name in docker_config.CAPABILITIES}
    for kind in ("CapPrm", "CapEff", "CapBnd"):
        assert bits(status[kind][0]) == granted, kind
    assert (status["CapAmb"], status["NoNewPrivs"], status["Seccomp"]) == (["0" * 16], ["1"], ["2"])
    assert own_namespaces(process) == set(NAMESPACES)


def test_a_docker_container_is_limited_and_holds_no_file_of_the_host(docker: tuple[Machine, Path]) -> None:
    machine, process = docker
    assert_is_limited(machine, process)
    assert_has_nothing_open_but_its_terminal(process)


def test_a_docker_container_is_given_its_link_address_and_routes(docker: tuple[Machine, Path]) -> None:
    machine, process = docker
    with Links(namespaces.of_process(int(process.name))) as links:
        link = links.find("eth0")
        assert link is not None
        assert (link.mac, link.mtu, link.up) == (machine.nic.mac, machine.nic.mtu, True)
        assert links.addresses("eth0") == {machine.nic.address}
        assert ("0.0.0.0/0", "10.9.0.1") in {(route.cidr, route.via) for route in links.routes()}
        assert links.names() == {"lo", "eth0"}
