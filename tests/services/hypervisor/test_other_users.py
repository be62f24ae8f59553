"""As another user: what was one's own and is no longer, and what never was."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import AsyncIterator

import pytest
from aiohttp import WSCloseCode
from msgspec import structs

from atoll.api import hypervisor as api
from atoll.api.changes import VM_BECOME_PRIMARY_OWNER, VM_CHANGE, ChangeVm
from atoll.api.hypervisor import Attach, Since
from atoll.api.route import Done
from atoll.api.volumes import (
    VOLUME_ADD,
    VOLUME_CHANGE,
    VOLUME_DELETE,
    VOLUME_REORDER,
    VOLUME_UPLOAD,
    AddVolume,
    ChangeVolume,
    UploadVolume,
    VolumeOrder,
)
from atoll.drivers.machine.sim import SimDriver
from atoll.errors import Denied, HostFailure, NotFound
from atoll.hypervisor.consoles import bootlog
from atoll.model.volume import FileSystem, VolumeFormat, VolumeSpec
from atoll.system import disks

CONTENT = b"x" * 1000
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGn2mVTfDhJhmGfA2kAhKrlUg9oxvxK7KvmX8tRZcV3N ann@home"
NEW = VolumeSpec(8, "new")
DATA = VolumeSpec(8, "data", fs=FileSystem.EXT4)


async def last(lines):
    return [line async for line in lines][-1].result


async def taken_by(bob):
    """Bob was one of two owners, and takes the other one off."""
    return await bob.call(VM_CHANGE, {"vm": "web"}, body=ChangeVm(owner_users=("bob",)))


class Slow:
    """The content of an upload that comes in two pieces: the second when it is told to."""

    def __init__(self, content: bytes, first: int) -> None:
        self.begun = asyncio.Event()
        self.go_on = asyncio.Event()
        self._pieces = content[:first], content[first:]
        self.sha256 = hashlib.sha256(content).hexdigest()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._pieces[0]
        self.begun.set()
        await self.go_on.wait()
        yield self._pieces[1]


def begin_upload(who, slow: Slow, **query: object) -> asyncio.Task:
    wanted = UploadVolume(slow.sha256, **query)
    params = {"vm": "web", "volume": "data"}
    return asyncio.create_task(who.upload(VOLUME_UPLOAD, params, slow.__aiter__(), query=wanted))


async def fill(ann) -> None:
    """All addresses but one are taken: the next VM gets the one that is given back."""
    for number in range(3):
        await ann.create(f"other{number}")


async def replaced_by(bob, ann):
    """Ann's VM goes, and the next one at its address is Bob's."""
    before = await ann.show("web")
    await ann.destroy("web")
    after = await bob.create("web")
    assert after.ip == before.ip
    return after


# --- uploads


async def test_an_upload_never_reaches_the_next_vm_at_that_address(ann, bob, node, tmp_path):
    await ann.create("web")
    await fill(ann)
    image = tmp_path / "disk.qcow2"
    image.touch()
    await disks.make_qcow2(image, 4)
    slow = Slow(image.read_bytes(), first=16)  # less than tells how large a volume it is for
    upload = begin_upload(ann, slow, format=VolumeFormat.QCOW2)
    await slow.begun.wait()
    await asyncio.sleep(0.1)  # it is on its way, and shows nowhere yet
    theirs = await replaced_by(bob, ann)
    slow.go_on.set()
    with pytest.raises(NotFound):
        await upload
    assert (await bob.show("web")).volumes == theirs.volumes
    assert not list(node.directory.glob("stores/*/*/*"))


async def test_an_upload_to_a_vm_that_is_given_away_meanwhile_is_refused(ann, bob, node, until):
    vm = await ann.create("web", owner_users=("ann", "bob"))
    slow = Slow(CONTENT, first=500)
    upload = begin_upload(ann, slow, size_mib=1)
    await slow.begun.wait()
    await until(lambda: len(node.service.vms.show("web").volumes) == 2)
    await taken_by(bob)
    slow.go_on.set()
    with pytest.raises(Denied, match="ann may not call volume.upload on VM web: it belongs to bob"):
        await upload
    assert (await bob.show("web")).volumes == vm.volumes
    assert not list(node.directory.glob("stores/*/*/*"))


async def test_two_uploads_to_volumes_of_one_name_at_one_address_do_not_meet(ann, bob, node, until):
    await ann.create("web")
    await fill(ann)
    hers, his = Slow(CONTENT, first=500), Slow(b"y" * 1000, first=500)
    begun = begin_upload(ann, hers, size_mib=1)
    await until(lambda: len(node.service.vms.show("web").volumes) == 2)
    theirs = await replaced_by(bob, ann)
    upload = begin_upload(bob, his, size_mib=1, format=VolumeFormat.RAW)
    await until(lambda: len(node.service.vms.show("web").volumes) == 2)
    hers.go_on.set()
    with pytest.raises((NotFound, HostFailure)):
        await begun
    his.go_on.set()
    made = (await upload).volumes[1]
    assert node.stores.path(theirs.ip, made).read_bytes()[:1000] == b"y" * 1000


# --- calls that wait for their turn

VOLUME = {"vm": "web", "volume": "data"}
WAITING = {
    "vm.start": lambda ann: ann.begin("web"),
    "vm.stop": lambda ann: ann.halt("web"),
    "vm.reboot": lambda ann: ann.reboot("web"),
    "vm.destroy": lambda ann: ann.destroy("web"),
    "vm.change": lambda ann: ann.call(VM_CHANGE, {"vm": "web"}, body=ChangeVm(tags={"a": "1"})),
    "vm.become-primary-owner": lambda ann: ann.call(VM_BECOME_PRIMARY_OWNER, {"vm": "web"}),
    "volume.add": lambda ann: last(ann.stream(VOLUME_ADD, {"vm": "web"}, body=AddVolume(NEW))),
    "volume.change": lambda ann: last(ann.stream(VOLUME_CHANGE, VOLUME, body=ChangeVolume(attached=False))),
    "volume.reorder": lambda ann: ann.call(VOLUME_REORDER, {"vm": "web"}, body=VolumeOrder(("data",))),
    "volume.delete": lambda ann: ann.call(VOLUME_DELETE, VOLUME),
}


@pytest.mark.parametrize("method", WAITING)
async def test_who_loses_a_vm_while_waiting_for_their_turn_does_nothing_to_it(ann, bob, node, until, method):
    vm = await ann.create("web", owner_users=("ann", "bob"), volumes=(DATA,))
    lock = node.service.vms.lock(vm)
    async with lock:
        before = asyncio.create_task(taken_by(bob))
        await until(lambda: len(lock._waiters or ()) == 1)
        waiting = asyncio.create_task(WAITING[method](ann))
        await until(lambda: len(lock._waiters or ()) == 2)
    theirs = await before
    with pytest.raises(Denied, match=f"ann may not call {method} on VM web: it belongs to bob"):
        await waiting
    assert await bob.show("web") == theirs


# --- consoles and logs


async def test_a_console_that_takes_its_time_never_opens_on_the_next_vm(ann, bob, node, monkeypatch):
    await ann.create("web")
    await fill(ann)
    connect, asked, go_on = SimDriver.console, asyncio.Event(), asyncio.Event()

    async def slowly(driver, machine):
        asked.set()
        await go_on.wait()
        return await connect(driver, machine)

    monkeypatch.setattr(SimDriver, "console", slowly)
    async with ann.connect(api.VM_CONSOLE, {"vm": "web"}, query=Attach()) as socket:
        await asked.wait()
        theirs = await replaced_by(bob, ann)
        go_on.set()
        node.driver.guest_writes(node.machine(theirs), b"the secret of bob\r\n")
        seen = [message async for message in socket]
    assert seen == []
    assert socket.close_code == WSCloseCode.INTERNAL_ERROR


async def test_a_log_that_takes_its_time_is_never_that_of_the_next_vm(ann, bob, node, monkeypatch):
    await ann.create("web")
    await fill(ann)
    opened, asked, go_on = bootlog.Tail.__init__, threading.Event(), threading.Event()

    def slowly(tail, *args, **how):
        asked.set()
        go_on.wait(10)
        opened(tail, *args, **how)

    monkeypatch.setattr(bootlog.Tail, "__init__", slowly)
    reading = asyncio.create_task(read_log(ann))
    await asyncio.to_thread(asked.wait, 10)
    theirs = await replaced_by(bob, ann)
    node.driver.guest_writes(node.machine(theirs), b"the secret of bob\r\n")
    go_on.set()
    with pytest.raises(NotFound):
        await reading


async def read_log(who) -> bytes:
    return b"".join([chunk async for chunk in who.download(api.VM_LOG, {"vm": "web"})])


# --- request ids


async def test_a_request_id_is_its_callers_alone(ann, bob, node):
    hers = await ann.create("web", request_id="r-1")
    his = await bob.create("mine", request_id="r-1")
    assert (his.name, his.owner_users) == ("mine", ("bob",))
    assert (await ann.create("web", request_id="r-1")).instance_id == hers.instance_id
    assert (await bob.create("mine", request_id="r-1")).instance_id == his.instance_id
    await node.restart()
    assert (await ann.create("web", request_id="r-1")).instance_id == hers.instance_id
    assert (await bob.create("mine", request_id="r-1")).instance_id == his.instance_id


async def test_a_request_id_never_answers_with_the_vm_of_a_co_owner(ann, bob):
    hers = await ann.create("web", request_id="r-1", owner_users=("ann", "bob"))
    assert (await bob.create("mine", request_id="r-1")).instance_id != hers.instance_id


# --- what others see


SECRETS = {
    "user_data_sha256": "",
    "previous_user_data_sha256": None,
    "request_id": "",
    "ssh_keys": (),
    "kernel_options": "",
}


async def test_what_is_the_owners_alone_is_shown_to_nobody_else(ann, bob, node):
    await ann.create("web", user_data=b"1", request_id="r-1", ssh_keys=(KEY,))
    vm = await ann.call(VM_CHANGE, {"vm": "web"}, body=ChangeVm(user_data=b"2"))
    assert all((vm.user_data_sha256, vm.previous_user_data_sha256, vm.request_id, vm.ssh_keys))
    async with node.user("oper") as oper, node.user("carol", methods=("vm.*", "event.*")) as carol:
        for who in (ann, oper, carol):
            assert [vm, (vm,), vm] == await seen_by(who)
        seen = await seen_by(bob)
    hidden = structs.replace(vm, **SECRETS)
    assert hidden != vm
    assert seen == [hidden, (hidden,), hidden]


async def test_what_a_change_tells_to_others_hides_it_too(ann, bob):
    vm = await ann.create("web", request_id="r-1", user_data=b"1", timeout_s=10)
    events = bob.stream(api.EVENTS, query=Since())
    first = await anext(events)
    assert first.vms == (structs.replace(vm, request_id="", user_data_sha256=""),)
    await ann.call(VM_CHANGE, {"vm": "web"}, body=ChangeVm(tags={"a": "1"}, user_data=b"2"))
    changed = await next_vm(events)
    assert changed.tags == {"a": "1"}
    assert {name: getattr(changed, name) for name in SECRETS} == SECRETS
    await taken_by_owner(ann)
    assert (await next_vm(events)).request_id == "r-1"
    await events.aclose()


async def next_vm(events):
    while (event := await anext(events)).vm is None:
        pass
    return event.vm


async def taken_by_owner(ann):
    return await ann.call(VM_CHANGE, {"vm": "web"}, body=ChangeVm(owner_users=("ann", "bob")))


async def seen_by(who) -> list:
    events = [event async for event in who.stream(api.EVENTS, query=Since(follow=False))]
    (event,) = [event for event in events if not isinstance(event, Done)]
    (vm,) = event.vms
    return [await who.show("web"), await who.list(), vm]
