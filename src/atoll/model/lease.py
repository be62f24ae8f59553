"""Leases: which machine has which address by DHCP, and what it boots from. Pure values."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from atoll.model.checks import (
    ImageName,
    Ip,
    Mac,
    Name,
    check_image,
    check_ip,
    check_mac,
    check_name,
    check_pattern,
)

BOOT_FILE_PATTERN = r"^[\x21-\x7e]{0,255}$"

BootFile = Annotated[
    str, Meta(pattern=BOOT_FILE_PATTERN, max_length=255, description="a file on our TFTP server, or a URL")
]


class Boot(Struct, frozen=True, forbid_unknown_fields=True):
    """What a machine that boots over the network is told. Left empty, it follows from its firmware."""

    file: BootFile = ""
    """For firmware."""
    script: BootFile = ""
    """For iPXE, which firmware loads, or is."""
    server: Ip | None = None
    """Another TFTP server than ours."""
    image: ImageName | None = None
    """What our own script boots."""

    def __post_init__(self) -> None:
        for field, value in (("file", self.file), ("script", self.script)):
            check_pattern(field, value, BOOT_FILE_PATTERN, "at most 255 printable characters without blanks")
        if self.server is not None:
            check_ip("server", self.server)
        if self.image is not None:
            check_image("image", self.image)


class Reservation(Struct, frozen=True, forbid_unknown_fields=True):
    """An address for a machine that is not a VM of this node."""

    ip: Ip
    mac: Mac
    hostname: Name
    subnet: Name
    boot: Boot = Boot()

    def __post_init__(self) -> None:
        check_ip("ip", self.ip)
        check_mac("mac", self.mac)
        check_name("hostname", self.hostname)
        check_name("subnet", self.subnet)


class LeaseState(StrEnum):
    UNUSED = "unused"
    """Nobody has asked for it since the agent started."""
    BOUND = "bound"
    RELEASED = "released"
    DECLINED = "declined"
    """The machine found somebody else on its address."""
    GONE = "gone"
    """The last that is heard of a lease that was taken away."""


class Holder(StrEnum):
    VM = "vm"
    MACHINE = "machine"


class Lease(Struct, frozen=True):
    """A lease as it stands."""

    ip: Ip
    mac: Mac
    hostname: str
    subnet: str
    holder: Holder
    state: LeaseState
    changed_at: datetime | None = None
    expires_at: datetime | None = None
    """When it would be free, if leases ever were: it is the machine's for good."""
    boot: Boot | None = None
