"""A tool that outlives its agent keeps its disk to itself until it ends: no machine, and no other tool, gets it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from atoll.errors import Conflict
from atoll.system import disks, processes

if TYPE_CHECKING:
    from tests.host.conftest import Cli

UID = 0x6A00_0005
PATIENCE_S = 30.0

# Ends with its place and with the test too, however that ends.
TOOL = """#!/bin/sh
echo $$ >{place}/begun
while [ -e {place}/begun ] && [ ! -e {place}/go-on ] && [ -d /proc/{test} ]; do sleep 0.02; done
"""

AGENT = """
import asyncio, sys
from pathlib import Path
from atoll.system import disks
path, other = Path(sys.argv[1]), Path(sys.argv[2])
asyncio.run(eval(sys.argv[3]))
"""

WORK = {
    "resize2fs": "disks.resize_ext(path)",
    "e2fsck": "disks.resize_ext(path)",
    "mke2fs": "disks.make_ext4(path)",
    "qemu-img": "disks.convert(path, 'raw', other, 'raw')",
    "cp": "disks.copy(path, other)",
}


class SlowTool:
    """A tool of this name that does nothing until it is let go on."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def stand_in_for(self, name: str) -> None:
        (self.place / name).write_text(TOOL.format(place=self.place, test=os.getpid()))
        (self.place / name).chmod(0o755)

    @property
    def path(self) -> str:
        return f"{self.place}:{os.environ['PATH']}"

    def pid(self) -> int:
        """Its process, once it has begun."""
        begun, until = self.place / "begun", time.monotonic() + PATIENCE_S
        while not begun.exists() or not begun.read_text().strip():
            assert time.monotonic() < until, "the tool was not started"
            time.sleep(0.01)
        return int(begun.read_text())

    def lives(self) -> bool:
        pid = processes.identify(self.pid())
        return pid is not None and processes.alive(pid)

    def go_on(self) -> None:
        (self.place / "go-on").touch()


@pytest.fixture
def tool() -> Iterator[SlowTool]:
    with tempfile.TemporaryDirectory(prefix="atoll-test-") as place:
        # The user that a tool runs as gets here, and can tell us.
        Path(place).chmod(0o777)
        slow = SlowTool(Path(place))
        try:
            yield slow
        finally:
            slow.go_on()


async def a_disk(path: Path) -> Path:
    async with disks.in_the_making(path, UID) as part:
        await disks.set_size(part, 8)
        await disks.make_ext4(part)
    return path


def kill_an_agent_at(work: str, disk: Path, other: Path, tool: SlowTool) -> None:
    argv = [sys.executable, "-c", AGENT, str(disk), str(other), work]
    with subprocess.Popen(argv, env={**os.environ, "PATH": tool.path}) as agent:
        tool.pid()
        agent.kill()
        assert agent.wait() == -signal.SIGKILL


@pytest.mark.parametrize("name", WORK)
async def test_a_tool_that_outlives_its_agent_is_waited_for(
    name: str, tool: SlowTool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    disk, other = await a_disk(tmp_path / "data.raw"), await a_disk(tmp_path / "other.raw")
    tool.stand_in_for(name)
    kill_an_agent_at(WORK[name], disk, other, tool)
    assert tool.lives()
    monkeypatch.setattr(disks, "BUSY_PATIENCE_S", 0.2)
    with pytest.raises(Conflict, match=rf"disk data\.raw: .*{name} \(process {tool.pid()}\)"):
        os.close(await disks.claim(disk))
    monkeypatch.setattr(disks, "BUSY_PATIENCE_S", PATIENCE_S)
    tool.go_on()
    os.close(await disks.claim(disk))
    assert not tool.lives()


def test_a_vm_starts_when_the_tool_of_a_killed_agent_is_done_with_its_volume(
    images: Path, making_cloud: Callable[[Path], AbstractContextManager[Cli]], tool: SlowTool
):
    tool.stand_in_for("resize2fs")
    with making_cloud(images) as made:
        cloud = replace(made, environment={"PATH": tool.path})
        cloud("up")
        vm = cloud.create("web", "--volume", "size=8MiB,fs=ext4,name=data", "--wait-for", "started")
        cloud("vm", "stop", "--force", "web")
        with cloud.start("volume", "grow", "web", "data", "16MiB", stderr=subprocess.DEVNULL) as growing:
            tool.pid()
            cloud.kill_agent()
            growing.kill()
        cloud("up")
        with cloud.start(
            "vm", "start", "--wait-for", "started", "web", stderr=subprocess.DEVNULL
        ) as starting:
            time.sleep(1.0)
            assert tool.lives()
            assert starting.poll() is None
            assert processes.processes_in(cloud.group(vm["ip"])) == ()
            tool.go_on()
            assert starting.wait(PATIENCE_S) == 0
        assert not tool.lives()
        assert cloud.show("web")["state"] == "running"
        # As long as it runs, no tool gets the disk either.
        disk = cloud.directory / "node" / "volumes" / vm["ip"] / "data.raw"
        held = subprocess.run(["flock", "--nonblock", disk, "true"])
        assert held.returncode == 1
