from __future__ import annotations

import asyncio
import logging

import pytest

from atoll.errors import HostFailure
from atoll.serving.supervisor import Pauses, Supervisor

QUICK = Pauses(first_s=0.0, longest_s=0.0)


def test_pauses_grow_and_stay_bounded():
    pauses = Pauses(first_s=0.1, longest_s=30.0)
    assert [pauses.after(n) for n in (1, 2, 3)] == [0.1, 0.2, 0.4]
    assert pauses.after(10_000) == 30.0


@pytest.mark.parametrize("error", [HostFailure("full disk"), ValueError("a bug"), OSError(5, "bad disk")])
async def test_work_that_fails_is_logged_by_name_and_begun_again(error: Exception, caplog):
    begun, again = 0, asyncio.Event()

    async def work() -> None:
        nonlocal begun
        begun += 1
        if begun < 3:
            raise error
        again.set()
        await asyncio.Event().wait()

    async with Supervisor(QUICK) as supervisor:
        supervisor.keep("renewing", work)
        await again.wait()
        assert supervisor.running == ["renewing"]
        assert supervisor.failures == {"renewing": 2}
    messages = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert messages == [f"renewing failed: {error}"] * 2
    # The way to a failure is told where nobody foresaw it.
    assert bool(caplog.records[0].exc_info) == isinstance(error, ValueError)


async def test_work_that_should_never_end_and_does_is_begun_again(caplog):
    ends = [asyncio.Event() for _ in range(2)]
    left = list(ends)

    async def work() -> None:
        if left:
            left.pop(0).set()
        else:
            await asyncio.Event().wait()

    async with Supervisor(QUICK) as supervisor:
        supervisor.keep("watching", work)
        for end in ends:
            await end.wait()
        while supervisor.failures["watching"] < 2:
            await asyncio.sleep(0)
    assert "watching ended, which it never should" in caplog.text


async def test_work_that_ends_by_itself_is_forgotten_and_its_failure_told(caplog):
    async def fail() -> None:
        raise HostFailure("no space")

    async with Supervisor() as supervisor:
        supervisor.begin("noting", fail())
        while supervisor.running:
            await asyncio.sleep(0)
        assert supervisor.failures == {"noting": 1}
    assert "noting failed: no space" in caplog.text


async def test_work_that_must_be_finished_is_begun_again_until_it_is(caplog):
    failures = [HostFailure("no space"), ValueError("what")]

    async def work() -> None:
        if failures:
            raise failures.pop()

    async with Supervisor(QUICK) as supervisor:
        supervisor.finish("emptying", work)
        while supervisor.running:
            await asyncio.sleep(0)
        assert supervisor.failures == {"emptying": 2}
    assert "emptying failed: no space" in caplog.text
    assert "which it never should" not in caplog.text


async def test_work_that_is_cancelled_before_it_begins_is_closed():
    async def work() -> None:
        raise AssertionError("it never begins")

    begun = work()
    async with Supervisor() as supervisor:
        supervisor.begin("noting", begun)
    assert begun.cr_frame is None


async def test_closing_ends_all_work_and_takes_no_more():
    ended: list[str] = []

    async def work(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(name)
            supervisor.begin("more", work("more"))

    supervisor = Supervisor()
    supervisor.keep("a", lambda: work("a"))
    supervisor.begin("b", work("b"))
    supervisor.later(1000.0, "c", lambda: work("c"))
    await asyncio.sleep(0)
    await supervisor.close()
    assert sorted(ended) == ["a", "b"]
    assert supervisor.running == []
