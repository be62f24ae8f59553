from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.model.event import Event, EventKind
from atoll.model.node import Capacity, Node
from atoll.serving import events
from atoll.serving.events import Events
from samples import a_vm

NODE = Node(
    ip="10.0.0.1",
    name="n1",
    version="1",
    boot_id="b",
    total=Capacity(0, 0, 0),
    free=Capacity(0, 0, 0),
    drivers=(),
    pools=(),
    vms={},
)


def node_events(count: int = 0) -> Events:
    found = Events(lambda: datetime(2024, 1, 1, tzinfo=UTC), lambda: (NODE, ()))
    for _ in range(count):
        found.emit(EventKind.NODE, node=NODE)
    return found


async def numbers(reader: AsyncIterator[Event]) -> list[tuple[str, int]]:
    return [(str(event.kind), event.sequence) async for event in reader]


async def test_a_new_reader_gets_the_full_state_first():
    found = node_events(3)
    assert await numbers(found.read("", 0, follow=False)) == [("state", 3)]


async def test_a_reader_that_resumes_gets_what_it_missed_and_nothing_else():
    found = node_events(5)
    assert await numbers(found.read(found.epoch, 3, follow=False)) == [("node", 4), ("node", 5)]
    assert await numbers(found.read(found.epoch, 5, follow=False)) == []


@pytest.mark.parametrize("sequence", [0, 3, 99])
async def test_a_reader_of_another_epoch_starts_over(sequence: int):
    assert await numbers(node_events(3).read("older", sequence, follow=False)) == [("state", 3)]


async def test_a_reader_from_the_future_starts_over():
    found = node_events(3)
    assert await numbers(found.read(found.epoch, 4, follow=False)) == [("state", 3)]


async def test_a_reader_who_was_away_too_long_starts_over(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(events, "KEPT", 4)
    found = node_events(10)
    assert await numbers(found.read(found.epoch, 5, follow=False)) == [("state", 10)]
    assert await numbers(found.read(found.epoch, 6, follow=False)) == [("node", n) for n in range(7, 11)]


async def test_large_vms_are_kept_for_fewer_changes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(events, "KEPT_BYTES", 100_000)
    found = node_events()
    for number in range(10):
        found.emit(EventKind.CHANGED, vm=a_vm(tags={"large": str(number) * 30_000}))
    assert await numbers(found.read(found.epoch, 6, follow=False)) == [("state", 10)]
    assert await numbers(found.read(found.epoch, 7, follow=False)) == [("changed", n) for n in (8, 9, 10)]


async def test_one_that_is_too_large_to_be_kept_is_told_as_the_state(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(events, "KEPT_BYTES", 100)
    found = node_events(3)
    assert await numbers(found.read(found.epoch, 2, follow=False)) == [("state", 3)]
    assert await numbers(found.read(found.epoch, 3, follow=False)) == []


async def test_a_reader_who_is_too_slow_is_given_the_state_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(events, "KEPT", 2)
    found = node_events()
    async with aclosing(found.read("", 0, follow=True)) as reader:
        assert (await anext(reader)).kind is EventKind.STATE
        for _ in range(5):
            found.emit(EventKind.NODE, node=NODE)
        late = await anext(reader)
    assert (late.kind, late.sequence) == (EventKind.STATE, 5)


async def test_a_reader_who_follows_is_told_as_it_happens():
    found = node_events()
    async with aclosing(found.read("", 0, follow=True)) as reader:
        assert (await anext(reader)).kind is EventKind.STATE
        coming = asyncio.ensure_future(anext(reader))
        await asyncio.sleep(0)
        assert not coming.done()
        found.emit(EventKind.NODE, node=NODE)
        assert (await coming).sequence == 1


async def test_many_readers_get_the_same():
    found = node_events()

    async def first_three() -> list[int]:
        async with aclosing(found.read(found.epoch, 0, follow=True)) as reader:
            return [(await anext(reader)).sequence for _ in range(3)]

    readers = [asyncio.create_task(first_three()) for _ in range(5)]
    for _ in range(3):
        await asyncio.sleep(0)
        found.emit(EventKind.NODE, node=NODE)
    assert await asyncio.gather(*readers) == [[1, 2, 3]] * 5


def test_two_agents_have_different_epochs():
    assert node_events().epoch != node_events().epoch


@given(st.integers(0, 30), st.integers(0, 35))
def test_resuming_never_leaves_a_gap(count: int, after: int):
    async def read() -> list[Event]:
        found = node_events(count)
        return [event async for event in found.read(found.epoch, after, follow=False)]

    got = asyncio.run(read())
    known = after
    for event in got:
        known = event.sequence if event.kind is EventKind.STATE else known
        assert event.kind is EventKind.STATE or event.sequence == known + 1
        known = event.sequence
    assert known == count
