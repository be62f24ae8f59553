"""Names of files as clients ask for them, and the script that boots an image. Pure."""

from __future__ import annotations

from atoll.model.image import DirectBoot

HTTP_PORT = 6969
SCRIPT = "boot.ipxe"
KERNEL = "image/kernel"
INITRD = "image/initrd"

_MAX_DEPTH = 16
_MAX_PART_BYTES = 255


def parts_of(name: str) -> tuple[str, ...] | None:
    """The path below a folder that a name means; None for one that could lead out of it, or to nowhere.

    Firmware asks for `/file` and `dir\\file` where it means what it was told.
    """
    parts = tuple(part for part in name.replace("\\", "/").split("/") if part not in ("", "."))
    if not 0 < len(parts) <= _MAX_DEPTH or ".." in parts:
        return None
    if any(ord(char) < 32 or ord(char) == 127 for char in name):
        return None
    return parts if all(len(part.encode()) <= _MAX_PART_BYTES for part in parts) else None


def script_of(boot: DirectBoot) -> bytes:
    """What tells iPXE to boot an image. Names are relative: fetched as the script itself was."""
    return (
        "#!ipxe\n"
        f"kernel --name kernel {KERNEL} initrd=initrd {boot.cmdline}\n"
        f"initrd --name initrd {INITRD}\n"
        "boot\n"
    ).encode()
