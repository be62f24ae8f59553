"""How far processes may write into files. Reads and raises limits of other processes.

The limit is one of places in files, whichever they are: beyond it a write fails. So whoever has files that are larger
than another one is to become keeps that one's content behind the end of all of them.
"""

from __future__ import annotations

import re
import resource
from pathlib import Path

from atoll.errors import HostFailure
from atoll.system import processes
from atoll.system.pids import Pid, alive

_TIMEOUT_S = 5.0


def raise_to(process: Pid, place: int) -> None:
    """A process that is limited may write up to this place at least, from now on. Gone is fine. May start a tool."""
    limits, status = _read(process, "limits"), _read(process, "status")
    soft = soft_limit(limits)
    if soft is None or soft >= place or not alive(process):
        return
    try:
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (place, resource.RLIM_INFINITY))
    except ProcessLookupError:
        return
    except PermissionError:
        # Without the right to do so to others, somebody who is the same user can.
        _raise_as(*ids_of(status), process, place)


def soft_limit(limits: str) -> int | None:
    """Of a text such as /proc/1/limits: how large files may become; None: as large as they like. Pure."""
    found = re.search(r"^Max file size +(\d+)", limits, re.MULTILINE)
    return int(found[1]) if found else None


def ids_of(status: str) -> tuple[int, int]:
    """Of a text such as /proc/1/status: user and group. Pure."""
    found = dict(re.findall(r"^([UG]id):\t(\d+)", status, re.MULTILINE))
    return int(found.get("Uid", 0)), int(found.get("Gid", 0))


def _raise_as(uid: int, gid: int, process: Pid, place: int) -> None:
    user = ("setpriv", f"--reuid={uid}", f"--regid={gid}", "--clear-groups", "--no-new-privs", "--")
    tool = ("prlimit", f"--pid={process.pid}", f"--fsize={place}:")
    try:
        processes.run_blocking([*user, *tool], timeout_s=_TIMEOUT_S)
    except HostFailure:
        if alive(process):
            raise


def _read(process: Pid, name: str) -> str:
    try:
        return Path(f"/proc/{process.pid}/{name}").read_text()
    except OSError:
        return ""
