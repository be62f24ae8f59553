"""What can be seen of a node from outside: utilisation, metrics, the audit log."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client.parser import text_string_to_metric_families

from atoll.api import hypervisor as api
from atoll.api.changes import VM_CHANGE, ChangeVm
from atoll.api.hypervisor import CreateVm, Wait
from atoll.api.observing import AUDIT, METRICS, UTILISATION, AuditQuery
from atoll.api.route import Done
from atoll.errors import Conflict, Denied, HostFailure, NotFound, Unauthenticated
from atoll.model.vm import VmSpec
from atoll.model.volume import FileSystem, VolumeSpec


async def audit(oper, **query: object) -> list[tuple[str, str, str, str]]:
    lines = [line async for line in oper.stream(AUDIT, query=AuditQuery(**query))]
    assert isinstance(lines.pop(), Done)
    return [(line.user, line.method, line.name or line.target, line.result) for line in lines]


async def test_every_vm_is_measured_and_so_is_the_node(ann, node):
    vm = await ann.create("web", volumes=(VolumeSpec(16, "data", fs=FileSystem.EXT4),))
    seen = await ann.call(UTILISATION)
    assert [(one.ip, one.name, one.state) for one in seen.vms] == [(vm.ip, "web", "running")]
    assert 0 < seen.vms[0].usage.disk_mib < 16
    assert seen.node.cpu_s > 0
    assert 0 < seen.node.memory_mib < seen.memory_mib
    assert seen.cores >= 1


async def test_metrics_are_what_prometheus_reads(ann, oper, node, pki):
    await ann.create("web")
    await oper.call(api.NODE_DRAIN)

    async def fail() -> None:
        raise HostFailure("no space")

    node.background.begin("tidying", fail())
    page = b"".join([chunk async for chunk in ann.download(METRICS)]).decode()
    samples = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }
    assert samples["atoll_node_vms", "running"] == 1
    assert samples["atoll_node_drained",] == 1
    assert samples["atoll_node_free_memory_bytes",] == (1024 - 64) << 20
    assert samples["atoll_node_capacity_cpus",] == 2
    assert samples["atoll_vm_cpu_seconds_total", "10.9.0.5", "web"] == 0
    assert samples["atoll_node_info", "0.1.0", "node1"] == 1
    assert samples["atoll_background_failures_total", "tidying"] == 1
    end = pki.certificate().validity.not_after.timestamp()
    assert samples["atoll_certificate_end_timestamp_seconds",] == end
    assert samples["atoll_loop_lag_seconds_count",] == 0


async def test_metrics_need_a_certificate(node, pki, user_of):
    async with user_of(pki.nobody()) as nobody:
        with pytest.raises(Unauthenticated):
            await nobody.call(UTILISATION)


async def test_who_did_what_is_noted_with_its_result(ann, bob, oper, node):
    await ann.create("web")
    with pytest.raises(Conflict):
        await ann.create("web")
    with pytest.raises(Denied):
        await bob.destroy("web")
    with pytest.raises(Denied):
        await bob.call(api.NODE_DRAIN)
    await ann.call(VM_CHANGE, {"vm": "10.9.0.5"}, body=ChangeVm(name="web2"))
    await ann.halt("web2")
    await ann.show("web2")
    await oper.destroy("web2")
    noted = await audit(oper)
    assert noted[2:] == [
        ("ann", "vm.create", "web", "ok"),
        ("ann", "vm.create", "web", "conflict"),
        ("bob", "vm.destroy", "web", "denied"),
        ("bob", "node.drain", "", "denied"),
        ("ann", "vm.change", "web2", "ok"),
        ("ann", "vm.stop", "web2", "ok"),
        ("oper", "vm.destroy", "web2", "ok"),
    ]
    assert noted[:2] == [("oper", "node.add-subnet", "", "ok"), ("oper", "node.add-address", "", "ok")]
    await node.restart()
    assert await audit(oper) == noted


async def test_what_a_rule_of_a_vm_did_is_noted_as_the_nodes_own(ann, oper, node, until):
    vm = await ann.create("web", destroy_on_power_down=True)
    await node.driver.guest_powers_off(node.machine(vm))
    await until(lambda: node.service.vms.find("web") is None)
    assert (await audit(oper, user="atoll")) == [("atoll", "vm.destroy-on-power-down", "web", "ok")]
    request = CreateVm(VmSpec("web", "tiny", driver="sim", memory_mib=64), acknowledge=True)
    async for _ in ann.stream(api.VM_CREATE, body=request):
        pass
    await until(lambda: node.service.vms.find("web") is None)
    assert (await audit(oper, user="atoll"))[1:] == [("atoll", "vm.undo", "web", "ok")]


async def test_one_who_went_away_before_the_answer_is_noted_as_such(ann, oper, node, until):
    request = CreateVm(VmSpec("web", "tiny", driver="sim", memory_mib=64), wait=Wait("port:9"))
    lines = ann.stream(api.VM_CREATE, body=request)
    async for line in lines:
        if line.stage == "started":
            break
    await lines.aclose()
    async with asyncio.timeout(10):
        while not (noted := await audit(oper, method="vm.create")):
            await asyncio.sleep(0.02)
    assert noted == [("ann", "vm.create", "web", "abandoned")]


async def test_user_data_is_in_no_line_of_the_log(ann, node):
    await ann.create("web", user_data=b"the-secret-of-ann")
    await ann.call(VM_CHANGE, {"vm": "web"}, body=ChangeVm(user_data=b"another-secret"))
    assert b"secret" not in (node.directory / "state" / "audit.jsonl").read_bytes()


async def test_the_log_is_for_operators_and_can_be_narrowed_down(ann, oper):
    with pytest.raises(Denied):
        await audit(ann)
    for name in ("a", "b"):
        await ann.create(name)
    assert await audit(oper, target="b") == [("ann", "vm.create", "b", "ok")]
    assert await audit(oper, target="10.9.0.5") == [("ann", "vm.create", "a", "ok")]
    assert await audit(oper, user="ann", limit=1) == [("ann", "vm.create", "b", "ok")]


async def test_calls_that_change_nothing_do_not_push_out_what_others_did(ann, bob, oper, node):
    await ann.create("web")
    await ann.halt("web")
    path = node.directory / "state" / "audit.jsonl"
    before = path.read_bytes()
    for number in range(30):
        for attempt in (bob.destroy("web"), bob.halt(f"no-{number}"), bob.call(api.NODE_DRAIN)):
            with pytest.raises((Denied, NotFound)):
                await attempt
        await bob.destroy(f"no-{number}")
        await ann.halt("web")
        await ann.call(VM_CHANGE, {"vm": "web"}, body=ChangeVm(protected=False))
    added = path.read_bytes().removeprefix(before).count(b"\n")
    assert added == 6
    lines = [line async for line in oper.stream(AUDIT, query=AuditQuery())][-7:-1]
    assert {(line.user, line.method, line.result): (line.count, line.target) for line in lines} == {
        ("bob", "vm.destroy", "denied"): (29, "10.9.0.5"),
        ("bob", "vm.stop", "not_found"): (29, ""),
        ("bob", "node.drain", "denied"): (29, ""),
        ("bob", "vm.destroy", "ok"): (29, ""),
        ("ann", "vm.stop", "ok"): (29, "10.9.0.5"),
        ("ann", "vm.change", "ok"): (29, "10.9.0.5"),
    }


async def test_a_repeat_with_a_request_id_is_counted_and_every_change_has_its_line(ann, oper, node):
    for _ in range(3):
        await ann.create("web", request_id="r-1")
    for number in range(3):
        await ann.call(VM_CHANGE, {"vm": "web"}, body=ChangeVm(tags={"n": str(number)}))
    lines = [line async for line in oper.stream(AUDIT, query=AuditQuery(user="ann"))][:-1]
    # The first repeat is noted at once, the others when somebody reads, or a minute later.
    kinds = [(line.method, line.count) for line in lines]
    assert kinds == [("vm.create", 1), ("vm.create", 1), *[("vm.change", 1)] * 3, ("vm.create", 1)]
