"""What a VM with a kernel and devices of its own may ask for: kernel options, a watchdog. Pure values."""

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
