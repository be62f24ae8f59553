"""What a Docker Engine is told of a machine."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from atoll.drivers.machine.base import Nic, SharedFolder
from atoll.drivers.machine.docker import config
from samples import a_machine

NIC = Nic(
    link="at-0a010005",
    bridge="br-default",
    mac="52:54:0a:01:00:05",
    mtu=1400,
    address="10.1.0.5/24",
    gateway="10.1.0.1",
    dns=("10.1.0.2",),
    domain="example.org",
)
MACHINE = a_machine(
    nic=NIC, uid=0, image_digest="ab" * 32, milli_cpus=250, cgroup="atoll/3fa2b1/docker/10.1.0.5"
)


def limits(cgroup_driver: str = "cgroupfs") -> dict[str, Any]:
    body = config.container_body(
        MACHINE, "atoll/image:ab", cgroup_driver=cgroup_driver, most={"nofile": 20_000}
    )
    host: dict[str, Any] = body["HostConfig"]
    return host


def test_a_container_is_named_by_cloud_and_ip_in_characters_that_engines_take() -> None:
    name = config.new_container_name(MACHINE)
    assert name.startswith("atoll-3fa2b1-docker-10.1.0.5-")
    assert re.fullmatch(r"[a-zA-Z0-9][a-zA-Z0-9_.-]+", name)
    assert config.new_container_name(MACHINE) != name


def test_a_container_is_found_again_by_the_cloud_that_it_belongs_to() -> None:
    group = config.labels(MACHINE)[config.LABEL]
    assert config.is_of("atoll/3fa2b1", group)
    assert not config.is_of("atoll/3fa2b", group)
    assert not config.is_of("atoll/3fa2b1/docker/10.1.0.5", group)


def test_it_gets_few_rights_and_can_gain_none() -> None:
    host = limits()
    assert host["CapDrop"] == ["ALL"]
    assert not set(host["CapAdd"]) & {"NET_ADMIN", "NET_RAW", "SYS_ADMIN", "MKNOD", "SYS_PTRACE"}
    assert host["SecurityOpt"] == ["no-new-privileges"]
    assert host["Privileged"] is False
    assert (host["NetworkMode"], host["RestartPolicy"]) == ("none", {"Name": "no"})


def test_its_log_and_its_open_files_are_limited_and_it_dumps_no_core() -> None:
    assert limits()["LogConfig"]["Config"].keys() == {"max-size", "max-file"}
    hard = {limit["Name"]: limit["Hard"] for limit in limits()["Ulimits"]}
    assert hard == {"core": 0, "nofile": 20_000}


def test_it_is_below_the_group_of_its_vm_and_has_no_limits_beside_that_group() -> None:
    host = limits()
    assert host["CgroupParent"] == "/atoll/3fa2b1/docker/10.1.0.5"
    assert not {"Memory", "MemorySwap", "PidsLimit", "CpuShares", "NanoCpus"} & host.keys()


def test_under_systemd_it_has_its_share_by_itself() -> None:
    host = limits("systemd")
    assert "CgroupParent" not in host
    assert host["NanoCpus"] == 250_000_000
    assert host["Memory"] == host["MemorySwap"] == 128 * 1024 * 1024
    assert host["PidsLimit"] == config.MAX_PROCESSES


@pytest.mark.parametrize("cgroup_driver", ["cgroupfs", "systemd"])
@pytest.mark.parametrize(
    ("change", "suits"),
    [
        ({"memory_mib": 512, "milli_cpus": 2000}, True),
        ({"image_digest": "cd" * 32}, True),
        ({"name": "other"}, False),
        ({"ip": "10.1.0.6", "cgroup": "atoll/3fa2b1/docker/10.1.0.6"}, False),
        ({"nic": structs.replace(NIC, dns=("10.1.0.3",))}, False),
        ({"nic": structs.replace(NIC, link="at-0a010006", mac="52:54:0a:01:00:06", mtu=1500)}, True),
    ],
)
def test_a_container_suits_its_machine_until_what_its_engine_fixes_changes(
    cgroup_driver: str, change: dict[str, Any], suits: bool
) -> None:
    made = config.container_body(
        MACHINE, "atoll/image:ab", cgroup_driver=cgroup_driver, most={"nofile": 20_000}
    )
    now = config.settings_of(structs.replace(MACHINE, **change), cgroup_driver=cgroup_driver)
    assert (made["Labels"][config.SETTINGS] == now) is suits


@pytest.mark.parametrize(
    ("nic", "routes"),
    [
        (NIC, [("0.0.0.0/0", "10.1.0.1")]),
        (structs.replace(NIC, gateway=""), [("169.254.169.254/32", None)]),
        (structs.replace(NIC, address="10.1.0.5/32"), [("10.1.0.1/32", None), ("0.0.0.0/0", "10.1.0.1")]),
    ],
)
def test_its_routes_lead_to_the_gateway_or_to_the_metadata_service_alone(
    nic: Nic, routes: list[tuple[str, str | None]]
) -> None:
    assert config.routes(nic) == routes


def test_no_key_that_people_type_ends_a_console() -> None:
    keys = config.DETACH_KEYS.split(",")
    assert len(keys) == 8
    assert not set(keys) & {"ctrl-a", "ctrl-c", "ctrl-d", "ctrl-p", "ctrl-q", "ctrl-]"}


def test_an_engine_is_told_a_path_of_ours_and_never_that_of_a_folder() -> None:
    folder = SharedFolder("data", Path("/srv/data"), "/data", True, 1000, 1000, (1, 2))
    machine = structs.replace(MACHINE, folders=(folder,))
    for anew in (False, True):
        body = config.container_body(machine, "i", cgroup_driver="cgroupfs", most={}, mounts_anew=anew)
        (mount,) = body["HostConfig"]["Mounts"]
        assert mount["Source"] == "/run/atoll-shares/atoll-3fa2b1-docker-10.1.0.5/data"
        assert (mount["Target"], mount["ReadOnly"]) == ("/data", anew)
    writable = structs.replace(machine, folders=(structs.replace(folder, read_only=False),))
    settings = {config.settings_of(one, cgroup_driver="cgroupfs") for one in (MACHINE, machine, writable)}
    assert len(settings) == 3
