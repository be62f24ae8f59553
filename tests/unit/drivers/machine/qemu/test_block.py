from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec import structs

from atoll.drivers.machine.base import Disk, Nic
from atoll.drivers.machine.qemu.block import (
    SPARE_PORTS,
    Places,
    block_device,
    device_of,
    disk_args,
    first_free,
    places_of,
    port_device,
    sets_of,
)
from atoll.model.vm import MachineType
from atoll.model.volume import DiskInterface
from samples import a_machine

DATA = Disk("data", 64, "qcow2", Path("/volumes/10.1.0.5/data.qcow2"))
SCRATCH = Disk("my-scratch", 8)
MACHINE = a_machine(
    nic=Nic(link="vm5", bridge="br0", mac="02:00:0a:01:00:05", mtu=1500),
    directory=Path("/state"),
    cgroup="none",
    disks=(DATA, SCRATCH),
)


def test_each_disk_is_behind_a_port_of_its_own_and_some_are_free():
    args = disk_args(MACHINE, MachineType.Q35, (20, 21))
    assert args[: 2 * (2 + SPARE_PORTS)].count("-device") == 2 + SPARE_PORTS
    assert args[-12:] == [
        "-add-fd", "fd=20,set=16,opaque=data",
        "-blockdev",
        '{"driver": "qcow2", "node-name": "node-data", "discard": "unmap", "file": {"driver": "file", '
        '"filename": "/dev/fdset/16", "discard": "unmap"}}',
        "-device",
        '{"driver": "virtio-blk-pci", "id": "disk0-data", "bus": "port0", "drive": "node-data", "serial": "data"}',
        "-add-fd", "fd=21,set=17,opaque=my-scratch",
        "-blockdev",
        '{"driver": "raw", "node-name": "node-my-scratch", "discard": "unmap", "file": {"driver": "file", '
        '"filename": "/dev/fdset/17", "discard": "unmap"}}',
        "-device",
        '{"driver": "virtio-blk-pci", "id": "disk1-my-scratch", "bus": "port1", "drive": "node-my-scratch", '
        '"serial": "my-scratch"}',
    ]  # fmt: skip


def test_no_path_of_the_host_is_told():
    assert "/volumes" not in " ".join(disk_args(MACHINE, MachineType.Q35, (20, 21)))


def test_a_microvm_has_its_disks_and_no_ports():
    args = disk_args(MACHINE, MachineType.MICROVM, (20, 21))
    devices = [
        json.loads(value) for option, value in zip(args, args[1:], strict=False) if option == "-device"
    ]
    assert [device["driver"] for device in devices] == ["virtio-blk-device"] * 2
    assert disk_args(structs.replace(MACHINE, disks=()), MachineType.MICROVM, ()) == []


def test_eight_ports_share_a_slot():
    assert port_device(7).endswith("chassis=8,slot=8,addr=0x10.7")
    assert port_device(8).endswith("chassis=9,slot=9,addr=0x11.0,multifunction=on")


DEVICES = ["type", "port0", "port1", "port2", "disk0-data", "disk2-my-scratch", "net0"]


def test_a_free_port_is_one_that_no_disk_is_behind():
    assert first_free(DEVICES) == 1
    assert first_free([*DEVICES, "disk1-x"]) is None
    assert first_free([]) is None


@pytest.mark.parametrize(
    ("name", "device"),
    [("data", "disk0-data"), ("my-scratch", "disk2-my-scratch"), ("scratch", None), ("0", None), ("x", None)],
)
def test_the_device_of_a_disk_is_known_by_its_name(name: str, device: str | None):
    assert device_of(name, DEVICES) == device
    assert device_of("data", ["disk-data"]) == "disk-data"


def test_what_a_disk_is_called_when_it_comes_is_how_it_is_found():
    for port in (None, 0, 17):
        assert device_of(SCRATCH.name, [block_device(SCRATCH, port)["id"]]) is not None


def test_the_files_of_a_disk_are_found_by_its_name():
    sets = [
        {"fdset-id": 1, "fds": [{"fd": 9, "opaque": "console.log"}]},
        {"fdset-id": 16, "fds": [{"fd": 10, "opaque": "data"}]},
        {"fdset-id": 2, "fds": [{"fd": 11}]},
    ]
    assert sets_of("data", sets) == [16]


def test_each_interface_has_its_device_and_only_ide_its_controller_and_no_port() -> None:
    names = ("virtio", "ide", "nvme", "ide", "ide")
    disks = tuple(Disk(f"d{number}", 1, interface=DiskInterface(name)) for number, name in enumerate(names))
    args = disk_args(structs.replace(MACHINE, disks=disks), MachineType.Q35, range(20, 25))
    devices = [args[at + 1] for at, word in enumerate(args) if word == "-device"]
    assert [device for device in devices if device.startswith("pcie-root-port")] == devices[: 2 + SPARE_PORTS]
    assert devices.count("piix3-ide,id=ide") == 1
    placed = [json.loads(device) for device in devices if device.startswith("{")]
    assert [(device["driver"], device["bus"], device.get("unit")) for device in placed] == [
        ("virtio-blk-pci", "port0", None),
        ("ide-hd", "ide.0", 0),
        ("nvme", "port1", None),
        ("ide-hd", "ide.0", 1),
        ("ide-hd", "ide.1", 0),
    ]


def test_a_machine_that_goes_on_has_its_disks_where_they_were():
    found = ["port0", "port1", "port2", "disk2-data", "disk0-my-scratch", "hands", "disk-old"]
    places = places_of(found)
    assert places == Places(3, {"data": 2, "my-scratch": 0})
    args = disk_args(MACHINE, MachineType.Q35, (7, 8), places)
    assert sum("pcie-root-port" in word for word in args) == 3
    devices = [json.loads(word) for word in args if word.startswith('{"driver": "virtio-blk')]
    assert [(one["serial"], one["bus"]) for one in devices] == [("data", "port2"), ("my-scratch", "port0")]
