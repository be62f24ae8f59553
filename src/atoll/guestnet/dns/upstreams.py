"""The DNS servers that a host uses itself: the nameserver lines of its resolv.conf. Effects: reads that file."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from pathlib import Path

from atoll.system import clock, files

RESOLV_CONF = Path("/etc/resolv.conf")
MOST = 3
"""As many as the C library uses."""
LOOK_EVERY_S = 2.0

_LARGEST = 1 << 16

log = logging.getLogger(__name__)


def parse(text: str) -> tuple[str, ...]:
    """The addresses of the servers, in their order. Pure. What is not an address is passed over."""
    lines = (line.split() for line in text.splitlines())
    named = (words[1] for words in lines if len(words) > 1 and words[0] == "nameserver")
    return tuple(dict.fromkeys(filter(_is_address, named)))[:MOST]


def _is_address(text: str) -> bool:
    # One that holds on a single link (fe80::1%eth0) is left out: the link would have to be found first.
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    return not address.is_unspecified and not address.is_multicast and "%" not in text


class HostServers:
    """The servers in a file, read again when it has changed."""

    def __init__(self, path: Path = RESOLV_CONF) -> None:
        self._path = path
        self._stamp: tuple[int, int, int] | None = None
        self._servers: tuple[str, ...] = ()
        self._look_at_s = 0.0

    async def __call__(self) -> tuple[str, ...]:
        now_s = clock.monotonic()
        if now_s >= self._look_at_s:
            self._look_at_s = now_s + LOOK_EVERY_S
            await asyncio.to_thread(self._look)
        return self._servers

    def _look(self) -> None:
        try:
            status = self._path.stat()
            stamp = (status.st_ino, status.st_size, status.st_mtime_ns)
            if stamp == self._stamp:
                return
            self._servers = parse(files.read_limited(self._path, _LARGEST).decode(errors="replace"))
            self._stamp = stamp
        except FileNotFoundError:
            self._servers, self._stamp = (), None
        except OSError as error:
            log.warning("reading %s: %s; its last servers are still used", self._path, error)
