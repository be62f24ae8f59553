"""What a VM with a kernel and devices of its own may ask for: kernel options, a watchdog, how it boots. Pure values."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from atoll.model.checks import check_pattern

MAX_KERNEL_OPTIONS = 512
KERNEL_OPTIONS_PATTERN = rf"^[\x20-\x7e]{{0,{MAX_KERNEL_OPTIONS}}}$"

KernelOptions = Annotated[str, Meta(pattern=KERNEL_OPTIONS_PATTERN, max_length=MAX_KERNEL_OPTIONS)]


class Watchdog(StrEnum):
    """A device that a guest has to stir again and again, once it has begun to."""

    NONE = "none"
    I6300ESB = "i6300esb"


class WatchdogAction(StrEnum):
    """What comes of a guest that stirs its watchdog no more."""

    NONE = "none"
    RESET = "reset"
    SHUTDOWN = "shutdown"
    """As by its power button, which a guest that hangs may not hear."""
    POWEROFF = "poweroff"
    """At once, and that is a crash: its VM is started again where its policy says so."""


def check_kernel_options(options: str) -> str:
    return check_pattern(
        "kernel_options",
        options,
        KERNEL_OPTIONS_PATTERN,
        f"at most {MAX_KERNEL_OPTIONS} printable characters on one line",
    )


class Netboot(StrEnum):
    """Whether a VM boots from the network: what its node's boot library has for it, else its image."""

    NEVER = "never"
    """It boots its image, from memory."""
    FIRST = "first"
    """Once, to be installed; from its first volume ever after, also when it reboots by itself."""
    ALWAYS = "always"
    """And from its first volume where the network has nothing for it."""


class BootFrom(StrEnum):
    """Where a machine finds what it boots."""

    IMAGE = "image"
    NETWORK = "network"
    NETWORK_ONCE = "network-once"
    """And from its disk after a reset."""
    DISK = "disk"


def boot_from(netboot: Netboot, *, has_run: bool) -> BootFrom:
    """That of the next start."""
    if netboot is Netboot.FIRST:
        return BootFrom.DISK if has_run else BootFrom.NETWORK_ONCE
    return BootFrom.NETWORK if netboot is Netboot.ALWAYS else BootFrom.IMAGE
