"""Calls that are open end when their caller may not go on; and nobody has more than their share of them."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
from aiohttp import WSCloseCode, WSMsgType

from atoll.api import given, server
from atoll.api import hypervisor as api
from atoll.api.changes import VM_CHANGE, ChangeVm
from atoll.api.given import SetOwners
from atoll.api.hypervisor import Attach, CreateVm, Follow, Since, Wait
from atoll.api.reaching import current
from atoll.api.volumes import VOLUME_UPLOAD, UploadVolume
from atoll.errors import AtollError, Denied, TooMany, Unauthenticated
from atoll.model.vm import VmSpec
from atoll.serving.user_limits import UserLimits
from atoll.system import clock

PATIENCE_S = 5


@pytest.fixture(autouse=True)
def quick_heartbeat(monkeypatch):
    """Clients that go away are noticed soon."""
    monkeypatch.setattr(server, "HEARTBEAT_S", 0.1)


async def follow(who, route=api.EVENTS, query=None):
    async for _ in who.stream(route, query=query or Since()):
        pass


async def join(who):
    """The console; it ends with its reason as an error."""
    async with who.connect(api.VM_CONSOLE, {"vm": "web"}, query=Attach()) as socket:
        while (message := await socket.receive()).type in (WSMsgType.BINARY, WSMsgType.TEXT):
            pass
        assert message.data == WSCloseCode.POLICY_VIOLATION
        raise AtollError(message.extra)


async def send(who):
    async def endless():
        while True:
            yield b"x"
            await asyncio.sleep(0.05)

    wanted = UploadVolume("0" * 64, size_mib=4)
    await who.upload(VOLUME_UPLOAD, {"vm": "web", "volume": "data"}, endless(), query=wanted)


async def create(who, name: str = "slow"):
    spec = VmSpec(name, "tiny", driver="sim", memory_mib=64)
    async for _ in who.stream(api.VM_CREATE, body=CreateVm(spec, wait=Wait("port:9", 60))):
        pass


@asynccontextmanager
async def all_open(node, who, besides: int = 0):
    """Each kind of call that goes on for ever, besides so many others that are open."""
    works = [follow(who), follow(who, api.LEASE_LIST, Follow(follow=True)), join(who), send(who), create(who)]
    tasks = [asyncio.create_task(work) for work in works]
    try:
        async with asyncio.timeout(PATIENCE_S):
            while len(node.gate.calls) != besides + len(tasks):
                await asyncio.sleep(0.01)
            while len(node.service.vms.list()) < 2 or len(node.service.vms.show("web").volumes) < 2:
                await asyncio.sleep(0.01)
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_certificate_that_is_revoked_ends_all_that_it_opened_and_nothing_else(node, ann, pki, until):
    async with node.user("rita") as rita:
        await rita.create("web")
        others = asyncio.create_task(follow(ann))
        async with all_open(node, rita, besides=1) as tasks:
            pki.authority.revoke_subject("rita")
            node.revocations.look_again()
            ended = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), PATIENCE_S)
    assert [type(error) for error in ended].count(Unauthenticated) == 4
    assert all("the certificate of rita was revoked" in str(error) for error in ended), ended
    assert len(node.gate.calls) == 1
    assert not others.done()
    others.cancel()
    # Half of an upload is gone; a VM that runs stays, as if its creator had gone away.
    await until(lambda: len(node.service.vms.show("web").volumes) == 1)
    assert node.service.vms.show("slow").owner_users == ("rita",)


async def test_a_certificate_that_expires_ends_all_that_it_opened(node):
    async with node.user("xena") as xena:
        await xena.create("web")
        async with all_open(node, xena) as tasks:
            node.gate_now = lambda: clock.now() + timedelta(days=3650)
            ended = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), PATIENCE_S)
    assert all("the certificate of xena expired" in str(error) for error in ended), ended


async def test_who_loses_a_vm_loses_its_console_and_what_they_were_sending_to_it(node, ann, bob):
    await ann.create("web", owner_users=("ann", "bob"))
    async with all_open(node, ann) as (events, leases, console, upload, creating):
        await bob.call(VM_CHANGE, {"vm": "web"}, body=ChangeVm(owner_users=("bob",)))
        done, _ = await asyncio.wait((console, upload), timeout=PATIENCE_S)
        assert len(done) == 2
        assert "ann may not call vm.console on VM web" in str(console.exception())
        assert isinstance(upload.exception(), Denied)
        assert not any(task.done() for task in (events, leases, creating))


async def test_an_operator_who_is_none_any_more_loses_the_consoles_of_others(node, ann, oper):
    await ann.create("web")
    await oper.call(given.NODE_SET_OWNERS, body=SetOwners(users=("olga",)))
    async with node.user("olga") as olga:
        console = asyncio.create_task(join(olga))
        async with asyncio.timeout(PATIENCE_S):
            while not len(node.gate.calls):
                await asyncio.sleep(0.01)
        await oper.call(given.NODE_SET_OWNERS, body=SetOwners())
        with pytest.raises(AtollError, match="olga may not call vm.console on VM web"):
            await asyncio.wait_for(console, PATIENCE_S)


async def test_a_creator_who_has_lost_the_vm_meanwhile_is_not_shown_what_is_its_owners(node, ann, bob):
    spec = VmSpec("web", "tiny", driver="sim", memory_mib=64, owner_users=("ann", "bob"))
    request = CreateVm(spec, b"1", Wait("port:9", 30), "r-1")
    lines = ann.stream(api.VM_CREATE, body=request)
    async for line in lines:
        if line.stage == "started":
            break
    vm = await bob.call(VM_CHANGE, {"vm": "web"}, body=ChangeVm(owner_users=("bob",)))
    node.signals.reached(vm.ip, "port:9")
    last = [line async for line in lines][-1].result
    assert (last.instance_id, last.request_id, last.user_data_sha256) == (vm.instance_id, "", "")


# --- shares


async def limited(node, **limits: int) -> None:
    await node.stop()
    node.user_limits = UserLimits(**limits)
    await node.start()


async def test_who_calls_too_often_is_told_when_to_come_back(node, pki, ann, bob, oper):
    await limited(node, calls_per_s=2)
    with pytest.raises(TooMany, match="ann calls more than 2 times a second") as refusal:
        for _ in range(20):
            await ann.list()
    assert refusal.value.exit_status == 9
    assert "user_limits.calls_per_s" in refusal.value.hint
    url = f"https://127.0.0.1:{node.port}/v1/vms"
    async with ann._open_session().get(url, ssl=current(pki.user("ann"))) as response:
        assert (response.status, response.headers["Retry-After"]) == (429, "1")
    await bob.list()
    for _ in range(20):
        await oper.list()
    await asyncio.sleep(float(response.headers["Retry-After"]))
    await ann.list()


async def test_nobody_has_more_streams_open_than_their_share(node, ann, bob, oper, until):
    await limited(node, streams=2)
    tasks = [asyncio.create_task(follow(ann)) for _ in range(2)]
    await until(lambda: len(node.gate.calls) == 2)
    with pytest.raises(TooMany, match="ann has 2 streams open, and may have 2"):
        await follow(ann)
    others = [asyncio.create_task(follow(who)) for who in (bob, oper, oper, oper)]
    await until(lambda: len(node.gate.calls) == 6)
    await ann.create("web")
    tasks[0].cancel()
    await until(lambda: len(node.gate.calls) == 5)
    tasks.append(asyncio.create_task(follow(ann)))
    await until(lambda: len(node.gate.calls) == 6)
    for task in (*tasks, *others):
        task.cancel()


async def test_nobody_has_more_vms_under_way_than_their_share(node, ann, bob, until):
    await limited(node, launches=1)
    first = asyncio.create_task(create(ann, "one"))
    await until(lambda: node.service.vms.find("one") is not None)
    for attempt in (create(ann, "two"), ann.begin("one"), ann.reboot("one")):
        with pytest.raises(TooMany, match="ann has 1 launches open, and may have 1"):
            await attempt
    await bob.create("three")
    first.cancel()
    await until(lambda: not len(node.gate.calls))
    await ann.create("two")
    assert {vm.name for vm in await ann.list()} == {"one", "two", "three"}
