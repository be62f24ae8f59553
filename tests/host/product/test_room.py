"""A machine that is too small, or lacks something: `up` says so before it begins, and `doctor` says what to do."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.host.conftest import Cli

from small_disks import small_disk


@pytest.fixture
def small(tmp_path: Path) -> Any:
    """A cloud to be, on a disk of 96 MiB."""
    with small_disk(tmp_path, 96) as place:
        yield Cli(place / "cloud")


def findings(cli: Cli) -> tuple[int, dict[str, Any]]:
    done = cli("doctor", "-o", "json", check=False)
    return done.returncode, {finding["check"]: finding for finding in json.loads(done.stdout)}


def test_up_on_a_disk_that_is_too_small_is_refused_before_it_begins(small: Cli) -> None:
    refusal = small.refused("up")
    assert refusal.status == 6
    assert refusal.brief.startswith("atoll up: too little room: ")
    assert str(small.directory) in refusal.brief
    assert "--dir DIR" in refusal.hint
    assert not small.directory.exists()


def test_doctor_fails_where_up_would(small: Cli) -> None:
    status, found = findings(small)
    assert status == 1
    assert found["space"]["result"] == "failure"
    assert "ATOLL_DIR" in found["space"]["remedy"]
    told = small("doctor", check=False).stdout
    assert "\nspace: " in told
    assert "\n  why:  atoll up would fail for want of room\n  mend: free some, or " in told


def test_doctor_knows_time_names_and_the_engine_that_is_named(tmp_path: Path) -> None:
    cli = Cli(tmp_path / "cloud", {"DOCKER_HOST": f"unix://{tmp_path}/none.sock"})
    status, found = findings(cli)
    assert {"time", "dns", "container engine", "space"} <= set(found)
    assert (status, found["space"]["result"]) == (0, "ok")
    assert found["container engine"]["result"] == "warning"
    assert f"{tmp_path}/none.sock" in found["container engine"]["found"]
    for finding in found.values():
        assert bool(finding["remedy"]) == bool(finding["why"]) == (finding["result"] != "ok")


def test_doctor_fails_where_the_image_cannot_be_made(tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    # All that this machine has, but for a compiler.
    for place in map(Path, ("/usr/sbin", "/usr/bin", "/sbin", "/bin")):
        for tool in place.iterdir():
            if tool.name != "musl-gcc" and not (tools / tool.name).is_symlink():
                (tools / tool.name).symlink_to(tool)
    cli = replace(Cli(tmp_path / "cloud"), environment={"PATH": str(tools)})
    status, found = findings(cli)
    assert (status, found["image tools"]["result"]) == (1, "failure")
    assert found["image tools"]["remedy"] == "apt-get install musl-tools"
