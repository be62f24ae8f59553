from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from msgspec import structs

from atoll.errors import HostFailure, NotFound
from atoll.hypervisor.vms.inventory import Inventory
from atoll.hypervisor.vms.records import Record, Records
from atoll.model.event import EventKind
from atoll.model.network import mac_for
from atoll.model.vm import VM, VmNic, VmState
from atoll.plan.recovery import Want
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


class Told(list[tuple[EventKind, str]]):
    def __call__(self, kind: EventKind, one: VM) -> None:
        self.append((kind, one.state))


@pytest.fixture
def records(tmp_path: Path) -> Records:
    found = Records(tmp_path)
    found.prepare()
    return found


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def inventory(records: Records, told: Told) -> Inventory:
    return Inventory("n1", records, {}, told)


def claimed(inventory: Inventory, one: VM | None = None) -> VM:
    one = one or vm()
    inventory.claim(Record(one, Want.RUNNING, committed=False, boot_id="b"))
    inventory.save(one)
    return one


def test_a_vm_is_found_by_everything_it_is_known_by(inventory: Inventory):
    one = claimed(inventory)
    assert inventory.show("web") is inventory.show(IP) is one
    assert inventory.find_port("lan", one.mac) == (one, 0)
    assert inventory.find_by_request("r-i-1").vm is one
    with pytest.raises(NotFound, match="VM 'db': there is none on n1"):
        inventory.show("db")


def test_a_change_is_on_disk_before_it_is_told(inventory: Inventory, records: Records, told: Told):
    one = claimed(inventory)
    running = inventory.update(one, state=VmState.RUNNING, committed=True)
    assert records.load() == {IP: Record(running, Want.RUNNING, committed=True, boot_id="b")}
    assert told == [(EventKind.CREATED, VmState.STARTING), (EventKind.CHANGED, VmState.RUNNING)]


def test_a_change_that_cannot_be_written_has_not_happened(
    inventory: Inventory, records: Records, told: Told, monkeypatch: pytest.MonkeyPatch
):
    one = claimed(inventory)

    def fail(record: Record) -> None:
        raise HostFailure("no space left")

    monkeypatch.setattr(records, "write", fail)
    with pytest.raises(HostFailure):
        inventory.update(one, state=VmState.RUNNING)
    assert inventory.show("web").state is VmState.STARTING
    assert told == [(EventKind.CREATED, VmState.STARTING)]


def test_a_new_state_takes_the_old_reason_away(inventory: Inventory):
    one = claimed(inventory)
    inventory.update(one, state=VmState.CRASHED, reason="it ended")
    assert inventory.update(one, ready={"dhcp": 1.0}).reason == "it ended"
    assert inventory.update(one, state=VmState.STARTING).reason == ""


def test_a_vm_that_is_forgotten_is_known_by_nothing(inventory: Inventory, records: Records, told: Told):
    one = claimed(inventory)
    inventory.forget(one)
    assert inventory.list() == ()
    assert inventory.find_port("lan", one.mac) is inventory.find_by_ip(IP) is None
    assert inventory.held() == frozenset()
    assert inventory.freed == {("lan", IP): 1}
    assert records.load() == {}
    assert told[-1] == (EventKind.DESTROYED, VmState.STARTING)


def test_the_next_vm_of_an_address_is_not_taken_for_the_one_before(inventory: Inventory):
    old = claimed(inventory)
    inventory.forget(old)
    new = claimed(inventory, vm("i-2", "db"))
    assert inventory.holds(new)
    assert not inventory.holds(old)
    for use in (inventory.current, inventory.record, inventory.forget, inventory.save, inventory.update):
        with pytest.raises(NotFound):
            use(old)
    assert inventory.show(IP) is new


async def test_one_who_waits_for_a_vm_that_goes_is_not_given_the_next_one(inventory: Inventory):
    old = claimed(inventory)

    async def wait() -> VM:
        async with inventory.alone_with(old) as found:
            return found

    async with inventory.lock(old):
        waiting = asyncio.create_task(wait())
        await asyncio.sleep(0)
        inventory.forget(old)
        claimed(inventory, vm("i-2", "db"))
    with pytest.raises(NotFound, match="VM 'web'"):
        await waiting


async def test_one_who_waits_gets_the_vm_as_it_is_then(inventory: Inventory):
    one = claimed(inventory)
    async with inventory.lock(one):
        waiting = asyncio.create_task(inventory.alone_with(one).__aenter__())
        await asyncio.sleep(0)
        inventory.update(one, state=VmState.RUNNING)
    assert (await waiting).state is VmState.RUNNING


def test_addresses_whose_records_cannot_be_read_are_held(inventory: Inventory, records: Records):
    directory = records.directory("10.1.0.9")
    directory.mkdir()
    for name in ("vm.json", "nic-10.2.0.9-storage"):
        (directory / name).touch()
    records.load()
    claimed(inventory)
    # In which subnet they are is not known for sure: they are held in all of them.
    assert inventory.held() == {("lan", IP), ("", "10.1.0.9"), ("", "10.2.0.9")}
    assert inventory.keys() >= {IP, "10.1.0.9"}


# --- with several interfaces


STORAGE = VmNic("10.2.0.5", "52:54:0a:02:00:05", "storage", "fd00:2::5054:aff:fe02:5")


def several(instance_id: str = "i-1", name: str = "web", ip: str = IP) -> VM:
    return structs.replace(vm(instance_id, name, ip), nics=(STORAGE,))


def test_a_vm_is_found_by_all_that_its_interfaces_have(inventory: Inventory):
    one = claimed(inventory, several())
    link_local = "fe80::5054:aff:fe02:5"
    for mark in (IP, one.mac):
        assert inventory.find_port("lan", mark) == (one, 0)
    for mark in (STORAGE.ip, STORAGE.mac, STORAGE.ip6, link_local):
        assert inventory.find_port("storage", mark) == (one, 1)
        assert inventory.find_port("lan", mark) is None
    # Its key is the first, and no other.
    assert inventory.find_by_ip(STORAGE.ip) is None
    inventory.forget(one)
    assert inventory.find_port("storage", STORAGE.ip) is inventory.find_port("storage", STORAGE.mac) is None


def test_all_addresses_of_a_vm_are_held_and_freed_together(inventory: Inventory):
    one = claimed(inventory, several())
    places = {("lan", IP), ("storage", STORAGE.ip)}
    assert inventory.held() == places
    assert inventory.keys() == {IP}
    inventory.forget(one)
    assert inventory.held() == frozenset()
    assert inventory.freed.keys() == places


def test_a_vm_that_moves_keeps_its_other_interfaces(inventory: Inventory):
    one = claimed(inventory, several())
    to = structs.replace(one, ip="10.3.0.5", mac=mac_for("10.3.0.5"), subnet="dmz")
    held: list[frozenset[tuple[str, str]]] = []
    new = inventory.move(one, to, lambda *_: held.append(inventory.held()))
    assert held == [{("lan", IP), ("dmz", "10.3.0.5"), ("storage", STORAGE.ip)}]
    assert inventory.held() == {("dmz", "10.3.0.5"), ("storage", STORAGE.ip)}
    assert inventory.freed.keys() == {("lan", IP)}
    assert inventory.find_port("storage", STORAGE.mac) == (new, 1)
    assert inventory.find_port("dmz", to.mac) == (new, 0)
    assert inventory.find_port("lan", one.mac) is None


def test_the_same_address_in_two_subnets_is_two_ports(inventory: Inventory):
    one, other = vm(), structs.replace(vm("i-2", "db", "10.1.0.6"), nics=(VmNic(IP, mac_for(IP), "tenant"),))
    for each in (one, other):
        claimed(inventory, each)
    for mark in (IP, mac_for(IP)):
        assert inventory.find_port("lan", mark) == (one, 0)
        assert inventory.find_port("tenant", mark) == (other, 1)
    inventory.forget(other)
    assert inventory.find_port("lan", IP) == (one, 0)
    assert inventory.find_port("tenant", IP) is None
