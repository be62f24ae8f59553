from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from msgspec import structs

from atoll.errors import HostFailure, NotFound
from atoll.hypervisor.vms.inventory import Inventory
from atoll.hypervisor.vms.permits import Permit
from atoll.hypervisor.vms.records import Record, Records
from atoll.model.event import EventKind
from atoll.model.network import mac_for
from atoll.model.vm import VM, VmNic, VmState
from atoll.plan.recovery import Want
from atoll.system.writer import Writer
from samples import a_vm

IP = "10.1.0.5"


def vm(instance_id: str = "i-1", name: str = "web", ip: str = IP) -> VM:
    return a_vm(
        ip=ip,
        name=name,
        state=VmState.STARTING,
        image="tiny",
        instance_id=instance_id,
        request_id=f"r-{instance_id}",
    )


def anybody(one: VM) -> Permit:
    return Permit(one, lambda vm: None)


class Told(list[tuple[EventKind, str]]):
    def __call__(self, kind: EventKind, one: VM) -> None:
        self.append((kind, one.state))


class SlowWrites:
    """Writes of records that have begun, and end when they are told to."""

    def __init__(self, records: Records, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.go_on = asyncio.Event(), asyncio.Event()
        self._write = records.write
        monkeypatch.setattr(records, "write", self)

    async def __call__(self, record: Record) -> None:
        self.begun.set()
        await self.go_on.wait()
        await self._write(record)


@pytest.fixture
def records(tmp_path: Path) -> Records:
    found = Records(tmp_path, Writer())
    found.prepare()
    return found


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def inventory(records: Records, told: Told) -> Inventory:
    inventory = Inventory("n1", records, {})
    inventory.changed.listen(told)
    return inventory


async def claimed(inventory: Inventory, one: VM | None = None) -> VM:
    one = one or vm()
    inventory.claim(Record(one, Want.RUNNING, committed=False, boot_id="b"))
    await inventory.save(one)
    return one


async def test_a_vm_is_found_by_everything_it_is_known_by(inventory: Inventory):
    one = await claimed(inventory)
    assert inventory.show("web") is inventory.show(IP) is one
    assert inventory.find_port("lan", one.mac) == (one, 0)
    assert inventory.find_by_request("ann", "r-i-1").vm is one
    with pytest.raises(NotFound, match="VM 'db': there is none on n1"):
        inventory.show("db")


async def test_a_change_is_on_disk_before_it_is_told(inventory: Inventory, records: Records, told: Told):
    one = await claimed(inventory)
    running = await inventory.update(one, state=VmState.RUNNING, committed=True)
    assert records.load() == {IP: Record(running, Want.RUNNING, committed=True, boot_id="b")}
    assert told == [(EventKind.CREATED, VmState.STARTING), (EventKind.CHANGED, VmState.RUNNING)]


async def test_a_change_that_cannot_be_written_has_not_happened(
    inventory: Inventory, records: Records, told: Told, monkeypatch: pytest.MonkeyPatch
):
    one = await claimed(inventory)

    async def fail(record: Record) -> None:
        raise HostFailure("no space left")

    monkeypatch.setattr(records, "write", fail)
    with pytest.raises(HostFailure):
        await inventory.update(one, state=VmState.RUNNING)
    assert inventory.show("web").state is VmState.STARTING
    assert told == [(EventKind.CREATED, VmState.STARTING)]


async def test_a_change_is_made_to_its_end_though_its_caller_goes(
    inventory: Inventory, records: Records, told: Told, monkeypatch: pytest.MonkeyPatch
):
    one = await claimed(inventory)
    writing = SlowWrites(records, monkeypatch)
    caller = asyncio.create_task(inventory.update(one, state=VmState.RUNNING))
    await writing.begun.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert inventory.show("web").state is VmState.STARTING
    writing.go_on.set()
    await inventory.settle()
    assert inventory.show("web").state is records.load()[IP].vm.state is VmState.RUNNING
    assert told[-1] == (EventKind.CHANGED, VmState.RUNNING)


async def test_what_a_change_claims_is_taken_while_it_is_written(
    inventory: Inventory, records: Records, monkeypatch: pytest.MonkeyPatch
):
    one = await claimed(inventory)
    writing = SlowWrites(records, monkeypatch)
    more = asyncio.create_task(inventory.update(one, memory_mib=one.memory_mib + 64))
    await writing.begun.wait()
    assert inventory.show("web").memory_mib == one.memory_mib
    assert [vm.memory_mib for vm in inventory.accounted()] == [one.memory_mib + 64]
    less = asyncio.create_task(inventory.update(one, memory_mib=one.memory_mib - 1))
    await asyncio.sleep(0)
    assert [vm.memory_mib for vm in inventory.accounted()] == [one.memory_mib + 64]
    writing.go_on.set()
    await asyncio.gather(more, less)
    assert inventory.accounted() == inventory.list()
    assert inventory.show("web").memory_mib == one.memory_mib - 1


async def test_a_new_state_takes_the_old_reason_away(inventory: Inventory):
    one = await claimed(inventory)
    await inventory.update(one, state=VmState.CRASHED, reason="it ended")
    assert (await inventory.update(one, ready={"dhcp": 1.0})).reason == "it ended"
    assert (await inventory.update(one, state=VmState.STARTING)).reason == ""


async def test_a_vm_that_is_forgotten_is_known_by_nothing(inventory: Inventory, records: Records, told: Told):
    one = await claimed(inventory)
    await inventory.forget(one)
    assert inventory.list() == ()
    assert inventory.find_port("lan", one.mac) is inventory.find_by_ip(IP) is None
    assert inventory.held() == frozenset()
    assert inventory.freed == {("lan", IP): 1}
    assert records.load() == {}
    assert told[-1] == (EventKind.DESTROYED, VmState.STARTING)


async def test_the_next_vm_of_an_address_is_not_taken_for_the_one_before(inventory: Inventory):
    old = await claimed(inventory)
    await inventory.forget(old)
    new = await claimed(inventory, vm("i-2", "db"))
    assert inventory.holds(new)
    assert not inventory.holds(old)
    for use in (inventory.current, inventory.record):
        with pytest.raises(NotFound):
            use(old)
    for change in (inventory.forget, inventory.save, inventory.update):
        with pytest.raises(NotFound):
            await change(old)
    assert inventory.show(IP) is new


async def test_one_who_waits_for_a_vm_that_goes_is_not_given_the_next_one(inventory: Inventory):
    old = await claimed(inventory)

    async def wait() -> VM:
        async with inventory.alone_with(anybody(old)) as found:
            return found

    async with inventory.lock(old):
        waiting = asyncio.create_task(wait())
        await asyncio.sleep(0)
        await inventory.forget(old)
        await claimed(inventory, vm("i-2", "db"))
    with pytest.raises(NotFound, match="VM 'web'"):
        await waiting


async def test_one_who_waits_gets_the_vm_as_it_is_then(inventory: Inventory):
    one = await claimed(inventory)
    async with inventory.lock(one):
        waiting = asyncio.create_task(inventory.alone_with(anybody(one)).__aenter__())
        await asyncio.sleep(0)
        await inventory.update(one, state=VmState.RUNNING)
    assert (await waiting).state is VmState.RUNNING


async def test_addresses_whose_records_cannot_be_read_are_held(inventory: Inventory, records: Records):
    directory = records.directory("10.1.0.9")
    directory.mkdir()
    for name in ("vm.json", "nic-10.2.0.9-storage"):
        (directory / name).touch()
    records.load()
    await claimed(inventory)
    # In which subnet they are is not known for sure: they are held in all of them.
    assert inventory.held() == {("lan", IP), ("", "10.1.0.9"), ("", "10.2.0.9")}
    assert inventory.keys() >= {IP, "10.1.0.9"}


# --- with several interfaces


STORAGE = VmNic("10.2.0.5", "52:54:0a:02:00:05", "storage", "fd00:2::5054:aff:fe02:5")


def several(instance_id: str = "i-1", name: str = "web", ip: str = IP) -> VM:
    return structs.replace(vm(instance_id, name, ip), nics=(STORAGE,))


async def test_a_vm_is_found_by_all_that_its_interfaces_have(inventory: Inventory):
    one = await claimed(inventory, several())
    link_local = "fe80::5054:aff:fe02:5"
    for mark in (IP, one.mac):
        assert inventory.find_port("lan", mark) == (one, 0)
    for mark in (STORAGE.ip, STORAGE.mac, STORAGE.ip6, link_local):
        assert inventory.find_port("storage", mark) == (one, 1)
        assert inventory.find_port("lan", mark) is None
    # Its key is the first, and no other.
    assert inventory.find_by_ip(STORAGE.ip) is None
    await inventory.forget(one)
    assert inventory.find_port("storage", STORAGE.ip) is inventory.find_port("storage", STORAGE.mac) is None


async def test_all_addresses_of_a_vm_are_held_and_freed_together(inventory: Inventory):
    one = await claimed(inventory, several())
    places = {("lan", IP), ("storage", STORAGE.ip)}
    assert inventory.held() == places
    assert inventory.keys() == {IP}
    await inventory.forget(one)
    assert inventory.held() == frozenset()
    assert inventory.freed.keys() == places


async def test_a_vm_that_moves_keeps_its_other_interfaces(inventory: Inventory):
    one = await claimed(inventory, several())
    to = structs.replace(one, ip="10.3.0.5", mac=mac_for("10.3.0.5"), subnet="dmz")
    held: list[frozenset[tuple[str, str]]] = []

    async def carry(source: str, target: str) -> None:
        held.append(inventory.held())

    new = await inventory.move(one, to, carry)
    assert held == [{("lan", IP), ("dmz", "10.3.0.5"), ("storage", STORAGE.ip)}]
    assert inventory.held() == {("dmz", "10.3.0.5"), ("storage", STORAGE.ip)}
    assert inventory.freed.keys() == {("lan", IP)}
    assert inventory.find_port("storage", STORAGE.mac) == (new, 1)
    assert inventory.find_port("dmz", to.mac) == (new, 0)
    assert inventory.find_port("lan", one.mac) is None


async def test_the_same_address_in_two_subnets_is_two_ports(inventory: Inventory):
    one, other = vm(), structs.replace(vm("i-2", "db", "10.1.0.6"), nics=(VmNic(IP, mac_for(IP), "tenant"),))
    for each in (one, other):
        await claimed(inventory, each)
    for mark in (IP, mac_for(IP)):
        assert inventory.find_port("lan", mark) == (one, 0)
        assert inventory.find_port("tenant", mark) == (other, 1)
    await inventory.forget(other)
    assert inventory.find_port("lan", IP) == (one, 0)
    assert inventory.find_port("tenant", IP) is None


@pytest.mark.parametrize(
    ("requested_by", "user", "found"),
    [
        ("ann", "ann", True),
        ("ann", "bob", False),
        ("bob", "ann", False),
        ("", "ann", True),
        ("", "bob", False),
    ],
)
def test_a_request_id_is_known_to_who_asked_or_where_that_was_not_noted_to_owners(
    requested_by: str, user: str, found: bool
):
    record = Record(vm(), Want.RUNNING, True, "b", requested_by=requested_by)
    assert record.is_of_request(user, "r-i-1") is found
    assert not record.is_of_request(user, "r-2")
