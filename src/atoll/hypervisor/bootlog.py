"""Boot logs: what each guest wrote to its serial console, kept by the machine itself, kept small by us.

Effects: reads and trims `console.log` in VM directories.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Callable, Iterable
from pathlib import Path
from typing import IO

log = logging.getLogger(__name__)

CHUNK = 64 << 10
LARGEST = 4 << 20
KEPT = 1 << 20
EVERY_S = 20.0


class BootLogs:
    def __init__(self, directory: Callable[[str], Path]) -> None:
        self._directory = directory

    async def read(self, ip: str) -> AsyncGenerator[bytes, None]:
        """The log as it is now; nothing when the machine has not written yet."""
        try:
            console = _open(self._directory(ip) / "console.log", os.O_RDONLY)
        except FileNotFoundError:
            return
        with console:
            while chunk := console.read(CHUNK):
                yield chunk

    async def keep_small(self, ips: Callable[[], Iterable[str]]) -> None:
        """For ever: a guest that writes without end must not fill the node's disk."""
        while True:
            await asyncio.sleep(EVERY_S)
            for ip in ips():
                try:
                    trim(self._directory(ip) / "console.log")
                except OSError as error:
                    log.warning("keeping the boot log of VM %s small: %s", ip, error)


def trim(path: Path) -> None:
    """Keep the end of a log that grew too large. The machine appends, so it goes on at the new end."""
    try:
        console = _open(path, os.O_RDWR)
    except FileNotFoundError:
        return
    with console:
        size = console.seek(0, os.SEEK_END)
        if size > LARGEST:
            console.seek(size - KEPT)
            end = console.read(KEPT)
            console.truncate(0)
            console.seek(0)
            console.write(end)


def _open(path: Path, flags: int) -> IO[bytes]:
    # Never through a link: the machine's own process writes this file, and must not choose what we read.
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC)
    return os.fdopen(descriptor, "rb" if flags == os.O_RDONLY else "r+b")
