"""Volumes: the disks of a VM, and where a node keeps them. Pure values.

The root comes first and is the image's. The others are named: a guest finds them by that name (it is the
serial number of the disk), whatever their order is.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from atoll.errors import Conflict, Invalid, NotFound
from atoll.model.checks import Name, check_name, check_pattern, check_range

# A virtio disk's serial number has 20 bytes.
VOLUME_PATTERN = r"^[a-z0-9]([a-z0-9-]{0,18}[a-z0-9])?$"
MAX_VOLUME_MIB = 1 << 30
MAX_VOLUMES = 16
MAX_IDE_VOLUMES = 4
MIN_ROOT_MIB = 16
ROOT = "root"

VolumeName = Annotated[str, Meta(pattern=VOLUME_PATTERN, max_length=20)]
VolumeMib = Annotated[int, Meta(ge=1, le=MAX_VOLUME_MIB)]
RootMib = Annotated[int, Meta(ge=MIN_ROOT_MIB, le=MAX_VOLUME_MIB)]


class VolumeFormat(StrEnum):
    RAW = "raw"
    QCOW2 = "qcow2"
    MEMORY = "memory"
    """The root lives in the guest's memory and is gone when it stops."""


class VolumeType(StrEnum):
    PERSISTENT = "persistent"
    MEMORY = "memory"
    """In the node's memory: fast, counted as memory, and empty again after every stop."""


class FileSystem(StrEnum):
    NONE = "none"
    EXT4 = "ext4"


class DiskInterface(StrEnum):
    """As what a guest finds a disk."""

    VIRTIO = "virtio"
    NVME = "nvme"
    IDE = "ide"
    """For guests that know no other. Such a disk comes and goes at a start only, and a machine has four at most."""


def device_path(name: str, interface: DiskInterface) -> str:
    """Where a Linux guest finds a disk, whatever its order is: its serial number is the name of the volume."""
    kinds = {DiskInterface.NVME: "nvme-QEMU_NVMe_Ctrl_", DiskInterface.IDE: "ata-QEMU_HARDDISK_"}
    return f"/dev/disk/by-id/{kinds.get(interface, 'virtio-')}{name}"


class VolumeSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """A volume that a user asks for."""

    size_mib: VolumeMib
    name: VolumeName | None = None
    """Left out: vol1, vol2 and so on."""
    format: VolumeFormat = VolumeFormat.RAW
    fs: FileSystem = FileSystem.NONE
    type: VolumeType = VolumeType.PERSISTENT
    store: Name | None = None
    """Left out: the store that has most room."""
    interface: DiskInterface = DiskInterface.VIRTIO

    def __post_init__(self) -> None:
        check_range("size_mib", self.size_mib, 1, MAX_VOLUME_MIB, "MiB")
        if self.name is not None:
            check_volume_name(self.name)
        if self.format is VolumeFormat.MEMORY:
            raise Invalid("format", str(self.format), "is for roots", hint="say type=memory, format=raw")
        if self.store is not None:
            check_name("store", self.store)
        if self.type is VolumeType.MEMORY and (self.format is not VolumeFormat.RAW or self.store is not None):
            raise Invalid("type", str(self.type), "has no store, and is always raw", hint="leave both out")


class Volume(Struct, frozen=True):
    """One disk, the root first."""

    format: VolumeFormat
    size_mib: int
    name: str = ROOT
    fs: FileSystem = FileSystem.NONE
    type: VolumeType = VolumeType.PERSISTENT
    store: str = ""
    """Where it is kept; empty for what is in memory, and for a root, which its VM's kind keeps."""
    attached: bool = True
    """Whether the guest has it; one that is detached is kept, and counted."""
    made: bool = True
    """Not while its content is on its way."""
    interface: DiskInterface = DiskInterface.VIRTIO

    def __post_init__(self) -> None:
        check_range("size_mib", self.size_mib, 0, 1 << 40, "MiB")

    @property
    def file(self) -> str:
        """The name of its file, in the directory of its VM in its store."""
        return f"{self.name}.{self.format}"

    @property
    def device(self) -> str:
        """Where a Linux guest finds it; empty for the root, which is not a disk of its own."""
        return "" if self.name == ROOT else device_path(self.name, self.interface)

    @property
    def in_memory(self) -> bool:
        return self.type is VolumeType.MEMORY or self.format is VolumeFormat.MEMORY


class KeptUntil(StrEnum):
    """How long a volume keeps what is on it."""

    DESTROY = "destroy"
    """Until its VM is destroyed, or it is deleted."""
    STOP = "stop"
    """Until its VM stops, for whatever reason: it is in memory."""


class Kept(Struct, frozen=True):
    """How long a volume of a VM, or its root, keeps what is on it."""

    name: str
    until: KeptUntil


class StoreInfo(Struct, frozen=True):
    """A place for volumes. Stores on one file system share what is free there."""

    name: str
    total_mib: int
    free_mib: int
    problem: str = ""
    """Why it is not used; what is in it is left alone."""


class Unclaimed(Struct, frozen=True):
    """Something in a store that no record names: moved out of the way, and kept for a while."""

    store: str
    name: str
    """In `.attic` of the store."""
    until: datetime


def check_volume_name(name: str) -> str:
    check_pattern(
        "volume", name, VOLUME_PATTERN, "1 to 20 of a-z, 0-9 and '-', not beginning or ending with '-'"
    )
    if name == ROOT:
        raise Invalid("volume", name, "is the root's own name", hint="choose another one")
    return name


def check_volumes(volumes: Sequence[VolumeSpec]) -> None:
    if len(volumes) > MAX_VOLUMES:
        raise Invalid("volumes", f"{len(volumes)} volumes", f"must be at most {MAX_VOLUMES}")
    names = [volume.name for volume in volumes if volume.name is not None]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise Invalid("volume", twice, "is given twice")


def check_interfaces(volumes: Sequence[VolumeSpec | Volume], *, has_pci: bool) -> None:
    """What a machine can have of each: `has_pci` is not so of a microvm."""
    other = next((volume for volume in volumes if volume.interface is not DiskInterface.VIRTIO), None)
    if other is not None and not has_pci:
        raise Invalid(
            "interface",
            str(other.interface),
            "machine type microvm has virtio disks only",
            hint="choose machine type q35, or interface=virtio",
        )
    ide = sum(volume.interface is DiskInterface.IDE for volume in volumes)
    if ide > MAX_IDE_VOLUMES:
        raise Invalid(
            "interface",
            f"{ide} ide volumes",
            f"must be at most {MAX_IDE_VOLUMES}",
            hint="choose nvme or virtio",
        )


def named(volumes: Sequence[VolumeSpec], taken: Sequence[str] = ()) -> tuple[str, ...]:
    """The names of volumes to be: those asked for, and for the others the first ones that are free."""
    used = {*taken, *(volume.name for volume in volumes if volume.name is not None)}
    names = []
    for volume in volumes:
        free = (f"vol{number}" for number in range(1, 2 + len(used) + len(volumes)))
        name = volume.name or next(name for name in free if name not in used)
        used.add(name)
        names.append(name)
    return tuple(names)


def find(volumes: Sequence[Volume], name: str, vm: str) -> Volume:
    """The volume of this name beside the root."""
    if name == ROOT:
        raise Conflict(f"VM {vm}: its root is the image's", hint="only the volumes beside it can be changed")
    for volume in volumes:
        if volume.name == name:
            return volume
    known = ", ".join(volume.name for volume in volumes if volume.name != ROOT) or "none"
    raise NotFound(f"volume {name!r}: VM {vm} has none of that name", hint=f"it has: {known}")
