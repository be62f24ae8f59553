"""A create that is given up: undone at once, with a reason in events and audit."""

from __future__ import annotations

import asyncio

import pytest

from atoll.api import hypervisor as api
from atoll.api.changes import VM_ABANDON, VM_ACKNOWLEDGE
from atoll.api.hypervisor import CreateVm, Wait
from atoll.api.observing import AUDIT, AuditQuery
from atoll.api.route import Done
from atoll.errors import Conflict, Denied
from atoll.model.event import EventKind
from atoll.model.vm import VmSpec


def request(**fields) -> CreateVm:
    spec = VmSpec("web", "tiny", driver="sim", memory_mib=64)
    return CreateVm(spec, **({"wait": Wait("port:9"), "acknowledge": True} | fields))


async def ip_at(lines, stage: str) -> str:
    """The address of what is being made, when it has come so far."""
    async for line in lines:
        if line.stage == stage:
            return line.ip
    raise AssertionError(f"it never came as far as {stage}")


def reasons(node) -> list[str]:
    """Why those went that are gone, by the events that are kept."""
    return [event.vm.reason for event in node.service.events._kept if event.kind is EventKind.DESTROYED]


async def audited(oper, method: str):
    lines = oper.stream(AUDIT, query=AuditQuery(method=method))
    return [line async for line in lines if not isinstance(line, Done)]


@pytest.mark.parametrize("stage", ["address", "volume", "started", "dhcp"])
async def test_when_it_is_given_up_nothing_is_left_and_events_say_why(ann, node, oper, stage: str):
    lines = ann.stream(api.VM_CREATE, body=request())
    ip = await ip_at(lines, stage)
    async with node.user("ann") as again:
        await again.call(VM_ABANDON, {"vm": ip})
    assert await oper.list() == ()
    assert node.traces() == set()
    assert len(node.free()) == 4
    (reason,) = reasons(node)
    assert reason.startswith("its create was given up by ann when it had come as far as ")
    await lines.aclose()
    (entry,) = await audited(oper, "vm.abandon")
    assert (entry.user, entry.result, entry.target) == ("ann", "ok", ip)


async def test_what_is_being_launched_is_broken_off(ann, node, oper):
    async with node.starts_held():
        lines = ann.stream(api.VM_CREATE, body=request())
        ip = await ip_at(lines, "volume")
        async with node.user("ann") as again:
            await asyncio.wait_for(again.call(VM_ABANDON, {"vm": ip}), 5)
        with pytest.raises(Conflict, match="given up by ann when it had come as far as volume"):
            await anext(lines)
    assert node.traces() == set()
    (entry,) = await audited(oper, "vm.create")
    assert (entry.result, entry.user) == ("conflict", "ann")
    assert "given up by ann" in entry.brief


async def test_a_creator_that_hangs_up_has_a_reason_in_events_and_audit(ann, node, oper, until, monkeypatch):
    monkeypatch.setattr("atoll.api.server.HEARTBEAT_S", 0.1)
    async with node.starts_held():
        lines = ann.stream(api.VM_CREATE, body=request())
        await ip_at(lines, "volume")
        await lines.aclose()
        await until(lambda: not node.service.vms.list())
    assert reasons(node) == ["its creator ann hung up when it had come as far as volume"]
    (entry,) = await audited(oper, "vm.create")
    assert (entry.result, entry.brief) == ("abandoned", reasons(node)[0])


async def test_what_is_not_acknowledged_says_so(ann, node, until):
    lines = [line async for line in ann.stream(api.VM_CREATE, body=request(wait=Wait("dhcp")))]
    assert isinstance(lines[-1], Done)
    await until(lambda: not node.service.vms.list())
    assert reasons(node) == ["its creator ann did not say in time that they were told of it"]


async def test_what_is_gone_is_given_up_again(ann):
    await ann.call(VM_ABANDON, {"vm": "10.1.0.77"})


async def test_what_its_creator_was_told_of_stays(ann, node):
    vm = await ann.create("web")
    with pytest.raises(Conflict, match="is made, and its creator was told of it"):
        await ann.call(VM_ABANDON, {"vm": vm.ip})
    lines = [
        line
        async for line in ann.stream(
            api.VM_CREATE, body=CreateVm(VmSpec("db", "tiny", driver="sim", memory_mib=64), acknowledge=True)
        )
    ]
    ip = lines[-1].result.ip
    await ann.call(VM_ACKNOWLEDGE, {"vm": ip})
    with pytest.raises(Conflict):
        await ann.call(VM_ABANDON, {"vm": ip})
    assert {vm.name for vm in await ann.list()} == {"web", "db"}


async def test_nobody_else_gives_up_what_somebody_makes(ann, bob, node):
    lines = ann.stream(api.VM_CREATE, body=request())
    ip = await ip_at(lines, "started")
    with pytest.raises(Denied):
        await bob.call(VM_ABANDON, {"vm": ip})
    assert node.service.vms.find(ip) is not None
    await lines.aclose()
