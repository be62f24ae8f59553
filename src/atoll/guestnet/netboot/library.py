"""The files that machines boot from. Effects: opens files below its folder and those of images, to read them.

    <folder>/<mac>/…        what one machine is given; also <folder>/<ip>/…
    <folder>/netboot/…      what all others are
    boot.ipxe, image/…      made up from the machine's image, where neither folder has them

A link may lead from one of these folders to another one, and not out of them.
"""

from __future__ import annotations

import os
import stat
from enum import StrEnum
from pathlib import Path

from msgspec import Struct

from atoll.errors import AtollError
from atoll.guestnet.netboot.names import INITRD, KERNEL, SCRIPT, parts_of, script_of
from atoll.images.store import ImageStore

SHARED = "netboot"


class Client(Struct, frozen=True):
    """A machine that has a lease."""

    ip: str
    mac: str
    image: str | None = None
    image_digest: str = ""
    """Of a VM: what it was made of. Another machine boots what the image of that name is now."""


class Missing(StrEnum):
    """Why a client gets no file."""

    STRANGER = "no machine with a lease has this address"
    BAD_NAME = "not a name of a file"
    NOT_THERE = "no such file"


class Content:
    """An open file, or bytes that were made up. Whoever opened it closes it."""

    def __init__(self, source: bytes | int) -> None:
        self._source = source
        self.size = len(source) if isinstance(source, bytes) else os.fstat(source).st_size

    def read(self, start: int, size: int) -> bytes:
        """So many bytes from there; fewer if the file was cut short meanwhile."""
        if isinstance(self._source, bytes):
            return self._source[start : start + size]
        return os.pread(self._source, size, start)

    def close(self) -> None:
        if isinstance(self._source, int):
            os.close(self._source)
        self._source = b""


class Library:
    """Finds the file that a client means."""

    def __init__(self, folder: Path, images: ImageStore) -> None:
        self._folder = folder
        self._images = images

    def open(self, client: Client | None, name: str) -> Content | Missing:
        """The file of this name for a client; None: whoever asks has no lease."""
        if client is None:
            return Missing.STRANGER
        parts = parts_of(name)
        if parts is None:
            return Missing.BAD_NAME
        for folder in (client.mac, client.ip, SHARED):
            descriptor = _open_below(self._folder, Path(folder, *parts))
            if descriptor is not None:
                return Content(descriptor)
        return self._made_up(client, "/".join(parts)) or Missing.NOT_THERE

    def _made_up(self, client: Client, name: str) -> Content | None:
        if client.image is None or name not in (SCRIPT, KERNEL, INITRD):
            return None
        try:
            image = (
                self._images.get_digest(client.image, client.image_digest)
                if client.image_digest
                else self._images.get(client.image)
            )
        except AtollError:
            return None
        if name == SCRIPT:
            return Content(script_of(image.boot))
        boot = image.boot
        file = (boot.loader_kernel or boot.kernel) if name == KERNEL else boot.initrd
        descriptor = _open_regular(self._images.path(image, file))
        return None if descriptor is None else Content(descriptor)


def _open_below(folder: Path, path: Path) -> int | None:
    try:
        root = folder.resolve()
        real = (root / path).resolve()
    except (OSError, RuntimeError):  # a loop of links
        return None
    return _open_regular(real) if real.is_relative_to(root) else None


def _open_regular(path: Path) -> int | None:
    try:
        # Not blocking: a pipe that somebody left there would stop the whole agent.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    return None
