"""The history of a node: what happened to its VMs, with what changed, across restarts."""

from __future__ import annotations

import asyncio

from atoll.api.changes import VM_CHANGE, ChangeVm
from atoll.api.observing import HISTORY, HistoryQuery
from atoll.api.route import Done
from atoll.model.event import EventKind
from atoll.model.history import FieldChange
from atoll.serving.event_log import AT_ONCE
from atoll.system import clock


async def history(user, **query):
    lines = user.stream(HISTORY, query=HistoryQuery(**query))
    return [line async for line in lines if not isinstance(line, Done)]


async def test_what_happened_is_told_with_what_changed_in_order(ann):
    vm = await ann.create("web")
    await ann.call(VM_CHANGE, {"vm": "web"}, body=ChangeVm(tags={"tier": "front"}))
    await ann.halt("web")
    await ann.destroy("web")
    entries = await history(ann)
    kinds = [entry.kind for entry in entries]
    assert (kinds[0], kinds[-1]) == (EventKind.CREATED, EventKind.DESTROYED)
    assert {entry.ip for entry in entries} == {vm.ip}
    changes = [change for entry in entries for change in entry.changes]
    assert FieldChange("tags", "-", "tier=front") in changes
    assert FieldChange("state", "running", "stopping") in changes
    assert [entry.at for entry in entries] == sorted(entry.at for entry in entries)


async def test_it_is_kept_across_restarts(ann, node):
    await ann.create("web")
    before = await history(ann)
    await node.restart()
    async with node.user("ann") as again:
        assert (await history(again))[: len(before)] == before
        await again.halt("web")
        last = (await history(again))[-1]
    assert last.changes[0] == FieldChange("state", "stopping", "stopped")


async def test_the_latest_those_of_a_vm_and_those_since_can_be_asked_for(ann):
    await ann.create("web")
    middle = clock.now()
    await ann.create("db")
    everything = await history(ann)
    assert await history(ann, limit=2) == everything[-2:]
    assert {entry.name for entry in await history(ann, target="db")} == {"db"}
    assert {entry.name for entry in await history(ann, since=middle)} == {"db"}
    assert await history(ann, target="ghost") == []


async def test_whoever_follows_is_told_of_each_once(ann, node):
    await ann.create("web")
    async with node.user("bob") as bob:
        lines = bob.stream(HISTORY, query=HistoryQuery(follow=True))
        seen = [await anext(lines) for _ in await history(ann)]
        await ann.halt("web")
        seen.append(await asyncio.wait_for(anext(lines), 5))
        assert seen[-1].changes[0] == FieldChange("state", "running", "stopping")
        await lines.aclose()
    assert len(set(seen)) == len(seen)


async def test_it_has_no_more_than_it_may_and_loses_the_oldest(ann, node, monkeypatch):
    from atoll.system.line_log import LineLog

    node.event_log._lines = LineLog(node.directory / "state" / "events.jsonl", 2000, 2)
    await ann.create("web")
    for number in range(200):
        await ann.call(VM_CHANGE, {"vm": "web"}, body=ChangeVm(tags={"n": str(number)}))
    entries = await history(ann)
    kept = sum(path.stat().st_size for path in (node.directory / "state").glob("events.jsonl*"))
    assert kept < 3 * (2000 + AT_ONCE * 200)
    assert entries[-1].changes[-1] == FieldChange("tags", "n=198", "n=199")
    assert entries[0].kind is not EventKind.CREATED


async def test_a_disk_that_takes_nothing_does_not_stop_the_node(ann, node):
    from atoll.errors import HostFailure

    class Full:
        def append(self, lines):
            return [HostFailure("full")] * len(lines)

        parts = ()

    node.event_log._lines = Full()
    await ann.create("web")
    assert await history(ann) == []
    await ann.destroy("web")
