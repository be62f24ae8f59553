"""Undo as a list: each step that is done says how it would be undone. Runs only what it was given."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

log = logging.getLogger(__name__)


class Undo:
    """Runs what was added, last first, unless `commit` was called before the block ended.

    A cancellation that arrives while undoing waits until all is undone. A failure while undoing is logged
    and keeps neither the rest from being undone nor the first error from being seen.
    """

    def __init__(self) -> None:
        self._steps: list[Callable[[], object]] = []

    def add(self, function: Callable[..., object], *args: Any) -> None:
        """Remember how to undo what was just done: a function or a coroutine function."""
        self._steps.append(lambda: function(*args))

    def commit(self) -> None:
        """All is well: forget everything that was added so far."""
        self._steps.clear()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._steps:
            return
        undoing = asyncio.ensure_future(self._undo())
        cancelled: asyncio.CancelledError | None = None
        while not undoing.done():
            try:
                await asyncio.shield(undoing)
            except asyncio.CancelledError as late:
                cancelled = late
        # The error that brought us here goes on by itself; a cancellation must not get lost without one.
        if cancelled is not None and error is None:
            raise cancelled

    async def _undo(self) -> None:
        while self._steps:
            step = self._steps.pop()
            try:
                result = step()
                if inspect.isawaitable(result):
                    await result
            except (Exception, asyncio.CancelledError):
                log.exception("undoing a failed operation: one step failed, the others go on")
