"""What a create with hardware of its own comes to."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from atoll.api.hypervisor import CreateVm
from atoll.api.replay import as_request
from atoll.errors import Conflict, Invalid
from atoll.hypervisor.vms.creation import Room, plan_vm
from atoll.identity.access import Operators
from atoll.model.hardware import BootFrom, Netboot, Watchdog, WatchdogAction, boot_from
from atoll.model.identity import Identity
from atoll.model.image import DirectBoot, Image
from atoll.model.network import Address, Subnet, mac_for
from atoll.model.node import Capacity
from atoll.model.vm import VM, MachineType, VmSpec
from atoll.model.volume import DiskInterface, VolumeSpec, VolumeType
from atoll.plan.addresses import Given
from atoll.plan.volumes import Space

IMAGE = Image("appliance", ("qemu", "lxc"), DirectBoot("k", "i"), "d1")
SUBNET = Subnet(id="blue", cidr="10.1.0.0/24", gateway="10.1.0.1")
INTERFACES = tuple(DiskInterface)
ROOM = Room(
    node="n1",
    operators=Operators(),
    total=Capacity(2000, 4096, 4096),
    vms=(),
    given=Given().add_subnet(SUBNET).add_addresses("blue", [Address("10.1.0.5", mac_for("10.1.0.5"))]),
    held=(),
    freed={},
    hardware_kinds=frozenset({"qemu"}),
    disk_kinds=frozenset({"qemu"}),
    spaces=(Space("fast", 1, 4096),),
)
ASKED = [
    {"kernel_options": "quiet foo=1"},
    {"watchdog": Watchdog.I6300ESB, "watchdog_action": WatchdogAction.POWEROFF},
    {"netboot": Netboot.ALWAYS},
]


def plan(driver: str, **asked: Any) -> VM:
    request = CreateVm(VmSpec(name="web", image="appliance", driver=driver, **asked))
    now = datetime(2026, 1, 1, tzinfo=UTC)
    return plan_vm(request, Identity("ann"), IMAGE, ROOM, now=now, instance_id="i-1")


@pytest.mark.parametrize("asked", ASKED)
def test_what_was_asked_for_can_be_read_back_and_asked_for_again(asked: dict[str, Any]) -> None:
    vm = plan("qemu", **asked)
    again = as_request(vm, b"").spec
    for name, value in asked.items():
        assert getattr(vm, name) == getattr(again, name) == value


@pytest.mark.parametrize("asked", ASKED)
def test_a_kind_with_the_hosts_kernel_is_refused_it_and_told_who_has_its_own(asked: dict[str, Any]) -> None:
    with pytest.raises(Conflict, match="machines of kind lxc have the kernel of their host") as refusal:
        plan("lxc", **asked)
    assert "qemu" in refusal.value.hint


@pytest.mark.parametrize("options", ["a\nb", "a\n", "\x7f", "é", "x" * 513])
def test_kernel_options_are_short_printable_and_on_one_line(options: str) -> None:
    with pytest.raises(Invalid, match="printable characters on one line"):
        plan("qemu", kernel_options=options)


def test_a_microvm_has_no_watchdog() -> None:
    with pytest.raises(Invalid, match="microvm has no place for one"):
        plan("qemu", watchdog=Watchdog.I6300ESB, machine_type=MachineType.MICROVM)


def test_each_volume_has_its_interface_and_is_asked_for_with_it_again() -> None:
    volumes = tuple(VolumeSpec(1, interface=interface) for interface in INTERFACES)
    vm = plan("qemu", volumes=volumes)
    assert tuple(volume.interface for volume in vm.volumes[1:]) == INTERFACES
    assert tuple(volume.interface for volume in as_request(vm, b"").spec.volumes) == INTERFACES


@pytest.mark.parametrize("interface", [DiskInterface.NVME, DiskInterface.IDE])
def test_a_microvm_has_virtio_disks_only(interface: DiskInterface) -> None:
    with pytest.raises(Invalid, match="microvm has virtio disks only"):
        plan("qemu", volumes=(VolumeSpec(1, interface=interface),), machine_type=MachineType.MICROVM)


def test_a_machine_has_four_ide_disks_at_most() -> None:
    ide = VolumeSpec(1, interface=DiskInterface.IDE)
    assert len(plan("qemu", volumes=(ide,) * 4).volumes) == 5
    with pytest.raises(Invalid, match="5 ide volumes"):
        plan("qemu", volumes=(ide,) * 5)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"netboot": Netboot.ALWAYS, "machine_type": MachineType.MICROVM}, "cannot boot from the network"),
        ({"netboot": Netboot.ALWAYS, "kernel_options": "quiet"}, "are for the image's kernel"),
        ({"netboot": Netboot.FIRST}, "needs a volume to boot from afterwards"),
        (
            {"netboot": Netboot.FIRST, "volumes": (VolumeSpec(1, type=VolumeType.MEMORY),)},
            "needs a volume to boot from afterwards",
        ),
    ],
)
def test_what_cannot_boot_from_the_network_or_from_nothing_afterwards_is_refused(
    asked: dict[str, Any], says: str
) -> None:
    with pytest.raises(Invalid, match=says):
        plan("qemu", **asked)


def test_the_first_boot_is_from_the_network_and_the_next_from_the_disk() -> None:
    vm = plan("qemu", netboot=Netboot.FIRST, volumes=(VolumeSpec(1),))
    assert boot_from(vm.netboot, has_run=bool(vm.started_by)) is BootFrom.NETWORK_ONCE
    assert boot_from(vm.netboot, has_run=True) is BootFrom.DISK
    assert boot_from(Netboot.ALWAYS, has_run=True) is BootFrom.NETWORK
    assert boot_from(Netboot.NEVER, has_run=False) is BootFrom.IMAGE
