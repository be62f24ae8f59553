"""Undo: what is run, in which order, and what the caller sees of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest

from atoll.system.undo import Undo


class Broken(Exception):
    pass


async def fails_after(*steps: Callable[[], object]) -> None:
    """An operation that does these steps, given as how to undo them, and then breaks."""
    async with Undo() as undo:
        for step in steps:
            undo.add(step)
        raise Broken


async def test_what_was_done_is_undone_last_first_when_the_block_fails() -> None:
    undone: list[str] = []
    with pytest.raises(Broken):
        await fails_after(lambda: undone.append("tap"), lambda: undone.append("volume"))
    assert undone == ["volume", "tap"]


async def test_nothing_is_undone_after_commit() -> None:
    undone: list[str] = []
    async with Undo() as undo:
        undo.add(undone.append, "tap")
        undo.commit()
    assert undone == []


async def test_what_is_added_after_commit_is_still_undone() -> None:
    undone: list[str] = []
    async with Undo() as undo:
        undo.add(undone.append, "kept")
        undo.commit()
        undo.add(undone.append, "later")
    assert undone == ["later"]


async def test_a_block_that_forgets_to_commit_is_undone() -> None:
    undone: list[str] = []
    async with Undo() as undo:
        undo.add(undone.append, "tap")
    assert undone == ["tap"]


async def test_coroutine_functions_are_awaited() -> None:
    undone: list[str] = []

    async def delete() -> None:
        await asyncio.sleep(0)
        undone.append("volume")

    with pytest.raises(Broken):
        await fails_after(delete)
    assert undone == ["volume"]


async def test_a_failing_step_is_logged_and_hides_neither_the_rest_nor_the_first_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    undone: list[str] = []

    def stuck() -> None:
        raise OSError("device busy")

    with caplog.at_level(logging.ERROR), pytest.raises(Broken):
        await fails_after(lambda: undone.append("tap"), stuck, lambda: undone.append("volume"))
    assert undone == ["volume", "tap"]
    assert "device busy" in caplog.text


async def test_a_cancelled_block_is_undone_and_stays_cancelled() -> None:
    undone: list[str] = []
    inside = asyncio.Event()

    async def operation() -> None:
        async with Undo() as undo:
            undo.add(undone.append, "tap")
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(operation())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert undone == ["tap"]


async def test_a_cancellation_while_undoing_waits_until_all_is_undone() -> None:
    undone: list[str] = []
    undoing, go_on = asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        undoing.set()
        await go_on.wait()
        undone.append("slow")

    task = asyncio.create_task(fails_after(lambda: undone.append("first"), slow))
    await undoing.wait()
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    go_on.set()
    with pytest.raises(Broken):
        await task
    assert undone == ["slow", "first"]


async def test_a_cancellation_while_undoing_without_an_error_is_not_lost() -> None:
    undoing, go_on = asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        undoing.set()
        await go_on.wait()

    async def operation() -> None:
        async with Undo() as undo:
            undo.add(slow)

    task = asyncio.create_task(operation())
    await undoing.wait()
    task.cancel()
    await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
