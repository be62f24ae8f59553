"""Disks as QEMU is told of them. Pure.

Those with virtio and NVMe are each behind a port of its own, so that it can go and others come. IDE disks are behind
one controller, two on each of its two buses, from start to end; its model is one for which every kernel has a driver.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct

from atoll.drivers.machine.base import Disk, Machine
from atoll.model.vm import MachineType
from atoll.model.volume import DiskInterface

SPARE_PORTS = 2
"""For disks that come while the machine runs. Both cost a cold boot one per cent of its instructions."""

_FIRST_SET = 16
_PER_SLOT = 8
_FIRST_SLOT = 0x10
_IDE = "ide"
_PER_IDE_BUS = 2


class Places(Struct, frozen=True):
    """The ports of a machine, and which of its disks is behind which of them."""

    ports: int
    disks: dict[str, int]


def places_of(devices: Iterable[str]) -> Places:
    """Those of a machine with these devices."""
    found = list(devices)
    ports = sum(name.startswith("port") for name in found)
    behind = (name.partition("-") for name in found if is_behind_port(name))
    return Places(ports, {disk: int(port.removeprefix("disk")) for port, _, disk in behind})


def disk_args(
    machine: Machine, board: MachineType, numbers: Sequence[int], places: Places | None = None
) -> list[str]:
    """Ports, and the disks that a machine starts with: behind the first of them, unless their places are given."""
    on_ide = [disk for disk in machine.disks if disk.interface is DiskInterface.IDE]
    on_ports = [disk for disk in machine.disks if disk.interface is not DiskInterface.IDE]
    # A microvm has no PCI: as it starts so it stays.
    if places is None:
        count = 0 if board is MachineType.MICROVM else len(on_ports) + SPARE_PORTS
        places = Places(count, {disk.name: port for port, disk in enumerate(on_ports)})
    count = places.ports
    ports = [port_device(port) for port in range(count)]
    args = [word for port in ports for word in ("-device", port)]
    if on_ide:
        args += ["-device", f"piix3-ide,id={_IDE}"]
    for index, (disk, number) in enumerate(zip(machine.disks, numbers, strict=True)):
        file_set = _FIRST_SET + index
        if disk.interface is DiskInterface.IDE:
            device = ide_device(disk, on_ide.index(disk))
        else:
            device = block_device(disk, places.disks[disk.name] if ports else None)
        args += ["-add-fd", f"fd={number},set={file_set},opaque={disk.name}"]
        args += ["-blockdev", _json(block_node(disk, file_set)), "-device", _json(device)]
    return args


def port_device(port: int) -> str:
    """A port on the root bus; eight of them share a slot."""
    slot, function = divmod(port, _PER_SLOT)
    several = ",multifunction=on" if function == 0 else ""
    place = f"addr={_FIRST_SLOT + slot:#x}.{function}{several}"
    return f"pcie-root-port,id=port{port},chassis={port + 1},slot={port + 1},{place}"


def block_node(disk: Disk, file_set: int) -> dict[str, Any]:
    # Through the host's cache, and written through when the guest says so: as safe as without, and memory will do too.
    file = {"driver": "file", "filename": f"/dev/fdset/{file_set}", "discard": "unmap"}
    return {"driver": disk.format, "node-name": node_name(disk.name), "discard": "unmap", "file": file}


def block_device(disk: Disk, port: int | None) -> dict[str, Any]:
    common = {"drive": node_name(disk.name), "serial": disk.name}
    if port is None:
        return {"driver": "virtio-blk-device", "id": f"disk-{disk.name}", **common}
    driver = "nvme" if disk.interface is DiskInterface.NVME else "virtio-blk-pci"
    return {"driver": driver, "id": f"disk{port}-{disk.name}", "bus": f"port{port}", **common}


def ide_device(disk: Disk, place: int) -> dict[str, Any]:
    bus, unit = divmod(place, _PER_IDE_BUS)
    common = {"drive": node_name(disk.name), "serial": disk.name}
    return {"driver": "ide-hd", "id": f"disk-{disk.name}", "bus": f"{_IDE}.{bus}", "unit": unit, **common}


def node_name(name: str) -> str:
    return f"node-{name}"


def device_of(name: str, devices: Iterable[str]) -> str | None:
    """The device of this disk among those that a machine has."""
    for device in devices:
        kind, dash, disk = device.partition("-")
        if dash and kind.startswith("disk") and disk == name:
            return device
    return None


def first_free(devices: Iterable[str]) -> int | None:
    """The first port that nothing is behind; None when there is none."""
    found = list(devices)
    ports = {int(name.removeprefix("port")) for name in found if name.startswith("port")}
    taken = {int(name.partition("-")[0].removeprefix("disk")) for name in found if is_behind_port(name)}
    return min(ports - taken, default=None)


def is_behind_port(device: str) -> bool:
    kind, dash, _ = device.partition("-")
    return bool(dash) and kind.removeprefix("disk").isdecimal()


def sets_of(name: str, sets: Iterable[dict[str, Any]]) -> list[int]:
    """The sets that hold the file of a disk, as `query-fdsets` shows them."""
    return [each["fdset-id"] for each in sets if any(one.get("opaque") == name for one in each["fds"])]


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value)
