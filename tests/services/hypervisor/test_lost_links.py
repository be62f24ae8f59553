"""Somebody removes the link of a VM that runs: it is told what is wrong and what to do, and is right again then."""

from __future__ import annotations

import pytest

from atoll.api import hypervisor as api
from atoll.api import observing
from atoll.api.hypervisor import Since
from atoll.api.observing import AuditQuery
from atoll.hypervisor.vms.lost_links import FOLDER_METHOD, METHOD
from atoll.model.vm import VmState
from atoll.plan.firewall import link_for
from atoll.system import files

LINK = link_for("10.9.0.5")
WHY = f"its link {LINK} was removed from the host; for a new one: atoll vm reboot web"


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atoll.hypervisor.vms.lost_links.SETTLE_S", 0.0)


async def lose(node, vm, until) -> None:
    node.faults.lost.add(vm.ip)
    node.signals.link(link_for(vm.ip), False)
    await until(lambda: node.service.vms.show(vm.name).reason)


async def test_it_is_told_once_in_the_record_the_events_and_the_audit_log(ann, oper, node, until):
    vm = await ann.create("web")
    start, *_ = [line async for line in ann.stream(api.EVENTS, query=Since(follow=False))]
    await lose(node, vm, until)
    node.signals.link(LINK, False)
    node.signals.link(None, False)
    lost = await ann.show("web")
    assert (lost.state, lost.reason) == (VmState.RUNNING, WHY)
    entries = [entry async for entry in oper.stream(observing.AUDIT, query=AuditQuery(method=METHOD))][:-1]
    assert [(entry.name, entry.result, entry.brief) for entry in entries] == [("web", "host_failure", WHY)]
    since = Since(start.epoch, start.sequence, follow=False)
    events = [line async for line in ann.stream(api.EVENTS, query=since)][:-1]
    assert [event.vm.reason for event in events if event.vm and event.vm.reason] == [WHY]


@pytest.mark.parametrize("cure", ["reboot", "stop and start"])
async def test_a_new_start_puts_it_right(ann, node, until, cure: str):
    vm = await ann.create("web")
    await lose(node, vm, until)
    if cure == "reboot":
        await ann.reboot("web")
    else:
        await ann.halt("web")
        await ann.begin("web")
    cured = await ann.show("web")
    assert (cured.state, cured.reason) == (VmState.RUNNING, "")
    await ann.destroy("web")
    assert node.traces() == set()


async def test_a_link_that_comes_back_by_itself_is_told_no_longer(ann, node, until):
    vm = await ann.create("web")
    await lose(node, vm, until)
    node.faults.lost.clear()
    node.signals.link(LINK, True)
    await until(lambda: not node.service.vms.show("web").reason)


async def test_the_next_agent_finds_it_out_and_does_not_write_what_is_known(
    ann, node, monkeypatch: pytest.MonkeyPatch
):
    vm = await ann.create("web")
    await node.stop()
    node.faults.lost.add(vm.ip)
    await node.start()
    assert (await ann.show("web")).reason == WHY
    await node.stop()

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("written again")

    with monkeypatch.context() as patch:
        patch.setattr(files, "write_together", refuse)
        await node.start()
    assert (await ann.show("web")).reason == WHY


async def test_a_link_that_goes_with_its_machine_is_no_loss(ann, node):
    vm = await ann.create("web")
    await ann.halt("web")
    node.signals.link(LINK, False)
    node.signals.link("eth0", False)
    assert (await ann.show("web")).reason == ""
    await ann.begin("web")
    node.signals.link(LINK, False)
    assert (await ann.show("web")).reason == ""
    assert vm.ip == "10.9.0.5"


async def test_a_folder_that_is_served_no_longer_is_told_and_put_right_by_a_reboot(ann, oper, node, until):
    vm = await ann.create("web")
    node.faults.lost_folders[vm.ip] = ["data"]
    node.signals.folder(vm.ip)
    node.signals.folder("10.9.0.99")
    await until(lambda: node.service.vms.show("web").reason)
    lost = await ann.show("web")
    why = "its folder data is served no longer; to have it again: atoll vm reboot web"
    assert (lost.state, lost.reason) == (VmState.RUNNING, why)
    entries = [entry async for entry in oper.stream(observing.AUDIT, query=AuditQuery(method=FOLDER_METHOD))]
    assert [(entry.name, entry.brief) for entry in entries[:-1]] == [("web", why)]
    await ann.reboot("web")
    assert (await ann.show("web")).reason == ""
