"""A hook at work on targets that take notices, or do not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from atoll.errors import HostFailure, Unreachable
from atoll.model.event import EventKind
from atoll.model.node import Capacity, Node
from atoll.model.vm import VM
from atoll.serving.events import Events
from atoll.serving.hooks import hook as module
from atoll.serving.hooks.backlog import Notice
from atoll.serving.hooks.hook import Hook, wait_s
from atoll.serving.hooks.told import Told
from samples import a_vm

NONE = Capacity(0, 0, 0)
NODE = Node("10.0.0.1", "n1", "1", "b", NONE, NONE, (), (), {})


def vm(name: str = "web", **changes: Any) -> VM:
    return a_vm(name=name, instance_id=f"i-{name}", started_by="cold", **changes)


class Recorder:
    """A target that fails as often as it is told to."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.told: list[Notice] = []
        self.attempts = 0
        self.news = asyncio.Event()

    async def tell(self, notice: Notice) -> None:
        self.attempts += 1
        if self.failures:
            self.failures -= 1
            raise Unreachable("hook: no")
        self.told.append(notice)
        self.news.set()

    async def until(self, *kinds: str) -> None:
        async with asyncio.timeout(5):
            while [str(notice.event) for notice in self.told] != list(kinds):
                self.news.clear()
                await self.news.wait()


class Stage:
    """A node's VMs and its events."""

    def __init__(self, *vms: VM) -> None:
        self.vms = vms
        self.events = Events(lambda: datetime(2024, 1, 1, tzinfo=UTC), lambda: (NODE, self.vms))

    @asynccontextmanager
    async def hook(self, target: Recorder, directory: Path) -> AsyncIterator[Hook]:
        hook = Hook("hook", target, Told(directory), self.events, "n1")
        task = asyncio.ensure_future(hook.run())
        try:
            yield hook
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.fixture(autouse=True)
def _no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_WAIT_S", 0.0)


async def noted(directory: Path, *names: str, text: str = "") -> None:
    """Wait until it is on disk that just these were told."""
    async with asyncio.timeout(5):
        while True:
            with suppress(FileNotFoundError):  # it went while we looked
                found = {path.stem: path.read_text() for path in directory.glob("*.json")}
                if set(found) == set(names) and text in "".join(found.values()):
                    return
            await asyncio.sleep(0.01)


async def test_each_change_is_told_and_nothing_is_told_again_after_a_restart(tmp_path: Path) -> None:
    stage, target = Stage(vm()), Recorder()
    async with stage.hook(target, tmp_path):
        await target.until("created")
        stage.events.emit(EventKind.CHANGED, vm=vm(tags={"a": "b"}))
        await target.until("created", "changed")
        await noted(tmp_path, "i-web", text='{"a":"b"}')
    later, again = Stage(vm(tags={"a": "b"}), vm("db")), Recorder()
    async with later.hook(again, tmp_path):
        await again.until("created")
        assert again.told[0].vm.name == "db"
        later.events.emit(EventKind.DESTROYED, vm=vm("db"))
        await again.until("created", "destroyed")
        await noted(tmp_path, "i-web")
    # And what went while there was no agent is told by the next one.
    last = Recorder()
    async with Stage().hook(last, tmp_path):
        await last.until("destroyed")
        await noted(tmp_path)
    assert last.told[0].vm.tags == {"a": "b"}


async def test_a_target_that_fails_is_tried_again_until_it_takes_the_newest(tmp_path: Path) -> None:
    stage, target = Stage(vm()), Recorder(failures=20)
    async with stage.hook(target, tmp_path):
        await target.until("created")
    assert target.attempts == 21


async def test_what_was_told_and_not_noted_is_told_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Told, notice: Notice) -> None:
        raise HostFailure("no space")

    with monkeypatch.context() as patch:
        patch.setattr(Told, "note", full)
        target = Recorder()
        async with Stage(vm()).hook(target, tmp_path):
            await target.until("created")
    again = Recorder()
    async with Stage(vm()).hook(again, tmp_path):
        await again.until("created")


async def test_a_note_that_cannot_be_read_is_told_again(tmp_path: Path) -> None:
    (tmp_path / "i-web.json").write_text("{")
    target = Recorder()
    async with Stage(vm()).hook(target, tmp_path):
        await target.until("created")


def test_a_target_that_fails_is_left_alone_for_longer_and_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert [wait_s(failures) for failures in (0, 1, 2, 5, 6, 1000)] == [1, 2, 4, 32, 60, 60]
