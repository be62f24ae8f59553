"""Stores that are not there, or not this node's: nothing in them is touched, and nothing is lost."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from atoll.api import hypervisor as api
from atoll.api.volumes import VOLUME_CHANGE, ChangeVolume
from atoll.errors import Conflict, HostFailure
from atoll.hypervisor.volumes.stores import check_not_lost
from atoll.model.vm import VM, VmState
from atoll.model.volume import VolumeSpec, find
from atoll.plan.recovery import Want
from atoll.system import owners
from atoll.system.attic import KEPT_FOR, Attic

DATA = VolumeSpec(16, name="data", store="slow")


def path_of(node, vm: VM) -> Path:
    path: Path = node.stores.path(vm.ip, find(vm.volumes, "data", vm.name))
    return path


@contextlib.contextmanager
def unmounted(place: Path) -> Iterator[None]:
    """Nothing is mounted there: an empty directory."""
    elsewhere = place.with_name(f"{place.name}-elsewhere")
    place.rename(elsewhere)
    place.mkdir(0o700)
    yield
    shutil.rmtree(place)
    elsewhere.rename(place)


def contents(place: Path) -> dict[str, bytes]:
    return {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}


async def store(ann, name: str = "slow"):
    return next(store for store in (await ann.node()).stores if store.name == name)


async def test_a_store_that_is_not_mounted_is_not_used_and_its_vms_say_so(ann, node):
    vm = await ann.create("web", volumes=(DATA,))
    path_of(node, vm).write_bytes(b"precious")
    place = node.directory / "stores" / "slow"
    await node.stop()
    with unmounted(place):
        node.boot_id = "another"
        await node.start()
        assert "is its file system mounted?" in (await store(ann)).problem
        with pytest.raises(HostFailure, match="store slow is not used"):
            await ann.begin("web")
        shown = await ann.show("web")
        assert shown.state is VmState.FAILED_TO_START
        assert "store slow is not used" in shown.reason
        with pytest.raises(Conflict, match="store 'slow' is not used"):
            await ann.create("other", volumes=(DATA,))
        assert (await ann.create("other", volumes=(VolumeSpec(16, name="data"),))).volumes[1].store == "fast"
        assert list(place.iterdir()) == []
        await node.stop()
    await node.start()
    assert (await store(ann)).problem == ""
    await ann.begin("web")
    assert path_of(node, vm).read_bytes() == b"precious"


async def test_a_state_directory_that_is_not_mounted_costs_no_volume(ann, node):
    vm = await ann.create("web", volumes=(DATA,))
    path_of(node, vm).write_bytes(b"precious")
    state, place = node.directory / "state", node.directory / "stores" / "slow"
    await node.stop()
    before = contents(place)
    with unmounted(state):
        with pytest.raises(HostFailure, match="it is empty, but there is a store of its agent") as refused:
            check_not_lost(state, [node.directory / "stores" / "fast", place], "atoll/none")
        assert "mount or restore it" in refused.value.hint
        # Should an agent start all the same, as one elsewhere, these stores are not its own.
        await node.start()
        assert "it is the store of the agent in" in (await store(ann)).problem
        await node.stop()
        assert contents(place) == before
    check_not_lost(state, [place], "atoll/none")
    await node.start()
    assert path_of(node, vm).read_bytes() == b"precious"


async def test_a_store_of_another_agent_is_left_alone(ann, node):
    other = owners.Owner(str(node.directory / "another"), "f" * 32)
    place = node.directory / "stores" / "slow"
    await node.stop()
    owners.hold(place, other)
    (place / "10.9.0.77").mkdir()
    (place / "10.9.0.77" / "data.raw").write_bytes(b"theirs")
    before = contents(place)
    await node.start()
    assert (await store(ann)).problem == f"it is the store of the agent in {other.state}"
    vm = await ann.create("web")
    await ann.call(api.VM_DESTROY, {"vm": vm.ip})
    assert contents(place) == before


async def test_a_vm_whose_store_is_away_can_be_destroyed_and_its_volume_is_kept_for_a_while(ann, node):
    vm = await ann.create("web", volumes=(DATA,))
    path_of(node, vm).write_bytes(b"precious")
    place = node.directory / "stores" / "slow"
    await node.stop()
    with unmounted(place):
        await node.start()
        await ann.call(api.VM_DESTROY, {"vm": "web"})
        await node.stop()
    await node.start()
    (kept,) = (await ann.node()).unclaimed
    assert (kept.store, (place / ".attic" / kept.name / "data.raw").read_bytes()) == ("slow", b"precious")


async def test_what_no_record_names_is_moved_away_and_told_and_goes_after_a_week(ann, node):
    vm = await ann.create("web", volumes=(DATA,))
    place = node.directory / "stores" / "slow"
    await node.stop()
    (place / "lost+found").mkdir()
    (place / "10.9.0.99").mkdir()
    (place / "10.9.0.99" / "old.raw").write_bytes(b"old")
    (place / "10.9.0.98").mkdir()
    (place / "10.9.0.98" / ".half.raw.part").write_bytes(b"half")
    path_of(node, vm).with_name("stray.raw").write_bytes(b"stray")
    await node.start()
    kept = {one.name.partition("-")[2]: one for one in (await ann.node()).unclaimed}
    assert kept.keys() == {"10.9.0.99", f"{vm.ip}-stray.raw"}
    attic = place / ".attic"
    assert contents(attic) == {
        f"{kept['10.9.0.99'].name}/old.raw": b"old",
        kept[f"{vm.ip}-stray.raw"].name: b"stray",
    }
    assert {path.name for path in place.iterdir()} == {".attic", ".owner", "lost+found", vm.ip}
    assert [path.name for path in path_of(node, vm).parent.iterdir()] == ["data.raw"]
    now = datetime.now(UTC)
    await Attic(attic).clear(now + KEPT_FOR - timedelta(minutes=1))
    assert len(contents(attic)) == 2
    await Attic(attic).clear(now + KEPT_FOR)
    assert contents(attic) == {}


async def test_two_things_of_one_name_are_both_kept(tmp_path: Path):
    attic, now = Attic(tmp_path / ".attic"), datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    for content in (b"one", b"two"):
        (tmp_path / "x").write_bytes(content)
        attic.put(tmp_path / "x", "x", now)
    assert contents(tmp_path / ".attic") == {"20260102T030405Z-x": b"one", "20260102T030405Z-x-2": b"two"}


async def test_a_store_of_an_agent_that_put_no_mark_is_known_by_its_volumes(ann, node):
    vm = await ann.create("web", volumes=(DATA,))
    place = node.directory / "stores" / "slow"
    await node.stop()
    (place / owners.HOLDER).unlink()
    await node.start()
    assert (await store(ann)).problem == ""
    assert path_of(node, vm).exists()
    assert owners.holder_of(place) == owners.owner_of(node.directory / "state")


@pytest.mark.parametrize("named_in", ["slow", "fast"])
async def test_a_move_between_stores_that_was_cut_short_leaves_one_file(ann, node, named_in: str):
    vm = await ann.create("web", volumes=(DATA,))
    await ann.halt("web")
    volume = find(vm.volumes, "data", "web")
    if named_in == "fast":
        async for _ in ann.stream(
            VOLUME_CHANGE, {"vm": "web", "volume": "data"}, body=ChangeVolume(store="fast")
        ):
            pass
    other = {"slow": "fast", "fast": "slow"}[named_in]
    there = node.directory / "stores" / other / vm.ip / volume.file
    await node.stop()
    there.parent.mkdir(exist_ok=True)
    there.write_bytes(b"copy")
    there.with_name(f".{there.name}.loose").touch()
    await node.start()
    files = {str(path.relative_to(node.directory / "stores")) for path in node.directory.glob("stores/*/*/*")}
    assert files == {f"{named_in}/{vm.ip}/data.raw"}
    assert (await ann.node()).unclaimed == ()


async def test_a_vm_whose_record_is_gone_keeps_its_address_and_its_volumes(ann, node):
    vm = await ann.create("web", volumes=(DATA,))
    path = path_of(node, vm)
    path.write_bytes(b"precious")
    await node.stop()
    record = node.records.directory(vm.ip) / "vm.json"
    lost = record.read_bytes()
    record.unlink()
    await node.start()
    (found,) = await ann.list()
    assert (found.ip, found.state) == (vm.ip, VmState.DAMAGED)
    assert path.read_bytes() == b"precious"
    await node.stop()
    record.write_bytes(lost)
    await node.start()
    assert (await ann.show("web")).state is VmState.RUNNING
    assert node.service.vms.record(vm).want is Want.RUNNING
