from __future__ import annotations

import asyncio
from contextlib import aclosing
from datetime import UTC, datetime

from msgspec import structs

from atoll.hypervisor.network.leases import Leases
from atoll.model.lease import Boot, Holder, Lease, LeaseState, Reservation
from atoll.model.network import METADATA_IP, Subnet
from atoll.model.vm import MachineType, VmNic
from atoll.plan.addresses import Given
from samples import a_vm

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
LAN = Subnet("lan", "10.1.0.0/24", "10.1.0.1")
RACK = Reservation("10.1.0.9", "52:54:00:00:00:09", "rack1", "lan", Boot(image="tiny"))
WEB = a_vm(driver="qemu", image_digest="", machine_type=MachineType.Q35, owner_users=(), created_at=NOON)


class Node:
    def __init__(self) -> None:
        self.given = Given().add_subnet(LAN).add_lease(RACK)
        self.vms = [WEB]
        self.leases = Leases(lambda: self.vms, lambda: self.given, lambda: NOON)

    def states(self) -> dict[str, str]:
        return {lease.hostname: lease.state for lease in self.leases.list()}


def test_vms_and_machines_have_leases_that_nobody_has_used_yet() -> None:
    web, rack = Node().leases.list()
    assert (web.hostname, web.holder, web.state) == ("web", Holder.VM, LeaseState.UNUSED)
    assert (rack.hostname, rack.holder, rack.boot) == ("rack1", Holder.MACHINE, Boot(image="tiny"))


def test_each_interface_of_a_vm_has_a_lease_and_the_first_alone_is_its_way_out() -> None:
    node = Node()
    nic = VmNic("10.2.0.5", "52:54:0a:02:00:05", "dmz")
    node.given = node.given.add_subnet(Subnet("dmz", "10.2.0.0/24", "10.2.0.1"))
    node.vms = [structs.replace(WEB, nics=(nic,))]
    told = {one.mac: one for one in (node.leases.of_vm(node.vms[0], index) for index in (0, 1))}
    assert {
        mac: (one.ip, one.subnet.id, one.hostname, one.is_default_route) for mac, one in told.items()
    } == {
        WEB.mac: (WEB.ip, "lan", "web", True),
        nic.mac: (nic.ip, "dmz", "web", False),
    }
    listed = [(lease.ip, lease.hostname, lease.subnet, lease.holder) for lease in node.leases.list()]
    assert (nic.ip, "web", "dmz", Holder.VM) in listed
    assert [lease.mac for lease in node.leases.all_of("dmz")] == [nic.mac]
    assert [lease.mac for lease in node.leases.all_of("lan")] == [WEB.mac, RACK.mac]


def test_what_a_machine_does_with_its_lease_is_seen() -> None:
    node = Node()
    node.leases.note("lan", WEB.mac, LeaseState.BOUND)
    (web, _) = node.leases.list()
    assert (web.state, web.changed_at) == (LeaseState.BOUND, NOON)
    assert web.expires_at is not None
    node.leases.note("lan", WEB.mac, LeaseState.RELEASED)
    assert node.states() == {"web": "released", "rack1": "unused"}


def test_the_next_vm_on_an_address_begins_anew() -> None:
    node = Node()
    node.leases.note("lan", WEB.mac, LeaseState.BOUND)
    node.leases.forget("lan", WEB.mac)
    assert node.states()["web"] == "unused"


def test_a_machine_is_told_to_come_to_the_service_address_of_its_subnet() -> None:
    node = Node()
    lease = node.leases.of_machine(RACK)
    assert (lease.server, lease.boot.image) == (METADATA_IP, "tiny")
    node.given = Given().add_subnet(structs.replace(LAN, service_ip="10.1.0.2")).add_lease(RACK)
    assert node.leases.of_machine(RACK).server == "10.1.0.2"


def test_a_machine_is_found_by_its_mac_or_address_in_its_subnet() -> None:
    leases = Node().leases
    assert leases.find_machine("lan", RACK.mac) is leases.find_machine("lan", RACK.ip) is RACK
    assert leases.find_machine("lan", "52:54:00:00:00:77") is None
    assert leases.find_machine("dmz", RACK.mac) is None


def test_a_note_is_of_one_subnet_where_two_have_the_same_mac() -> None:
    node = Node()
    tenant = Subnet("tenant", "10.1.0.0/24", "10.1.0.1", private=True)
    node.given = node.given.add_subnet(tenant).add_lease(
        structs.replace(RACK, hostname="twin", subnet="tenant")
    )
    node.leases.note("tenant", RACK.mac, LeaseState.BOUND)
    assert node.states() == {"web": "unused", "rack1": "unused", "twin": "bound"}


async def test_a_reader_sees_all_leases_then_each_that_changes_comes_or_goes() -> None:
    node, seen = Node(), asyncio.Queue[Lease]()

    async def watch() -> None:
        async with aclosing(node.leases.read(follow=True)) as leases:
            async for lease in leases:
                seen.put_nowait(lease)

    async def news() -> tuple[str, str]:
        lease = await asyncio.wait_for(seen.get(), 1)
        return lease.hostname, lease.state

    watcher = asyncio.create_task(watch())
    assert [await news(), await news()] == [("web", "unused"), ("rack1", "unused")]
    node.leases.note("lan", RACK.mac, LeaseState.BOUND)
    assert await news() == ("rack1", "bound")
    node.vms.clear()
    node.leases.forget("lan", WEB.mac)
    assert await news() == ("web", "gone")
    node.leases.wake()
    await asyncio.sleep(0)
    assert seen.empty()
    watcher.cancel()


async def test_a_reader_that_does_not_follow_gets_an_end() -> None:
    node = Node()
    assert [lease.hostname async for lease in node.leases.read(follow=False)] == ["web", "rack1"]
