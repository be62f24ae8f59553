"""Control groups: limits for what runs in them, who is in them, what they used. Writes to the cgroup tree.

Version 1 and version 2 look the same from outside; which one this host has is found out from its mounts.
A group is a relative path such as "atoll/3fa2/10.1.0.5", below the root of every hierarchy we use.

`enter` waits for the kernel; `kill_all`, `wait_empty` and `remove` wait for processes to go. In an event loop:
`await aside.run(cgroups.remove, group)`.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from atoll.errors import HostFailure, Invalid
from atoll.system.cgroup_layout import (
    Layout,
    Limits,
    find_layout,
    needed_controllers,
    writes_v1,
    writes_v2,
)
from atoll.system.failures import failing, ignoring

__all__ = [
    "Limits",
    "Usage",
    "children",
    "ensure",
    "enter",
    "enter_thread",
    "entrances",
    "freezer",
    "has_units",
    "hierarchies",
    "join_paths",
    "kill_all",
    "members",
    "other_hierarchies",
    "remove",
    "remove_if_empty",
    "resize_memory",
    "unified",
    "usage",
    "wait_empty",
]

_LIMITED = ("cpu", "memory", "pids")
_MIB = 1024 * 1024
_PAUSE_S = 0.002


class Usage(Struct, frozen=True):
    """What a group has used (CPU) and uses (the rest). Memory leaves out cache that is easily given back."""

    cpu_s: float
    memory_mib: int
    pids: int


def ensure(group: str, limits: Limits) -> None:
    """Make the group, with its parents, and give it these limits."""
    layout = _layout()
    _check(group)
    for directory in layout.directories(group):
        _make(directory, group)
    available = set(layout.roots) if layout.version == 1 else _enable(layout.roots[""], group)
    missing = sorted(needed_controllers(limits) - available)
    if missing:
        raise HostFailure(
            f"limiting cgroup {group}: controller {missing[0]} is not available here",
            hint=f"give this machine or container the {missing[0]} controller, or ask for no such limit",
        )
    for write in writes_v1(limits) if layout.version == 1 else writes_v2(limits):
        if write.controller in available:
            root = layout.roots[write.controller if layout.version == 1 else ""]
            _write(root / group / write.file, write.value, f"limiting cgroup {group}")


def resize_memory(group: str, memory_mib: int) -> bool:
    """Hold a group that is in use to so much memory. False, and as it was, when it needs more than that."""
    _check(group)
    layout, doing = _layout(), f"limiting cgroup {group}"
    if layout.version == 1:
        return _write_unless_busy(
            layout.roots["memory"] / group / "memory.limit_in_bytes", memory_mib * _MIB, doing
        )
    directory = layout.roots[""] / group
    # A hard limit below what is used ends processes. A soft one makes room, as far as that can be had.
    _write(directory / "memory.high", str(memory_mib * _MIB), doing)
    try:
        fits = int(_read(directory / "memory.current") or 0) <= memory_mib * _MIB
        if fits:
            _write(directory / "memory.max", str(memory_mib * _MIB), doing)
    finally:
        _write(directory / "memory.high", "max", doing)
    return fits


def _write_unless_busy(path: Path, value: int, doing: str) -> bool:
    with failing(f"{doing}: writing {value} to {path.name}"):
        try:
            path.write_text(str(value))
        except OSError as error:
            if error.errno == errno.EBUSY:
                return False
            raise
    return True


def join_paths(group: str) -> tuple[Path, ...]:
    """The files into which a process writes its number to enter the group."""
    _check(group)
    return tuple(directory / "cgroup.procs" for directory in _layout().directories(group))


def entrances(group: str) -> tuple[Path, ...]:
    """The files into which a process with one thread writes 0 to enter the group.

    Where it can, version 1 takes threads one by one: for one that moves itself the kernel need not wait (see `enter`).
    """
    name = "tasks" if _layout().version == 1 else "cgroup.procs"
    return tuple(path.with_name(name) for path in join_paths(group))


def enter(group: str, pid: int) -> None:
    """Move a process into the group. The kernel may take ten milliseconds for it."""
    for path in join_paths(group):
        _write(path, str(pid), f"moving process {pid} into cgroup {group}")


def enter_thread(group: str) -> bool:
    """Move this thread into the group: what it starts begins there. The kernel need not wait for that.

    False, and nothing done, in version 2, where a process is in one group as a whole.
    """
    if _layout().version != 1:
        return False
    for path in entrances(group):
        _write(path, "0", f"moving a thread into cgroup {group}")
    return True


def members(group: str) -> tuple[int, ...]:
    """The processes in the group and in those below it. None when there is no such group.

    Without this one, of which a thread may be there for a moment (`enter_thread`): nobody is to end us for that.
    """
    _check(group)
    found: set[int] = set()
    for top in _layout().directories(group):
        for directory in _bottom_up(top):
            found.update(int(word) for word in _read(directory / "cgroup.procs").split())
    return tuple(sorted(found - {os.getpid()}))


def children(group: str) -> set[str]:
    """The names of the groups directly below."""
    _check(group)
    return {child.name for top in _layout().directories(group) for child in _subgroups(top)}


def other_hierarchies() -> tuple[Path, ...]:
    """Where hierarchies are mounted that we do not use."""
    return _layout().others


def hierarchies() -> tuple[Path, ...]:
    """Where all of them are mounted."""
    layout = _layout()
    return tuple(dict.fromkeys((*layout.roots.values(), *layout.others)))


def has_units(hierarchy: Path) -> bool:
    """Whether a systemd keeps its units, or limits of them, in this hierarchy."""
    layout = _layout()
    return hierarchy == layout.systemd or hierarchy in layout.roots.values()


def freezer() -> Path | None:
    """The hierarchy in which processes are held still; None in version 2, where every group can be."""
    layout = _layout()
    if layout.version == 2:
        return None
    if layout.freezer is None:
        raise HostFailure(
            "holding processes still: this host has no freezer",
            hint="mount it with: mount -t cgroup -o freezer none /sys/fs/cgroup/freezer",
        )
    return layout.freezer


def unified(group: str) -> Path:
    """The directory of a group in version 2."""
    _check(group)
    return _layout().roots[""] / group


def kill_all(group: str, timeout_s: float = 2.0) -> None:
    """End every process in the group and below, also new ones. Returns when all are gone."""
    layout = _layout()
    held = layout.freezer / group / "freezer.state" if layout.freezer is not None else None
    if held is not None and held.exists():
        _write(held, "THAWED", f"ending what runs in cgroup {group}")
    killer = layout.roots[""] / group / "cgroup.kill" if layout.version == 2 else None
    deadline = time.monotonic() + timeout_s
    while pids := members(group):
        if killer is not None and killer.exists():
            _write(killer, "1", f"ending what runs in cgroup {group}")
        else:
            _kill_each(group, pids)
        if time.monotonic() > deadline:
            raise HostFailure(
                f"ending what runs in cgroup {group}: processes {pids} do not go away",
                hint="see what they wait for: cat /proc/PID/stack",
            )
        time.sleep(_PAUSE_S)


def wait_empty(group: str, timeout_s: float) -> None:
    """Give the processes in the group so much time to end by themselves. Then they are ended."""
    deadline = time.monotonic() + timeout_s
    while members(group) and time.monotonic() < deadline:
        time.sleep(_PAUSE_S)
    kill_all(group)


def remove(group: str, timeout_s: float = 2.0) -> None:
    """Remove the group and those below it. Waits a little for processes that just end. Gone is fine."""
    _check(group)
    deadline = time.monotonic() + timeout_s
    for top in _layout().everywhere(group):
        for directory in _bottom_up(top):
            while not _remove_directory(directory):
                if time.monotonic() > deadline:
                    raise HostFailure(
                        f"removing cgroup {group}: processes {members(group)} are still in it",
                        hint="end them first",
                    )
                time.sleep(_PAUSE_S)


def remove_if_empty(group: str) -> None:
    """Remove the group unless something is in it or below it, such as another cloud's groups."""
    _check(group)
    for directory in _layout().everywhere(group):
        if not any(_subgroups(directory)):
            _remove_directory(directory)


def usage(group: str) -> Usage:
    """What the group used so far. Zero where the host does not count, or the group is gone."""
    _check(group)
    layout = _layout()
    if layout.version == 1:
        at = {name: root / group for name, root in layout.roots.items()}
        cpu_s = _number(at, "cpuacct", "cpuacct.usage") / 1e9
        memory = _number(at, "memory", "memory.usage_in_bytes") - _field(
            at, "memory.stat", "total_inactive_file"
        )
    else:
        at = dict.fromkeys(_LIMITED, layout.roots[""] / group)
        cpu_s = _field(at, "cpu.stat", "usage_usec") / 1e6
        memory = _number(at, "memory", "memory.current") - _field(at, "memory.stat", "inactive_file")
    return Usage(cpu_s, max(memory, 0) // _MIB, _number(at, "pids", "pids.current"))


@functools.cache
def _layout() -> Layout:
    return find_layout(Path("/proc/self/mounts").read_text())


def _check(group: str) -> None:
    if not group or any(part in ("", ".", "..") for part in group.split("/")):
        raise Invalid("cgroup", group, "must be a relative path without '.' and '..'")


def _make(directory: Path, group: str) -> None:
    for _ in range(10):
        # ENOENT: somebody removed the parent, empty until now, between two of our steps.
        with failing(f"making cgroup {group}"), ignoring(errno.ENOENT):
            return directory.mkdir(parents=True, exist_ok=True)
    raise HostFailure(f"making cgroup {group}: its parent keeps being removed", hint="try again")


def _enable(root: Path, group: str) -> set[str]:
    """Version 2: hand the controllers down to the group. Those that arrive there."""
    directory = root
    for part in group.split("/"):
        enabled = set(_read(directory / "cgroup.subtree_control").split())
        for controller in set(_LIMITED) & set(_read(directory / "cgroup.controllers").split()) - enabled:
            # Refused where processes sit in an inner node: then it is missing below, which `ensure` reports.
            with contextlib.suppress(OSError):
                (directory / "cgroup.subtree_control").write_text(f"+{controller}")
        directory /= part
    return set(_read(directory / "cgroup.controllers").split())


def _write(path: Path, value: str, doing: str) -> None:
    with failing(f"{doing}: writing {value} to {path.name}"):
        path.write_text(value)


def _read(path: Path) -> str:
    # ENODEV: the group was removed while the file was open.
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""
    except OSError as error:
        if error.errno == errno.ENODEV:
            return ""
        raise


def _number(at: Mapping[str, Path], controller: str, file: str) -> int:
    return int(_read(at[controller] / file) or 0) if controller in at else 0


def _field(at: Mapping[str, Path], file: str, name: str) -> int:
    controller = file.partition(".")[0]
    pairs = (line.split() for line in _read(at[controller] / file).splitlines()) if controller in at else ()
    return next((int(value) for key, value in pairs if key == name), 0)


def _subgroups(directory: Path) -> list[Path]:
    try:
        with os.scandir(directory) as entries:
            return [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []


def _bottom_up(directory: Path) -> Iterator[Path]:
    """Children before parents, however deep: guests may be allowed to make groups of their own."""
    found = [directory]
    for each in found:
        found.extend(_subgroups(each))
    return reversed(found)


def _remove_directory(directory: Path) -> bool:
    with failing(f"removing cgroup {directory}"), ignoring(errno.ENOENT):
        try:
            directory.rmdir()
        except OSError as error:
            if error.errno in (errno.EBUSY, errno.ENOTEMPTY):
                return False
            raise
    return True


def _kill_each(group: str, pids: tuple[int, ...]) -> None:
    handles: dict[int, int] = {}
    try:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                handles[pid] = os.pidfd_open(pid)
        # Opened first, looked up again second: a number that was reused in between is not in the group.
        for pid in set(handles) & set(members(group)):
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(handles[pid], signal.SIGKILL)
    finally:
        for handle in handles.values():
            os.close(handle)
