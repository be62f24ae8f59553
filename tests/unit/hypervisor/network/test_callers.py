"""From what is seen on the wires of a bridge to the machine that it is."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from msgspec import structs

from atoll.guestnet.netboot.library import Client
from atoll.hypervisor.network.callers import BridgeCallers, Callers, Census
from atoll.hypervisor.network.leases import Leases
from atoll.model.lease import Boot, LeaseState, Reservation
from atoll.model.network import Subnet
from atoll.model.vm import VM, VmNic
from atoll.plan.addresses import Given
from samples import a_vm

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
LAN = Subnet("lan", "10.1.0.0/24", "10.1.0.1")
STORAGE = Subnet("storage", "10.2.0.0/24", "10.2.0.1", bridge="br0")
BACKUP = Subnet("backup", "10.3.0.0/24", "10.3.0.1", bridge="br0", metadata=False)
TENANT = Subnet("tenant", "10.1.0.0/24", "10.1.0.1", private=True)
WEB = a_vm(nics=(VmNic("10.2.0.5", "52:54:0a:02:00:05", "storage"),))
DB = a_vm(
    ip="10.1.0.6",
    mac="52:54:0a:01:00:06",
    name="db",
    nics=(VmNic("10.3.0.6", "52:54:0a:03:00:06", "backup"), VmNic(WEB.ip, WEB.mac, "tenant")),
)
RACK = Reservation("10.2.0.9", "52:54:00:00:00:09", "rack1", "storage", Boot(image="tiny"))


class Node:
    def __init__(self) -> None:
        self.given = Given((LAN, STORAGE, BACKUP, TENANT)).add_lease(RACK)
        self.vms = (WEB, DB)
        self.leases = Leases(lambda: self.vms, lambda: self.given, lambda: NOON)
        self.reached: list[tuple[str, str]] = []
        self._callers = Callers(lambda ip: f"user data of {ip}".encode())
        census = Census(
            lambda: self.given,
            self.leases,
            self.find_port,
            lambda: tuple(self.vms),
            lambda *note: self.reached.append(note),
        )
        self._callers.count(census)

    def find_port(self, subnet: str, mark: str) -> tuple[VM, int] | None:
        for vm in self.vms:
            for index, nic in enumerate(vm.all_nics):
                if nic.subnet == subnet and mark in nic.marks:
                    return vm, index
        return None

    def on(self, bridge: str) -> BridgeCallers:
        return self._callers.on(bridge)

    def bound(self) -> set[tuple[str, str]]:
        return {(one.subnet, one.mac) for one in self.leases.list() if one.state is LeaseState.BOUND}


@pytest.fixture
def node() -> Node:
    return Node()


def test_a_mac_is_whoever_has_it_on_that_bridge(node: Node):
    lan, tenant = (node.on(bridge).lease(WEB.mac) for bridge in ("br-lan", "br-tenant"))
    assert lan is not None
    assert tenant is not None
    assert (lan.hostname, lan.subnet, lan.is_default_route) == ("web", LAN, True)
    assert (tenant.hostname, tenant.subnet, tenant.is_default_route) == ("db", TENANT, False)
    assert node.on("br0").lease(WEB.mac) is None
    assert node.on("br-else").lease(WEB.mac) is None


def test_so_is_an_address(node: Node):
    assert [node.on(bridge).guest(WEB.ip).vm.name for bridge in ("br-lan", "br-tenant")] == ["web", "db"]
    assert node.on("br0").guest(WEB.ip) is None


def test_subnets_that_share_a_bridge_share_its_servers(node: Node):
    shared = node.on("br0")
    names = [shared.lease(mac).hostname for mac in (WEB.nics[0].mac, DB.nics[0].mac, RACK.mac)]
    assert names == ["web", "db", "rack1"]
    assert [lease.hostname for lease in shared.leases("storage")] == ["web", "rack1"]


def test_a_subnet_can_switch_metadata_off_for_what_calls_from_there(node: Node):
    assert node.on("br0").guest(DB.nics[0].ip) is None
    assert node.on("br-lan").guest(DB.ip) is not None


def test_a_guest_is_the_vm_with_all_that_it_may_read(node: Node):
    node.vms = (structs.replace(WEB, user_data_sha256="00"), DB)
    guest = node.on("br0").guest(WEB.nics[0].ip)
    assert guest is not None
    assert (guest.subnet, guest.extra_subnets) == (LAN, (STORAGE,))
    assert guest.read_user_data() == b"user data of " + WEB.ip.encode()
    assert node.on("br-lan").guest(DB.ip).user_data is None


def test_what_became_of_a_lease_is_noted_by_subnet_and_mac(node: Node):
    node.on("br-tenant").used(WEB.mac, LeaseState.BOUND)
    assert node.bound() == {("tenant", WEB.mac)}
    node.on("br0").used(RACK.mac, LeaseState.BOUND)
    assert node.bound() == {("tenant", WEB.mac), ("storage", RACK.mac)}
    node.on("br0").used("52:54:00:00:00:77", LeaseState.BOUND)
    assert node.reached == []


def test_how_far_a_vm_is_goes_by_its_key_and_its_first_interface(node: Node):
    node.on("br0").used(WEB.nics[0].mac, LeaseState.BOUND)
    assert node.reached == []
    node.on("br-lan").used(WEB.mac, LeaseState.RELEASED)
    node.on("br-lan").used(WEB.mac, LeaseState.BOUND)
    assert node.reached == [(WEB.ip, "dhcp")]
    guest = node.on("br-tenant").guest(WEB.ip)
    assert guest is not None
    node.on("br-tenant").read(guest, "/latest/user-data")
    assert node.reached[-1] == (DB.ip, "metadata")


def test_a_vm_boots_its_own_image_from_its_first_interface_and_a_machine_that_of_its_lease(node: Node):
    assert node.on("br-lan").client(WEB.ip) == Client(WEB.ip, WEB.mac, WEB.image, WEB.image_digest)
    assert node.on("br0").client(WEB.nics[0].ip) is None
    assert node.on("br0").client(RACK.ip) == Client(RACK.ip, RACK.mac, "tiny")
    assert node.on("br-tenant").client("10.1.0.77") is None
