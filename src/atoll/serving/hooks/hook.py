"""A hook at work: reads the node's events, and tells its target one thing at a time. Effects: through both.

What was delivered is noted on disk afterwards, so each change is told at least once, also across a restart. A
target that fails is tried again, later each time; nobody waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable
from pathlib import Path

from atoll.errors import AtollError
from atoll.serving.events import Events
from atoll.serving.hooks.backlog import Backlog, Notice
from atoll.serving.hooks.config import HookConfig
from atoll.serving.hooks.targets import Target, target_of
from atoll.serving.hooks.told import Told
from atoll.system import files

FIRST_WAIT_S = 1.0
LONGEST_WAIT_S = 60.0

log = logging.getLogger(__name__)


class Hook:
    """`name` is for logs."""

    def __init__(self, name: str, target: Target, told: Told, events: Events, node: str) -> None:
        self._name = name
        self._target = target
        self._told = told
        self._events = events
        self._node = node

    async def run(self) -> None:
        """For ever."""
        backlog = Backlog(self._node, await asyncio.to_thread(self._told.load))
        news = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._read(backlog, news))
            group.create_task(self._tell(backlog, news))

    async def _read(self, backlog: Backlog, news: asyncio.Event) -> None:
        async with contextlib.aclosing(self._events.read("", 0, follow=True)) as events:
            async for event in events:
                backlog.take(event)
                news.set()

    async def _tell(self, backlog: Backlog, news: asyncio.Event) -> None:
        failures = 0
        while True:
            news.clear()
            notice = backlog.next()
            if notice is None:
                await news.wait()
            elif await self._deliver(notice, failures):
                failures = 0
                backlog.delivered(notice)
            else:
                backlog.failed(notice)
                await asyncio.sleep(wait_s(failures))
                failures += 1

    async def _deliver(self, notice: Notice, failures: int) -> bool:
        what = f"{notice.event} of VM {notice.vm.name}"
        try:
            await self._target.tell(notice)
        except AtollError as error:
            # The first of a row is worth a warning; what is down for a day need not fill the log.
            level = logging.WARNING if failures == 0 else logging.DEBUG
            log.log(level, "%s: not told: %s", what, error)
            return False
        if failures:
            log.info("hook %s takes notices again", self._name)
        try:
            await asyncio.to_thread(self._told.note, notice)
        except AtollError as error:
            log.error("hook %s: %s: told, and not noted: %s", self._name, what, error)
        return True


def wait_s(failures: int) -> float:
    """How long after so many failures in a row, and one more. Pure."""
    return min(FIRST_WAIT_S * 2.0 ** min(failures, 16), LONGEST_WAIT_S)


def make_hooks(
    configs: Iterable[HookConfig], directory: Path, events: Events, node: str, outside: str | None
) -> list[Hook]:
    """One for each, which keep their notes in the directory. Notes of hooks that are no more go."""
    made = {
        config.id: Hook(config.name, target_of(config, outside), Told(directory / config.id), events, node)
        for config in configs
    }
    if directory.is_dir():
        for old in directory.iterdir():
            if old.name not in made:
                files.remove_tree(old)
    return list(made.values())
