"""Who is at the other end of a connection on this machine. Reads the kernel's tables of connections."""

from __future__ import annotations

import contextlib
import ipaddress
import sys
from pathlib import Path

Address = tuple[str, int]

_OPEN = ("01", "04", "05")
"""Established; or its process has said all that it will, and still hears."""
_NOBODY = "0"
_TABLES = {4: Path("/proc/net/tcp"), 6: Path("/proc/net/tcp6")}


def peer_user(ours: Address, theirs: Address) -> int | None:
    """The user whose process holds the other end; None when there is none, or nobody can tell."""
    table = _TABLES[ipaddress.ip_address(theirs[0]).version]
    with contextlib.suppress(OSError):
        return user_in(table.read_text(), ours=ours, theirs=theirs)
    return None


def user_in(table: str, *, ours: Address, theirs: Address) -> int | None:
    """Pure. An end that its process has closed counts for nobody: the kernel shows it as root's."""
    wanted = [shown(theirs), shown(ours)]
    for line in table.splitlines():
        fields = line.split()
        if fields[1:3] == wanted and fields[3] in _OPEN and fields[9] != _NOBODY:
            return int(fields[7])
    return None


def shown(address: Address) -> str:
    """An address as the kernel's tables have it: words in the byte order of the machine. Pure."""
    packed = ipaddress.ip_address(address[0]).packed
    words = [packed[start : start + 4] for start in range(0, len(packed), 4)]
    if sys.byteorder == "little":
        words = [word[::-1] for word in words]
    return f"{b''.join(words).hex().upper()}:{address[1]:04X}"
