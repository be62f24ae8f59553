"""Events: the full state, then every change, and a place to resume from."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from atoll.api import hypervisor as api
from atoll.api.hypervisor import AddAddress, Since
from atoll.api.route import Done
from atoll.errors import HostFailure, Malformed
from atoll.model.event import Event, EventKind
from atoll.model.network import Address, mac_for


async def past(user, since: Event | None = None) -> list[Event]:
    """All that happened, or all since then."""
    query = Since(since.epoch, since.sequence, follow=False) if since else Since(follow=False)
    *found, last = [line async for line in user.stream(api.EVENTS, query=query)]
    assert last == Done(None)
    return found


def short(events: list[Event]) -> list[tuple[str, str]]:
    return [(str(event.kind), event.vm.state if event.vm else "") for event in events]


async def test_the_first_event_is_the_full_state(ann):
    vm = await ann.create("web")
    (state,) = await past(ann)
    assert state.kind is EventKind.STATE
    assert state.vms == (vm,)
    assert state.node == await ann.node()


async def test_every_change_is_told_in_order(ann, oper):
    (start,) = await past(ann)
    await ann.create("web")
    await ann.halt("web")
    await ann.destroy("web")
    more = AddAddress("lan", (Address("10.9.0.99", mac_for("10.9.0.99")),))
    await oper.call(api.NODE_ADD_ADDRESS, body=more)
    events = await past(ann, start)
    told = list(dict.fromkeys(short(events)))
    assert told == [
        ("created", "starting"),
        ("changed", "running"),
        ("changed", "stopping"),
        ("changed", "stopped"),
        ("changed", "destroying"),
        ("destroyed", "destroying"),
        ("node", ""),
    ]
    assert [event.sequence for event in events] == list(
        range(start.sequence + 1, start.sequence + 1 + len(events))
    )


async def test_what_was_seen_and_what_is_there_are_the_same(ann, node):
    """A reader that applies every event to the state it began with has what a list shows."""
    (start,) = await past(ann)
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
        seen = await asyncio.wait_for(anext(events), 5)
        assert (seen.kind, seen.vm.name) == (EventKind.CREATED, "web")
        await creating
    missed = await past(bob, seen)
    assert missed[0].sequence == seen.sequence + 1
    assert missed[-1].vm == await ann.show("web")


async def test_a_reader_with_nothing_new_waits_and_is_not_refused(ann, monkeypatch):
    monkeypatch.setattr("atoll.api.server.HEARTBEAT_S", 0.03)
    (start,) = await past(ann)
    async with aclosing(ann.stream(api.EVENTS, query=Since(start.epoch, start.sequence))) as events:
        coming = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0.1)
        assert not coming.done()
        await ann.create("web")
        assert (await asyncio.wait_for(coming, 5)).kind is EventKind.CREATED


async def test_a_new_agent_is_a_new_epoch(ann, node):
    await ann.create("web")
    (before,) = await past(ann)
    await node.restart()
    (after,) = await past(ann, before)
    assert after.kind is EventKind.STATE
    assert after.epoch != before.epoch
    assert [vm.name for vm in after.vms] == ["web"]


async def test_a_reader_that_went_away_is_not_kept(ann, node, until, monkeypatch):
    monkeypatch.setattr("atoll.api.server.HEARTBEAT_S", 0.03)
    async with aclosing(ann.stream(api.EVENTS, query=Since())) as events:
        await anext(events)
        waiting = node.service.events._news
        assert waiting._waiters
    await until(lambda: not waiting._waiters)


async def test_a_place_that_makes_no_sense_is_refused(ann):
    with pytest.raises(Malformed, match="sequence '-1'"):
        await ann.stream_raw(api.EVENTS, b"", "?sequence=-1")
