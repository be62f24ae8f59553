from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from msgspec import structs

from atoll.errors import HostFailure
from atoll.hypervisor.vms.records import Record, Records
from atoll.model.network import Address, Subnet, mac_for
from atoll.model.vm import VmNic, VmState
from atoll.model.volume import Volume, VolumeFormat
from atoll.plan.addresses import Given
from atoll.plan.recovery import Want
from atoll.system.writer import Writer
from samples import a_vm

IP = "10.1.0.5"


def record(ip: str = IP) -> Record:
    vm = a_vm(
        ip=ip,
        owner_groups=("dev",),
        tags={"role": "Zoë"},
        created_at=datetime(2024, 1, 1, 1, 2, 3, 456789, tzinfo=UTC),
        ready={"dhcp": 0.25},
        volumes=(Volume(VolumeFormat.MEMORY, 0),),
    )
    return Record(vm, Want.RUNNING, committed=True, boot_id="b")


@pytest.fixture
def records(tmp_path: Path) -> Records:
    found = Records(tmp_path, Writer())
    found.prepare()
    return found


async def test_a_record_reads_back_as_it_was_written(records: Records, tmp_path: Path):
    await records.write(record())
    again = Records(tmp_path, Writer())
    again.prepare()
    assert again.load() == {IP: record()}


async def test_the_addresses_of_a_node_read_back(records: Records):
    assert records.given() == Given()
    given = Given().add_subnet(Subnet("lan", "10.1.0.0/24", "10.1.0.1"))
    given = given.add_addresses("lan", [Address(IP, mac_for(IP))])
    await records.write_given(given)
    assert records.given() == given


def test_a_directory_that_never_had_a_record_is_removed(records: Records):
    (records.directory(IP) / "qemu").mkdir(parents=True)
    (records.directory(IP) / "ids-500000-1").touch()
    assert records.load() == {}
    assert not records.directory(IP).exists()


async def test_a_directory_whose_record_is_gone_is_that_of_a_damaged_vm(records: Records, tmp_path: Path):
    await records.write(record())
    again = Records(tmp_path, Writer())
    for _ in range(2):
        (records.directory(IP) / "vm.json").unlink(missing_ok=True)
        (found,) = again.load().values()
        assert (found.vm.ip, found.vm.state, again.unreadable) == (IP, VmState.DAMAGED, {IP})
        assert "is gone" in found.vm.reason
    await again.discard(IP)
    assert (again.load(), again.unreadable) == ({}, frozenset())


async def test_a_record_of_an_agent_that_left_no_mark_is_missed_from_the_first_start_on(
    records: Records, tmp_path: Path
):
    await records.write(record())
    (records.directory(IP) / "recorded").unlink()
    again = Records(tmp_path, Writer())
    again.load()
    (records.directory(IP) / "vm.json").unlink()
    assert again.load()[IP].vm.state is VmState.DAMAGED


async def test_user_data_without_a_record_tells_that_there_was_one(records: Records):
    await records.write_user_data(IP, b"x")
    assert records.load()[IP].vm.state is VmState.DAMAGED


def test_what_is_no_vms_directory_is_left_alone(records: Records, tmp_path: Path):
    (tmp_path / "vms" / "backup" / "disk").mkdir(parents=True)
    (tmp_path / "vms" / "10.1.0.7").touch()
    assert records.load() == {}
    assert {path.name for path in (tmp_path / "vms").iterdir()} == {"backup", "10.1.0.7"}


@pytest.mark.parametrize("content", [b"", b"{", b"null", b"\xff", msgspec.json.encode(record("10.1.0.6"))])
async def test_a_record_that_cannot_be_read_is_left_and_its_address_stays_held(
    records: Records, content: bytes
):
    await records.write(record())
    (records.directory(IP) / "vm.json").write_bytes(content)
    (found,) = records.load().values()
    assert (found.vm.ip, found.vm.state) == (IP, VmState.DAMAGED)
    assert f"atoll vm destroy {IP}" in found.vm.reason
    assert records.unreadable == {IP}
    assert (records.directory(IP) / "vm.json").read_bytes() == content


def test_an_unreadable_list_of_addresses_is_not_taken_for_an_empty_one(records: Records, tmp_path: Path):
    (tmp_path / "node.json").write_bytes(b"{")
    with pytest.raises(HostFailure, match=r"node\.json"):
        records.given()


@pytest.mark.parametrize("harm", [lambda path: path.unlink(), lambda path: path.write_bytes(b"{")])
@pytest.mark.parametrize("name", ["node.json", "node.json.copy"])
async def test_one_of_two_copies_of_the_addresses_is_enough(
    records: Records, tmp_path: Path, name: str, harm: Callable[[Path], object]
):
    given = Given().add_subnet(Subnet("lan", "10.1.0.0/24", "10.1.0.1"))
    await records.write_given(given)
    harm(tmp_path / name)
    assert records.given() == given


async def test_a_damaged_vm_keeps_the_place_of_its_address(records: Records):
    given = Given().add_subnet(Subnet("lan", "10.1.0.0/24", "10.1.0.1"))
    await records.write_given(given.add_addresses("lan", [Address(IP, "52:54:00:00:00:77")]))
    await records.write(record())
    (records.directory(IP) / "vm.json").write_bytes(b"")
    vm = records.load()[IP].vm
    assert (vm.subnet, vm.mac, vm.owner_users) == ("lan", "52:54:00:00:00:77", ())


NICS = (
    VmNic("10.2.0.5", "52:54:00:00:00:78", "storage", "fd00:2::5054:ff:fe00:78"),
    VmNic("10.3.0.5", "52:54:00:00:00:79", "gone"),
)


async def test_a_damaged_vm_keeps_the_addresses_of_its_other_interfaces(records: Records):
    storage = Subnet("storage", "10.2.0.0/24", "10.2.0.1", cidr6="fd00:2::/64", gateway6="fd00:2::1")
    given = Given().add_subnet(storage).add_addresses("storage", [Address(NICS[0].ip, NICS[0].mac)])
    await records.write_given(given)
    known = record()
    await records.write(structs.replace(known, vm=structs.replace(known.vm, nics=NICS)))
    assert records.load()[IP].vm.nics == NICS
    assert records.unreadable == frozenset()
    (records.directory(IP) / "vm.json").write_bytes(b"{")
    # That of a subnet which the node does not know any more is nobody else's either.
    assert records.load()[IP].vm.nics == NICS[:1]
    assert records.unreadable == {IP, "10.2.0.5", "10.3.0.5"}
    await records.discard(IP)
    assert records.unreadable == frozenset()


async def test_what_is_discarded_is_gone_and_can_be_discarded_again(records: Records, tmp_path: Path):
    await records.write(record())
    await records.write_user_data(IP, b"x")
    await records.discard(IP)
    await records.discard(IP)
    assert records.load() == {}
    assert list((tmp_path / "vms").iterdir()) == list((tmp_path / "trash").iterdir()) == []


async def test_what_a_killed_agent_left_half_written_or_half_removed_goes_at_start_up(
    records: Records, tmp_path: Path
):
    await records.write(record())
    (tmp_path / "trash" / "10.1.0.9.x").mkdir()
    (tmp_path / "trash" / "10.1.0.9.x" / "vm.json").write_bytes(b"{}")
    half = records.directory(IP) / ".vm.json.0123.tmp"
    half.write_bytes(b"{")
    again = Records(tmp_path, Writer())
    again.prepare()
    assert again.load() == {IP: record()}
    assert not half.exists()
    await again.empty_trash()
    assert list((tmp_path / "trash").iterdir()) == []


def with_user_data(data: bytes, previous: bytes = b"") -> Record:
    known = record()
    hashes = [hashlib.sha256(each).hexdigest() if each else "" for each in (data, previous)]
    vm = structs.replace(known.vm, user_data_sha256=hashes[0], previous_user_data_sha256=hashes[1])
    return structs.replace(known, vm=vm)


def kept(records: Records) -> set[bytes]:
    return {path.read_bytes() for path in records.directory(IP).glob("user-data-*")}


async def test_user_data_is_for_the_node_alone(records: Records):
    assert records.user_data(IP) == b""
    await records.write_user_data(IP, b"secret")
    await records.write(with_user_data(b"secret"))
    assert records.user_data(IP) == b"secret"
    (path,) = records.directory(IP).glob("user-data-*")
    assert path.stat().st_mode & 0o777 == 0o600


async def test_user_data_counts_once_its_record_says_so_and_the_one_before_it_is_kept(records: Records):
    await records.write_user_data(IP, b"one")
    await records.write(with_user_data(b"one"))
    await records.write_user_data(IP, b"two")
    assert records.user_data(IP) == b"one"
    await records.write(with_user_data(b"two", b"one"))
    assert records.user_data(IP) == b"two"
    assert kept(records) == {b"one", b"two"}
    await records.write_user_data(IP, b"three")
    await records.write(with_user_data(b"three", b"two"))
    assert kept(records) == {b"three", b"two"}


async def test_user_data_that_a_killed_agent_did_not_get_to_use_goes(records: Records, tmp_path: Path):
    await records.write_user_data(IP, b"one")
    await records.write(with_user_data(b"one"))
    await records.write_user_data(IP, b"two")
    again = Records(tmp_path, Writer())
    again.load()
    assert again.user_data(IP) == b"one"
    assert kept(again) == {b"one"}


TO = structs.replace(record().vm, ip="10.2.0.9", mac=mac_for("10.2.0.9"), subnet="dmz", tags={"new": "1"})
MOVING = structs.replace(record(), moving=TO)


async def test_a_move_that_was_killed_before_the_directory_moved_never_was(records: Records, tmp_path: Path):
    await records.write(MOVING)
    again = Records(tmp_path, Writer())
    assert again.load() == {IP: record()}
    assert again.carried == {IP: TO.ip}
    assert Records(tmp_path, Writer()).load() == {IP: record()}


async def test_a_move_that_was_killed_after_the_directory_moved_is_finished(records: Records, tmp_path: Path):
    await records.write(MOVING)
    await records.move(MOVING)
    again = Records(tmp_path, Writer())
    (found,) = again.load().values()
    assert (found.vm, found.moving) == (TO, None)
    assert again.carried == {TO.ip: IP}
    assert not again.directory(IP).exists()
    assert again.unreadable == frozenset()
