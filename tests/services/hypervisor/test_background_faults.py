"""Faults in what an agent does in the background: it is begun again, gets there in the end, and no VM is touched."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from atoll.api import hypervisor as api
from atoll.api.hypervisor import CreateVm, Wait
from atoll.drivers.machine.base import Exit
from atoll.hypervisor.credentials import Credentials
from atoll.identity.authority import Authority
from atoll.identity.issuers import AuthorityIssuer
from atoll.model.identity import Identity
from atoll.model.network import Address, mac_for
from atoll.model.vm import VM, RestartPolicy, VmSpec, VmState
from atoll.plan.firewall import link_for
from atoll.system import clock, steps

MORE = tuple(Address(f"10.9.0.{last}", mac_for(f"10.9.0.{last}")) for last in range(9, 21))
BUG = "BUG"


def fail_unforeseen() -> None:
    raise RuntimeError("nobody foresaw this")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("atoll.hypervisor.vms.duties.RETRY_S", 0.02)
    monkeypatch.setattr("atoll.hypervisor.launch.templates.CHECK_EVERY_S", 0.05)
    monkeypatch.setattr("atoll.hypervisor.launch.templates.SETTLE_S", 0.01)
    monkeypatch.setattr("atoll.hypervisor.launch.hotpool.SETTLE_S", 0.01)
    yield
    steps.arm("")


@pytest.fixture
async def wide(node: Any) -> Any:
    """A node with so many addresses that a pool may have some."""
    async with node.user("oper") as oper:
        await oper.call(api.NODE_ADD_ADDRESS, body=api.AddAddress("lan", MORE))
    return node


@pytest.mark.parametrize("step", ["template.begun", "template.limited", "template.made", "template.recorded"])
async def test_templates_are_made_again_after_a_failure_that_nobody_foresaw(ann, node, until, step: str):
    other = await ann.create("other")
    (fault,) = steps.arm(f"{step}:1:{BUG}", {BUG: fail_unforeseen})
    await ann.create("first", image="twin")
    await until(lambda: fault.left == 0)
    await ann.create("second", image="twin")
    await until(lambda: node.templates.ready == 1)
    assert node.background.failures == {"making templates": 1}
    assert await ann.show("other") == other
    assert (await ann.create("third", image="twin")).started_by == "fork"


@pytest.mark.parametrize("step", ["pool.begun", "pool.forked", "pool.rehearsed", "pool.parked"])
async def test_the_hot_pool_is_filled_again_after_a_failure_that_nobody_foresaw(ann, wide, until, step: str):
    wide.hot_pool = 1
    await wide.restart()
    other = await ann.create("other")
    steps.arm(f"{step}:1:{BUG}", {BUG: fail_unforeseen})
    await ann.create("first", image="twin")
    await until(lambda: wide.service.pool.waiting == 1)
    assert wide.background.failures == {"filling the hot pool": 1}
    assert await ann.show("other") == other
    assert (await ann.create("second", image="twin")).started_by == "pool"


async def test_a_client_that_goes_while_a_member_gives_way_leaves_no_machine(ann, wide, until, monkeypatch):
    monkeypatch.setattr("atoll.hypervisor.launch.hotpool.CHECK_EVERY_S", 0.01)
    wide.hot_pool = 1
    await wide.restart()
    await ann.create("first", image="twin")
    pool = wide.service.pool
    await until(lambda: pool.waiting == 1)
    (member,) = pool._members.values()
    begun, go_on = asyncio.Event(), asyncio.Event()
    halt = wide.machines.halt

    async def slowly(vm: VM) -> None:
        if vm.ip == member.vm.ip:
            begun.set()
            await go_on.wait()
        await halt(vm)

    wide.machines.halt = slowly
    creating = asyncio.create_task(anext(wide.service.creator.create(_large(), Identity("ann"))))
    await begun.wait()
    creating.cancel()
    await asyncio.wait({creating})
    go_on.set()
    await until(lambda: member not in pool._members.values())
    (first,) = await ann.list()

    def as_told() -> bool:
        """The pool may just be making its next member."""
        there = {path.name for path in (wide.directory / "state" / "vms").iterdir()}
        held = {first.ip, *(ip for _, ip in pool.held())}
        return there == held and wide.network.plugged == set(map(link_for, there))

    await until(as_told)


async def test_an_address_is_not_free_before_the_member_that_had_it_is_gone(ann, wide, until):
    wide.hot_pool = 1
    await wide.restart()
    await ann.create("first", image="twin")
    pool = wide.service.pool
    await until(lambda: pool.waiting == 1)
    ((_, ip),) = pool.held()
    free: list[bool] = []
    wide.faults.hook = lambda step, where: (
        free.append(ip in wide.free()) if (step, where) == ("kill", ip) else None
    )
    pool.on_exit(ip, Exit.CRASHED)
    await until(lambda: free)
    assert free == [False]


def _large() -> CreateVm:
    return CreateVm(VmSpec("large", "tiny", driver="sim", memory_mib=1024 - 64), b"", Wait("started", 5))


@pytest.mark.parametrize("kind", ["ERROR", BUG])
async def test_a_restart_that_is_due_is_done_later_and_others_are_restarted_at_once(
    ann, node, until, kind: str
):
    vms = [await ann.create(name, restart=RestartPolicy.ON_CRASH) for name in ("one", "two")]
    other = await ann.create("other")
    steps.arm(f"duty.begun:1:{kind}", {BUG: fail_unforeseen})
    for vm in vms:
        await node.driver.guest_crashes(node.machine(vm))
    for vm in vms:
        await until(lambda vm=vm: node.service.vms.show(vm.name).restarts == 1)
        await until(lambda vm=vm: node.service.vms.show(vm.name).state is VmState.RUNNING)
    assert await ann.show("other") == other


async def test_an_expiry_that_fails_is_done_later(ann, node, until):
    steps.arm("destroy.halted:1:ERROR")
    vm = await ann.create("web", expires_at=clock.now() + timedelta(seconds=0.1))
    await until(lambda: node.service.vms.find("web") is None)
    assert vm.ip in node.free()
    assert node.traces() == set()


@pytest.mark.parametrize("kind", ["ERROR", BUG])
async def test_a_vm_whose_turn_failed_after_a_reboot_is_started_in_the_end(ann, node, until, kind: str):
    vms = [await ann.create(name) for name in ("one", "two")]
    await node.stop()
    node.reboot_host()
    steps.arm(f"relaunch.begun:1:{kind}", {BUG: fail_unforeseen})
    await node.start()
    for vm in vms:
        await until(lambda vm=vm: node.service.vms.show(vm.name).state is VmState.RUNNING)
    assert node.background.failures == {"starting VMs after a reboot of the host": 1}
    assert node.network.plugged == {link_for(vm.ip) for vm in vms}


async def test_a_full_disk_after_a_reboot_does_not_keep_a_vm_down(ann, node, until):
    vm = await ann.create("web")
    await node.stop()
    node.reboot_host()
    steps.arm("relaunch.begun:1:TELL>write.begin:1:ENOSPC", {"TELL": lambda: None})
    await node.start()
    await until(lambda: node.service.vms.show("web").state is VmState.RUNNING)
    assert node.network.plugged == {link_for(vm.ip)}


async def test_trash_that_cannot_be_removed_is_tried_again(node):
    await node.stop()
    trash = node.directory / "state" / "trash"
    for name in ("one", "two"):
        (trash / name).mkdir()
    steps.arm("trash.removed:1:ERROR")
    await node.start()
    assert list(trash.iterdir()) == []
    assert node.background.failures == {"emptying the trash": 1}


@pytest.mark.parametrize("kind", ["ERROR", BUG])
async def test_credentials_are_issued_again_after_a_failure(
    ann, node, until, tmp_path: Path, monkeypatch, kind: str
):
    monkeypatch.setattr("atoll.hypervisor.credentials.LOOK_EVERY_S", 0.01)
    monkeypatch.setattr("atoll.hypervisor.credentials.RETRY_S", 0.01)
    vm = await ann.create("web")
    vm = await node.service.vms.update(vm, role="web")
    issuer = AuthorityIssuer(Authority.create(tmp_path / "roles", "test").directory, timedelta(hours=1))
    credentials = Credentials(issuer, None, node.service.vms.list)
    (fault,) = steps.arm(f"credentials.issued:1:{kind}", {BUG: fail_unforeseen})
    node.background.keep("renewing the credentials of VMs", credentials.keep)
    try:
        await until(lambda: credentials.of(vm) is not None)
        assert fault.left == 0
    finally:
        credentials.close()
