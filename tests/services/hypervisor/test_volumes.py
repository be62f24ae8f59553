"""Volumes of VMs, from add to delete. Files are real; guests are simulated."""

from __future__ import annotations

import asyncio
import hashlib
import io
import threading
from pathlib import Path

import pytest
from msgspec import structs

from atoll.api import hypervisor as api
from atoll.api.changes import VM_CHANGE, ChangeVm
from atoll.api.hypervisor import AddAddress
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
from atoll.errors import Conflict, Denied, HostFailure, Invalid, NoCapacity, NotFound, Unreachable
from atoll.hypervisor.volumes import stores
from atoll.model.network import Address, Subnet, mac_for
from atoll.model.vm import MachineType, VmState
from atoll.model.volume import DiskInterface, FileSystem, VolumeFormat, VolumeSpec, VolumeType
from atoll.system import disks, files

DATA = VolumeSpec(16, "data", fs=FileSystem.EXT4)


async def last(lines):
    return [line async for line in lines][-1].result


async def add(who, spec: VolumeSpec = DATA, *, attach: bool = True, vm: str = "web"):
    return await last(who.stream(VOLUME_ADD, {"vm": vm}, body=AddVolume(spec, attach)))


async def change(who, name: str = "data", **wishes: object):
    body = ChangeVolume(**wishes)
    return await last(who.stream(VOLUME_CHANGE, {"vm": "web", "volume": name}, body=body))


async def delete(who, name: str = "data"):
    return await who.call(VOLUME_DELETE, {"vm": "web", "volume": name})


async def upload(who, content: bytes, name: str = "data", sha256: str = "", **query: object):
    wanted = UploadVolume(sha256 or hashlib.sha256(content).hexdigest(), **query)
    params = {"vm": "web", "volume": name}
    return await who.upload(VOLUME_UPLOAD, params, io.BytesIO(content), query=wanted)


def names(vm) -> list[str]:
    return [volume.name for volume in vm.volumes[1:]]


def volume(vm, name: str = "data"):
    return next(each for each in vm.volumes if each.name == name)


def file(node, vm, name: str = "data"):
    return node.stores.path(vm.ip, volume(vm, name))


def plugged(node, vm) -> tuple[str, ...]:
    return node.driver.disks_of(node.machine(vm))


# --- with a VM


async def test_a_vm_is_made_with_its_volumes_and_they_go_with_it(ann, node):
    specs = (DATA, VolumeSpec(8, format=VolumeFormat.QCOW2), VolumeSpec(4, type=VolumeType.MEMORY))
    vm = await ann.create("web", volumes=specs)
    assert names(vm) == ["data", "vol1", "vol2"]
    assert plugged(node, vm) == ("data", "vol1", "vol2")
    assert disks.ext_at(file(node, vm)) is not None
    assert file(node, vm).stat().st_size == 16 << 20
    free = (await ann.node()).free
    assert (free.disk_mib, free.memory_mib) == (1024 - 24, 1024 - 64 - 4)
    await ann.destroy("web")
    assert node.traces() == set()
    assert (await ann.node()).free == (await ann.node()).total


async def test_a_create_that_fails_leaves_no_volume(ann, node):
    node.faults.fail.add("start")
    with pytest.raises(HostFailure):
        await ann.create("web", volumes=(DATA,))
    assert node.traces() == set()


async def test_files_are_their_vms_users_own_in_a_closed_directory(ann, node):
    vm = await ann.create("web", volumes=(DATA,))
    status = file(node, vm).stat()
    assert (status.st_uid, status.st_mode & 0o777) == (node.machines.uid(vm), 0o600)
    assert file(node, vm).parent.stat().st_mode & 0o777 == 0o700


async def test_what_does_not_fit_is_refused_with_what_is_free(ann, node):
    with pytest.raises(NoCapacity, match="disk 2 GiB of 1 GiB free"):
        await ann.create("web", volumes=(VolumeSpec(2048),))
    with pytest.raises(NoCapacity, match="memory 1025 MiB of 1 GiB free"):
        await ann.create("web", volumes=(VolumeSpec(961, type=VolumeType.MEMORY),))
    with pytest.raises(NotFound, match="store 'nope'"):
        await ann.create("web", volumes=(VolumeSpec(1, store="nope"),))
    assert node.traces() == set()


# --- add, attach, detach, delete


async def test_a_volume_is_added_to_a_running_vm_at_once(ann, node):
    await ann.create("web")
    vm = await add(ann)
    assert (names(vm), vm.pending) == (["data"], ())
    assert plugged(node, vm) == ("data",)
    assert volume(vm) == structs.replace(volume(vm), attached=True, made=True, fs=FileSystem.EXT4)
    assert (await add(ann)) == vm


async def test_a_volume_can_be_kept_back_and_attached_later(ann, node):
    await ann.create("web")
    vm = await add(ann, attach=False)
    assert plugged(node, vm) == ()
    assert plugged(node, await change(ann, attached=True)) == ("data",)
    assert plugged(node, await change(ann, attached=False)) == ()
    assert file(node, vm).exists()
    await ann.reboot("web")
    assert plugged(node, vm) == ()


async def test_where_a_machine_cannot_it_waits_for_the_next_start(ann, node):
    await ann.create("web", machine_type=MachineType.MICROVM)
    vm = await add(ann)
    assert vm.pending == ("volumes",)
    assert plugged(node, vm) == ()
    up = await ann.reboot("web")
    assert (up.pending, plugged(node, up)) == ((), ("data",))
    vm = await change(ann, attached=False)
    assert (vm.pending, plugged(node, vm)) == (("volumes",), ("data",))
    with pytest.raises(Conflict, match="deleting volume data of VM web: the guest has it"):
        await delete(ann)
    down = await ann.halt("web")
    assert down.pending == ()
    assert names(await delete(ann)) == []


async def test_an_attach_that_fails_leaves_it_detached_and_a_guest_that_keeps_a_disk_keeps_it(ann, node):
    made = await ann.create("web")
    node.faults.fail.add("attach")
    with pytest.raises(HostFailure):
        await add(ann)
    node.faults.fail.clear()
    assert not volume(await ann.show("web")).attached
    vm = await change(ann, attached=True)
    node.faults.deaf.add(made.ip)
    with pytest.raises(Conflict, match="the guest keeps it"):
        await change(ann, attached=False)
    assert await ann.show("web") == vm
    assert plugged(node, vm) == ("data",)


async def test_a_hot_plug_says_nothing_of_other_changes_that_wait(ann, node):
    await ann.create("web")
    await ann.call(VM_CHANGE, {"vm": "web"}, body=ChangeVm(memory_mib=128))
    vm = await add(ann)
    assert (vm.pending, plugged(node, vm)) == (("memory_mib",), ("data",))


async def test_what_is_deleted_is_gone_and_can_be_deleted_again(ann, node):
    vm = await ann.create("web", volumes=(DATA,))
    path = file(node, vm)
    after = await delete(ann)
    assert names(after) == []
    assert plugged(node, after) == ()
    assert not path.exists()
    assert await delete(ann) == after
    assert (await ann.node()).free.disk_mib == 1024


async def test_the_root_is_not_deleted(ann):
    await ann.create("web")
    with pytest.raises(Conflict, match="its root is the image's"):
        await delete(ann, "root")


async def test_the_order_of_volumes_is_that_of_the_next_start(ann, node):
    await ann.create("web", volumes=(VolumeSpec(1, "a"), VolumeSpec(1, "b")))
    vm = await ann.call(VOLUME_REORDER, {"vm": "web"}, body=VolumeOrder(("b", "a")))
    assert (names(vm), vm.pending) == (["b", "a"], ("volumes",))
    up = await ann.reboot("web")
    assert (plugged(node, up), up.pending) == (("b", "a"), ())
    with pytest.raises(Invalid, match="must name each volume"):
        await ann.call(VOLUME_REORDER, {"vm": "web"}, body=VolumeOrder(("b",)))


async def test_the_volumes_of_somebody_else_are_not_touched(ann, bob):
    vm = await ann.create("web", volumes=(DATA,))
    for attempt in (
        add(bob, VolumeSpec(1)),
        change(bob, attached=False),
        delete(bob),
        upload(bob, b"x", "mine"),
    ):
        with pytest.raises(Denied):
            await attempt
    assert await ann.show("web") == vm


async def test_two_who_add_at_the_same_time_do_not_get_the_same_space(ann, node):
    await ann.create("a")
    await ann.create("b")
    got = await asyncio.gather(*(add(ann, VolumeSpec(600), vm=name) for name in "ab"), return_exceptions=True)
    assert sorted(isinstance(one, NoCapacity) for one in got) == [False, True]


# --- content


async def test_content_arrives_byte_for_byte_and_is_rounded_up_to_mib(ann, node):
    await ann.create("web")
    content = bytes(range(256)) * 5000 + b"\0" * (1 << 20) + b"end"
    vm = await upload(ann, content)
    data = file(node, vm).read_bytes()
    assert data == content.ljust(3 << 20, b"\0")
    assert (volume(vm).size_mib, volume(vm).attached, plugged(node, vm)) == (3, True, ("data",))


async def test_content_larger_than_memory_would_like_is_taken(ann, node):
    await ann.create("web")
    block = b"atoll" * 13107

    async def chunks():
        for _ in range(1000):
            yield block

    digest = hashlib.sha256(block * 1000).hexdigest()
    wanted = UploadVolume(digest, size_mib=100)
    vm = await ann.upload(VOLUME_UPLOAD, {"vm": "web", "volume": "data"}, chunks(), query=wanted)
    assert volume(vm).size_mib == 100


async def test_a_file_system_that_comes_along_is_noticed(ann, node):
    first = await ann.create("web", volumes=(DATA,))
    content = file(node, first).read_bytes()
    assert volume(await upload(ann, content, "copy"), "copy").fs is FileSystem.EXT4


async def test_content_that_is_not_what_it_says_leaves_nothing(ann, node):
    vm = await ann.create("web")
    before = node.traces()
    with pytest.raises(Invalid, match="is not what its hash says"):
        await upload(ann, b"x" * 1000, sha256="0" * 64)
    with pytest.raises(Invalid, match="is less than the content needs"):
        await upload(ann, b"x" * (2 << 20), size_mib=1)
    with pytest.raises(Invalid, match="is not a qcow2 file"):
        await upload(ann, b"x" * 1000, format=VolumeFormat.QCOW2)
    with pytest.raises(NoCapacity):
        await upload(ann, b"x", size_mib=4096)
    assert await ann.show("web") == vm
    assert node.traces() == before
    assert (await ann.node()).free.disk_mib == 1024


async def test_a_qcow2_file_is_taken_as_it_is_and_one_that_names_another_is_not(ann, node, tmp_path):
    first = await ann.create("web", volumes=(VolumeSpec(8, "source", format=VolumeFormat.QCOW2),))
    content = file(node, first, "source").read_bytes()
    vm = await upload(ann, content, format=VolumeFormat.QCOW2)
    assert (volume(vm).size_mib, volume(vm).format) == (8, VolumeFormat.QCOW2)
    evil = content[:8] + (512).to_bytes(8, "big") + content[16:]
    with pytest.raises(Invalid, match="names another file"):
        await upload(ann, evil, "evil", format=VolumeFormat.QCOW2)


async def test_a_client_that_goes_away_in_mid_upload_leaves_nothing(ann, node, until):
    vm = await ann.create("web")

    async def half():
        yield b"x" * 100_000
        raise RuntimeError("the client dies")

    wanted = UploadVolume("0" * 64, size_mib=4)
    with pytest.raises(Unreachable, match="the client dies"):
        await ann.upload(VOLUME_UPLOAD, {"vm": "web", "volume": "data"}, half(), query=wanted)
    await until(lambda: node.service.vms.show("web").volumes == vm.volumes)
    assert list(node.directory.glob("stores/*/*/*")) == list(node.directory.glob("stores/*/*/.*")) == []


async def test_a_slow_sender_holds_up_nobody(ann, node):
    await ann.create("web")
    half, over = asyncio.Event(), asyncio.Event()

    async def slow():
        yield b"x" * 1000
        half.set()
        await over.wait()

    wanted = UploadVolume("0" * 64, size_mib=4)
    sending = asyncio.create_task(
        ann.upload(VOLUME_UPLOAD, {"vm": "web", "volume": "data"}, slow(), query=wanted)
    )
    await half.wait()
    async with asyncio.timeout(5):
        while not any(not each.made for each in node.service.vms.show("web").volumes):
            await asyncio.sleep(0.005)
    assert (await ann.halt("web")).state is VmState.STOPPED
    for attempt in (change(ann, attached=True), change(ann, size_mib=8)):
        with pytest.raises(Conflict, match="its content is on its way"):
            await attempt
    assert (await ann.begin("web")).state is VmState.RUNNING
    await ann.destroy("web")
    assert node.traces() == set()
    other = await ann.create("web", volumes=(DATA,))
    over.set()
    with pytest.raises((HostFailure, NotFound, Invalid)):
        await sending
    assert await ann.show("web") == other
    assert file(node, other).exists()


# --- size and place


@pytest.mark.parametrize("disk_format", [VolumeFormat.RAW, VolumeFormat.QCOW2])
async def test_a_volume_grows_and_shrinks_with_the_file_system_on_it(ann, node, disk_format: VolumeFormat):
    await ann.create("web", volumes=(structs.replace(DATA, format=disk_format),))
    with pytest.raises(Conflict, match="resizing volume data of VM web: the guest has it"):
        await change(ann, size_mib=8)
    await ann.halt("web")
    assert volume(await change(ann, size_mib=48)).size_mib == 48
    assert (await ann.node()).free.disk_mib == 1024 - 48
    vm = await change(ann, size_mib=24)
    assert (await ann.node()).free.disk_mib == 1024 - 24
    path = file(node, vm)
    if disk_format is VolumeFormat.QCOW2:
        raw = node.directory / "raw"
        raw.touch()
        disks.give(raw, node.machines.uid(vm))
        await disks.set_size(raw, 24)
        await disks.convert(path, "qcow2", raw, "raw")
        path = raw
    found = disks.ext_at(path)
    assert found is not None
    assert (found.blocks * found.block_bytes, path.stat().st_size) == (24 << 20, 24 << 20)
    with pytest.raises(Conflict, match="what is on it needs .* more than 1 MiB"):
        await change(ann, size_mib=1)
    assert (await ann.begin("web")).state is VmState.RUNNING


async def test_a_volume_grows_while_its_guest_has_it_and_says_what_is_left_to_do_there(ann, node):
    vm = await ann.create("web", volumes=(VolumeSpec(4, "data"),))
    larger = ChangeVolume(size_mib=8)
    lines = [line async for line in ann.stream(VOLUME_CHANGE, {"vm": "web", "volume": "data"}, body=larger)]
    assert [line.step for line in lines[:-1]] == ["resized", "seen by the guest"]
    assert lines[1].note.endswith("in the guest: resize2fs /dev/disk/by-id/virtio-data")
    now = lines[-1].result
    assert (volume(now).size_mib, file(node, now).stat().st_size) == (8, 8 << 20)
    assert (now.state, now.pending, (await ann.node()).free.disk_mib) == (VmState.RUNNING, (), 1024 - 8)
    with pytest.raises(NoCapacity):
        await change(ann, size_mib=100 << 20)
    node.driver.faults.fail.add("grow_disk")
    with pytest.raises(HostFailure):
        await change(ann, size_mib=16)
    assert volume(await ann.show("web")).size_mib == 8
    assert file(node, vm).stat().st_size == 8 << 20


async def test_a_disk_whose_guest_would_not_see_it_grow_is_detached_first(ann, node):
    await ann.create("web", volumes=(VolumeSpec(4, "data", interface=DiskInterface.NVME),))
    with pytest.raises(Conflict, match="the guest has it"):
        await change(ann, size_mib=8)


async def test_a_volume_without_a_file_system_only_grows(ann, node):
    vm = await ann.create("web", volumes=(VolumeSpec(4, "data"),))
    file(node, vm).write_bytes(b"kept")
    await change(ann, attached=False)
    vm = await change(ann, size_mib=8, attached=True)
    assert file(node, vm).read_bytes() == b"kept".ljust(8 << 20, b"\0")
    await change(ann, attached=False)
    with pytest.raises(Conflict, match="holds no ext4 file system"):
        await change(ann, size_mib=4)
    with pytest.raises(NoCapacity):
        await change(ann, size_mib=100 << 20)
    assert volume(await ann.show("web")).size_mib == 8


async def test_a_volume_moves_to_another_store(ann, node):
    vm = await ann.create("web", volumes=(structs.replace(DATA, store="fast"),))
    old = file(node, vm)
    content = old.read_bytes()
    with pytest.raises(Conflict, match="moving volume data of VM web: the guest has it"):
        await change(ann, store="slow")
    await ann.halt("web")
    vm = await change(ann, store="slow")
    assert file(node, vm) == node.directory / "stores" / "slow" / vm.ip / "data.raw"
    assert file(node, vm).read_bytes() == content
    assert not old.exists()
    with pytest.raises(NotFound, match="store 'nope'"):
        await change(ann, store="nope")


async def test_stores_are_shown_with_what_is_left(ann, node):
    await ann.create("web", volumes=(VolumeSpec(100, "data", store="fast"),))
    stores = {store.name: store for store in (await ann.node()).stores}
    assert stores["fast"].total_mib - stores["fast"].free_mib == 100
    assert stores["fast"].free_mib == stores["slow"].free_mib


# --- agents that die


async def test_volumes_outlive_the_agent_and_what_is_half_made_goes(ann, node):
    vm = await ann.create("web", volumes=(DATA,))
    half = structs.replace(volume(vm), name="half", made=False, attached=False)
    await node.stop()
    record = node.records.load()[vm.ip]
    changed = structs.replace(record.vm, volumes=(*record.vm.volumes, half))
    await node.records.write(structs.replace(record, vm=changed))
    directory = file(node, vm).parent
    for name in ("half.raw", "stray.raw", ".data.raw.part"):
        (directory / name).write_bytes(b"x")
    (node.directory / "stores" / "slow" / "10.9.0.99").mkdir()
    await node.start()
    assert await ann.show("web") == vm
    assert [path.name for path in directory.iterdir()] == ["data.raw"]
    assert not (node.directory / "stores" / "slow" / "10.9.0.99").exists()
    assert plugged(node, vm) == ("data",)


async def test_volumes_of_a_record_that_cannot_be_read_are_left_alone(ann, node):
    vm = await ann.create("web", volumes=(DATA,))
    path = file(node, vm)
    await node.stop()
    (node.records.directory(vm.ip) / "vm.json").write_bytes(b"{")
    await node.start()
    assert path.exists()


async def test_volumes_go_along_to_another_subnet(ann, oper, node):
    ip = "10.8.0.5"
    await oper.call(api.NODE_ADD_SUBNET, body=Subnet("dmz", "10.8.0.0/24", "10.8.0.1"))
    await oper.call(api.NODE_ADD_ADDRESS, body=AddAddress("dmz", (Address(ip, mac_for(ip)),)))
    old = await ann.create("web", volumes=(DATA,))
    await ann.halt("web")
    vm = await ann.call(VM_CHANGE, {"vm": "web"}, body=ChangeVm(subnet="dmz"))
    assert file(node, vm).stat().st_uid == node.machines.uid(vm)
    assert not file(node, old).exists()
    assert plugged(node, await ann.begin("web")) == ("data",)


async def test_volumes_follow_a_vm_whose_agent_died_in_a_move(ann, oper, node):
    ip = "10.8.0.5"
    await oper.call(api.NODE_ADD_SUBNET, body=Subnet("dmz", "10.8.0.0/24", "10.8.0.1"))
    await oper.call(api.NODE_ADD_ADDRESS, body=AddAddress("dmz", (Address(ip, mac_for(ip)),)))
    old = await ann.create("web", volumes=(DATA,))
    await ann.halt("web")
    await node.stop()
    record = node.records.load()[old.ip]
    to = structs.replace(record.vm, ip=ip, mac=mac_for(ip), subnet="dmz")
    await node.records.write(structs.replace(record, moving=to))
    node.stores.carry(old.ip, ip)
    await node.start()
    vm = await ann.show("web")
    assert vm.ip == old.ip
    assert file(node, vm).exists()
    assert plugged(node, await ann.begin("web")) == ("data",)


@pytest.mark.parametrize(("module", "slow"), [(stores, "_put"), (files, "sync"), (files, "remove_tree")])
async def test_a_disk_that_takes_its_time_holds_up_nobody_else(
    ann, node, until, monkeypatch, module, slow: str
):
    await ann.create("web")
    begun, go_on = threading.Event(), threading.Event()
    real = getattr(module, slow)

    def wait(*args: object) -> None:
        begun.set()
        assert go_on.wait(20), "nobody got to say go on"
        real(*args)

    async def fill_and_delete() -> None:
        await upload(ann, b"x" * 1000, attach=False)
        await delete(ann)

    monkeypatch.setattr(module, slow, wait)
    work = asyncio.create_task(fill_and_delete())
    await until(begun.is_set)
    assert [vm.name for vm in await ann.list()] == ["web"]
    go_on.set()
    await work
    assert list(node.directory.glob("stores/*/[!.]*")) == []


async def test_what_cannot_be_removed_does_not_keep_a_node_from_starting(ann, node, monkeypatch):
    vm = await ann.create("web", volumes=(DATA,))
    stray = file(node, vm).with_name("stray")
    stray.touch()

    def refuse(path: Path, *_: object) -> None:
        raise HostFailure(f"removing {path}: Operation not permitted")

    await node.stop()
    with monkeypatch.context() as patch:
        patch.setattr(files, "remove_tree", refuse)
        await node.start()
    assert [one.name for one in await ann.list()] == ["web"]
    await node.restart()
    assert not stray.exists()
