"""Volumes: the disks of a VM. Pure values."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from atoll.model.checks import check_range


class VolumeFormat(StrEnum):
    RAW = "raw"
    QCOW2 = "qcow2"
    MEMORY = "memory"
    """The root lives in the guest's memory and is gone when it stops."""


class Volume(Struct, frozen=True):
    """One disk, the root first."""

    format: VolumeFormat
    size_mib: int

    def __post_init__(self) -> None:
        check_range("size_mib", self.size_mib, 0, 1 << 40, "MiB")
