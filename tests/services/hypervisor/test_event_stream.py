"""Events: the full state, then every change, and a place to resume from."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing

import pytest

from atoll.api import hypervisor as api
from atoll.api.changes import VM_CHANGE, ChangeVm
from atoll.api.hypervisor import AddAddress, Since
from atoll.api.route import Done
from atoll.errors import HostFailure, Malformed
from atoll.hypervisor.news import EVERY_S
from atoll.model.event import Event, EventKind
from atoll.model.network import Address, mac_for
from atoll.model.node import Node


async def past(user, since: Event | None = None) -> list[Event]:
    """All that happened, or all since then."""
    query = Since(since.epoch, since.sequence, follow=False) if since else Since(follow=False)
    *found, last = [line async for line in user.stream(api.EVENTS, query=query)]
    assert last == Done(None)
    return found


def short(events: list[Event]) -> list[tuple[str, str]]:
    return [(str(event.kind), event.vm.state if event.vm else "") for event in events]


async def next_of_vm(events: AsyncIterator[Event]) -> Event:
    async with asyncio.timeout(5):
        async for event in events:
            if event.vm is not None:
                return event
    raise AssertionError("the stream ended")


async def news_until(user, wanted: Callable[[Node], bool], since: Event) -> list[Node]:
    """What is told of the node, up to what is wanted."""
    told: list[Node] = []
    async with asyncio.timeout(5), aclosing(user.stream(api.EVENTS, query=as_since(since))) as events:
        async for event in events:
            told += [event.node] if event.kind is EventKind.NODE else []
            if told and wanted(told[-1]):
                return told
    raise AssertionError("the stream ended")


def as_since(event: Event) -> Since:
    return Since(event.epoch, event.sequence)


async def test_the_first_event_is_the_full_state(ann):
    vm = await ann.create("web")
    state, *_ = await past(ann)
    assert state.kind is EventKind.STATE
    assert state.vms == (vm,)
    assert state.node == await ann.node()


async def test_every_change_is_told_in_order(ann):
    start, *_ = await past(ann)
    await ann.create("web")
    await ann.halt("web")
    await ann.destroy("web")
    events = await past(ann, start)
    told = list(dict.fromkeys(short([event for event in events if event.vm])))
    assert told == [
        ("created", "starting"),
        ("changed", "running"),
        ("changed", "stopping"),
        ("changed", "stopped"),
        ("changed", "destroying"),
        ("destroyed", "destroying"),
    ]
    assert [event.sequence for event in events] == list(
        range(start.sequence + 1, start.sequence + 1 + len(events))
    )


async def test_what_is_free_of_the_node_is_told_whenever_it_changes(ann, oper):
    start, *_ = await past(ann)
    free = start.node.free.memory_mib
    vm = await ann.create("web")
    (*_, less) = await news_until(ann, lambda node: node.free.memory_mib == free - vm.memory_mib, start)
    assert vm.ip not in {one.ip for one in less.pools[0].free}
    await ann.call(VM_CHANGE, params={"vm": "web"}, body=ChangeVm(memory_mib=vm.memory_mib + 16))
    await news_until(ann, lambda node: node.free.memory_mib == free - vm.memory_mib - 16, start)
    await ann.destroy("web")
    await news_until(ann, lambda node: node.free.memory_mib == free and not node.vms, start)
    more = AddAddress("lan", (Address("10.9.0.99", mac_for("10.9.0.99")),))
    await oper.call(api.NODE_ADD_ADDRESS, body=more)
    await news_until(ann, lambda node: "10.9.0.99" in {one.ip for one in node.pools[0].free}, start)
    await oper.call(api.NODE_DRAIN)
    await news_until(ann, lambda node: node.drained, start)


async def test_many_changes_of_the_node_are_told_together(ann, oper, node):
    start = (await past(ann))[-1]  # what was changed to furnish the node may still be told after it
    began = asyncio.get_running_loop().time()
    for number in range(100, 150):
        one = Address(f"10.9.0.{number}", mac_for(f"10.9.0.{number}"))
        await oper.call(api.NODE_ADD_ADDRESS, body=AddAddress("lan", (one,)))
    told = await news_until(ann, lambda node: len(node.pools[0].free) == 4 + 50, start)
    assert len(told) <= (asyncio.get_running_loop().time() - began) / EVERY_S + 2
    assert told[-1] == await ann.node()


async def test_what_was_seen_and_what_is_there_are_the_same(ann, node):
    """A reader that applies every event to the state it began with has what a list shows."""
    start, *_ = await past(ann)
    node.faults.hook = lambda step, ip: fail() if step == "start" and ip.endswith("6") else None

    def fail() -> None:
        raise HostFailure("told to fail")

    await asyncio.gather(*(ann.create(name) for name in "abcd"), return_exceptions=True)
    await ann.halt("a")
    await ann.destroy("c")
    known = {vm.ip: vm for vm in start.vms}
    for event in await past(ann, start):
        if event.kind is EventKind.DESTROYED:
            del known[event.vm.ip]
        elif event.vm is not None:
            known[event.vm.ip] = event.vm
    assert known == {vm.ip: vm for vm in await ann.list()}
    assert len(known) == 2


async def test_a_reader_is_told_as_it_happens_and_resumes_where_it_was(ann, bob):
    async with aclosing(bob.stream(api.EVENTS, query=Since())) as events:
        assert (await anext(events)).kind is EventKind.STATE
        creating = asyncio.create_task(ann.create("web"))
        seen = await next_of_vm(events)
        assert (seen.kind, seen.vm.name) == (EventKind.CREATED, "web")
        await creating
    missed = await past(bob, seen)
    assert missed[0].sequence == seen.sequence + 1
    assert [event.vm for event in missed if event.vm][-1] == await ann.show("web")


async def test_a_reader_with_nothing_new_waits_and_is_not_refused(ann, monkeypatch):
    monkeypatch.setattr("atoll.api.server.HEARTBEAT_S", 0.03)
    start, *_ = await past(ann)
    async with aclosing(ann.stream(api.EVENTS, query=Since(start.epoch, start.sequence))) as events:
        coming = asyncio.ensure_future(next_of_vm(events))
        await asyncio.sleep(0.1)
        assert not coming.done()
        await ann.create("web")
        assert (await asyncio.wait_for(coming, 5)).kind is EventKind.CREATED


async def test_a_new_agent_is_a_new_epoch(ann, node):
    await ann.create("web")
    before, *_ = await past(ann)
    await node.restart()
    after, *_ = await past(ann, before)
    assert after.kind is EventKind.STATE
    assert after.epoch != before.epoch
    assert [vm.name for vm in after.vms] == ["web"]


async def test_a_reader_that_went_away_is_not_kept(ann, node, until, monkeypatch):
    monkeypatch.setattr("atoll.api.server.HEARTBEAT_S", 0.03)
    async with aclosing(ann.stream(api.EVENTS, query=Since())) as events:
        await anext(events)
        await until(lambda: node.service.events._news._waiters)
    await until(lambda: not node.service.events._news._waiters)


async def test_a_place_that_makes_no_sense_is_refused(ann):
    with pytest.raises(Malformed, match="sequence '-1'"):
        await ann.stream_raw(api.EVENTS, b"", "?sequence=-1")
