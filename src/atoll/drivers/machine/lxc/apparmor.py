"""Which AppArmor profile containers get on this host. Reads /sys; `choose` is pure.

The profile that LXC brings comes first: it is loaded already, so that a start need not wait for one to be made, and a
monitor need not have the right to load any. Where it is not, LXC makes one for each container. Where it cannot, there
is none: users, namespaces, capabilities and seccomp are the walls then, as they are with it.
"""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from atoll.system import host

STOCK = "lxc-container-default-cgns"
GENERATED = "generated"
UNCONFINED = "unconfined"

_ENABLED = Path("/sys/module/apparmor/parameters/enabled")
_LOADED = Path("/sys/kernel/security/apparmor/profiles")


class Profile(Struct, frozen=True):
    """What LXC is told, and what is said of it in `atoll node show`."""

    name: str
    meaning: str
    rights: tuple[str, ...] = ()
    """What a monitor needs for it beside its other rights."""


def profile() -> Profile:
    """The profile of containers that start now."""
    return choose(_read(_ENABLED), _read(_LOADED), has_parser=host.find_tool("apparmor_parser") is not None)


def choose(enabled: str, loaded: str, *, has_parser: bool) -> Profile:
    """`enabled` and `loaded` are what the kernel says; `has_parser`: profiles can be made here. Pure."""
    if enabled.strip() != "Y":
        return Profile(UNCONFINED, "none: the kernel of this host has none, or was started without")
    if f"{STOCK} (enforce)" in loaded.splitlines():
        return Profile(STOCK, f"profile {STOCK}, enforced")
    if has_parser:
        return Profile(GENERATED, "a profile made for each VM", ("mac_admin",))
    return Profile(UNCONFINED, f"none: {STOCK} is not loaded, and apparmor_parser is missing to load another")


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
