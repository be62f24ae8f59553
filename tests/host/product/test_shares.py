"""Folders of the node in virtual machines, as their users have them: whatever ends, and until the VM does."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from atoll.system import cgroups, pids, processes

if TYPE_CHECKING:
    from tests.host.conftest import Cli

OWNER = 12345
PATIENCE_S = 60
# The folder is there before user data runs, and is seen to be there without anybody's help afterwards.
BEAT = "#!/bin/sh\ncp /docs/hello /data/copied\nwhile :; do echo $((n += 1)) >/data/beat; sleep 0.2; done &\n"


@pytest.fixture
def place() -> Iterator[Path]:
    """Two folders, one of them somebody's, where operators may share them."""
    top = Path("/srv", f"atoll-test-{os.getpid()}")
    for name in ("data", "docs"):
        (top / name).mkdir(parents=True)
    os.chown(top / "data", OWNER, OWNER)
    (top / "docs/hello").write_text("good morning\n")
    yield top
    shutil.rmtree(top)


def until(true: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def until_it_beats(place: Path) -> None:
    beat = place / "data/beat"
    before = beat.read_text() if beat.exists() else ""
    until(lambda: beat.exists() and beat.read_text() not in ("", before), "the guest does not write any more")


def servers(cloud: Cli, ip: str) -> dict[str, int]:
    """The processes that serve the folders of a VM."""
    found = {pids.variable(pid, "ATOLL_SHARE"): pid for pid in processes.processes_in(cloud.group(ip))}
    return {name: pid for name, pid in found.items() if name is not None}


def test_a_folder_is_there_from_the_first_program_to_the_end_of_its_vm(
    fresh_cloud: Cli, place: Path, tmp_path: Path
) -> None:
    cloud, script = fresh_cloud, tmp_path / "user-data"
    script.write_text(BEAT)
    cloud("share", "allow", "data", str(place / "data"), "--everyone")
    cloud("share", "allow", "docs", str(place / "docs"), "--read-only", "--everyone")
    shares = ("--share", "data:/data", "--share", "docs:/docs:ro")
    cloud.create("plain")
    vm = cloud.create("web", *shares, "--user-data", str(script))
    assert (vm["started_by"], vm.get("remarks", [])) == ("cold", [])
    until_it_beats(place)
    assert (place / "data/copied").read_text() == "good morning\n"
    assert {(path.stat().st_uid, path.stat().st_gid) for path in (place / "data").iterdir()} == {
        (OWNER, OWNER)
    }
    assert cloud("vm", "exec", "web", "--", "touch", "/docs/made", check=False).returncode != 0
    first = servers(cloud, vm["ip"])
    assert set(first) == {"data", "docs"}

    refusal = cloud.refused("vm", "suspend", "--to-disk", "web")
    assert "who serves its folder data" in refusal.brief
    cloud("vm", "suspend", "web")
    cloud("vm", "resume", "web")
    until_it_beats(place)

    cloud.kill_agent()
    until_it_beats(place)
    cloud("up")
    assert (cloud.show("web")["state"], servers(cloud, vm["ip"])) == ("running", first)
    assert cloud("vm", "exec", "web", "--", "cat", "/data/copied").stdout == "good morning\n"

    (place / "data/beat").unlink()
    cloud("vm", "exec", "web", "--", "reboot", "-f", check=False)
    until_it_beats(place)
    assert servers(cloud, vm["ip"]) == first

    os.kill(first["docs"], signal.SIGKILL)
    until(lambda: "its folder docs is served no longer" in cloud.show("web")["reason"], "nobody says it")
    until_it_beats(place)
    cloud("vm", "reboot", "web")
    assert cloud.show("web")["reason"] == ""
    assert cloud("vm", "exec", "web", "--", "cat", "/docs/hello").stdout == "good morning\n"

    last = servers(cloud, vm["ip"])
    assert set(last) == {"data", "docs"}
    cloud.destroy("web")
    assert not any(map(processes.identify, (*first.values(), *last.values())))
    assert not any(path.parent.exists() for path in cgroups.join_paths(cloud.group(vm["ip"])))
    cloud("share", "deny", "data")
    assert (place / "data/copied").exists()
