"""Control groups that are held still: what is in them keeps its memory and uses no CPU. Writes to the cgroup tree.

Version 2 can do so to every group. Version 1 has a hierarchy of its own for it: what is in the group enters a group of
the same name there when it is first held, and stays in it; what it starts begins there. Whatever waits for processes
to go lets them go on first: in version 1 one that is held does not even end when it is killed.

`freeze` waits for the kernel. In an event loop: `await aside.run(freezer.freeze, group)`.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from atoll.errors import HostFailure
from atoll.system import cgroups
from atoll.system.failures import failing

_TIMEOUT_S = 5.0
_PAUSE_S = 0.002
_AGAIN_S = 0.1
"""After which version 1 is asked once more: a process that waits for a child that it has just made (vfork) never comes
to rest when the child was held first."""


def freeze(group: str) -> None:
    """Hold all that is in the group and below. Returns when it is. Held already is success."""
    hierarchy = cgroups.freezer()
    if hierarchy is None:
        _write(cgroups.unified(group) / "cgroup.freeze", "1", group)
    else:
        _gather(hierarchy / group, group)
        _write(hierarchy / group / "freezer.state", "FROZEN", group)
    began = asked = time.monotonic()
    while not _is_still(group):
        now = time.monotonic()
        if hierarchy is not None and now - asked > _AGAIN_S:
            thaw(group)
            _write(hierarchy / group / "freezer.state", "FROZEN", group)
            asked = now
        if now - began > _TIMEOUT_S:
            with contextlib.suppress(HostFailure):
                thaw(group)
            raise HostFailure(
                f"holding cgroup {group}: its processes do not come to rest in {_TIMEOUT_S:g} s",
                hint="see what they wait for: cat /proc/PID/stack",
            )
        time.sleep(_PAUSE_S)


def thaw(group: str) -> None:
    """Let it go on. Never held, or gone, is success."""
    hierarchy = cgroups.freezer()
    path = _state_file(group)
    if path.exists():
        _write(path, "THAWED" if hierarchy is not None else "0", group)


def is_frozen(group: str) -> bool:
    """Whether somebody has it held, or is about to. On a host without a freezer nobody has."""
    try:
        return _state_file(group).read_text().strip() in ("FROZEN", "FREEZING", "1")
    except (OSError, HostFailure):
        return False


def _state_file(group: str) -> Path:
    hierarchy = cgroups.freezer()
    if hierarchy is None:
        return cgroups.unified(group) / "cgroup.freeze"
    return hierarchy / group / "freezer.state"


def _is_still(group: str) -> bool:
    hierarchy = cgroups.freezer()
    with failing(f"holding cgroup {group}"):
        if hierarchy is not None:
            return (hierarchy / group / "freezer.state").read_text().strip() == "FROZEN"
        return "frozen 1" in (cgroups.unified(group) / "cgroup.events").read_text().splitlines()


def _gather(directory: Path, group: str) -> None:
    """All members of the group into its own of the freezer's; those that they start meanwhile too."""
    with failing(f"holding cgroup {group}"):
        directory.mkdir(parents=True, exist_ok=True)
        entrance = directory / "cgroup.procs"
        while left := set(cgroups.members(group)) - set(map(int, entrance.read_text().split())):
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    entrance.write_text(str(pid))


def _write(path: Path, value: str, group: str) -> None:
    with failing(f"holding cgroup {group}: writing {value} to {path.name}"):
        path.write_text(value)
