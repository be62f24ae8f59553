"""What a cloud leaves on its host: little while it is up, nothing after `down --destroy`."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.host.product.conftest import Room


def groups_of(cloud_id: str) -> list[str]:
    """Its control groups, in every hierarchy that this host has."""
    places = (f"atoll/{cloud_id}", f"*/atoll/{cloud_id}")
    return [str(path) for place in places for path in Path("/sys/fs/cgroup").glob(place)]


@pytest.mark.parametrize("agent", ["running", "stopped", "killed"])
def test_destroy_leaves_no_trace(room: Room, agent: str) -> None:
    cloud = room.clouds[0]
    before = room.snapshot()
    cloud("up")
    vm = cloud.create("web", "--wait-for", "started")
    cloud("vm", "publish", "web", "127.0.0.1:8080:80")
    cloud("subnet", "add", "more", "10.87.0.0/24")
    cloud_id = cloud.status()["namespace"].removeprefix("atoll-")
    assert groups_of(cloud_id)
    between = room.snapshot()
    for kind in ("processes", "files", "mounts", "links", "addresses", "routes"):
        assert set(between[kind]) > set(before[kind]), f"a cloud without {kind}?"
    assert any(vm["mac"] in line for line in between["processes"])
    if agent == "stopped":
        cloud("down")
    if agent == "killed":
        room.run("kill", "-9", str(cloud.status()["pid"]))
    cloud("down", "--destroy", "--yes")
    # The images were in its directory from the start.
    before["files"] = [path for path in before["files"] if not path.startswith(str(cloud.directory))]
    assert room.snapshot() == before
    assert groups_of(cloud_id) == []
    assert "there is no cloud" in cloud("down", "--destroy", "--yes").stdout


def test_two_clouds_on_one_host_do_not_know_of_each_other(room: Room) -> None:
    before = room.snapshot()
    one, other = room.clouds
    vms = both(room, "up", then=("vm", "create", "--name", "web", "--image", "appliance"))
    between = room.snapshot()
    assert between["firewall"] == before["firewall"]
    assert between["switches"] == {**between["switches"], **before["switches"]}
    first, second = one.status(), other.status()
    assert (first["agent"], second["agent"]) == ("up", "up")
    for own in ("namespace", "subnet", "address", "pid"):
        assert first[own] != second[own]
    assert [room.ask(vm["ip"])["ip"] for vm in vms] == [vm["ip"] for vm in vms]
    assert one.names() == other.names() == {"web"}
    one("down", "--destroy", "--yes")
    assert room.ask(vms[1]["ip"])["instance_id"] == vms[1]["instance_id"]
    assert one.refused("vm", "list").status == 7
    assert other.names() == {"web"}


def both(room: Room, *words: str, then: tuple[str, ...]) -> list[dict[str, Any]]:
    """The commands on both clouds, at the same time; then the VM of each."""
    for command in (words, then):
        running = [cloud.start(*command, stdout=subprocess.DEVNULL) for cloud in room.clouds]
        assert [one.wait(120) for one in running] == [0, 0]
    return [cloud.show("web") for cloud in room.clouds]
