"""How control groups are laid out here, and what they want to be told. Pure; cgroups.py reads and writes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from atoll.errors import HostFailure

DEFAULT_WEIGHT = 100
_CONTROLLERS = ("cpu", "cpuacct", "memory", "pids")
_PERIOD_US = 100_000
_MIN_QUOTA_US = 1_000
_MIB = 1024 * 1024


class Limits(Struct, frozen=True):
    """What a group may use. None is no limit; the weight is version 2's, 1 to 10000."""

    cpu_milli_quota: int | None = None
    cpu_weight: int = DEFAULT_WEIGHT
    memory_mib: int | None = None
    pids: int | None = None


class Layout(Struct, frozen=True):
    """Where this host has its hierarchies: by controller in version 1, one for all in version 2."""

    version: int
    roots: Mapping[str, Path]
    others: tuple[Path, ...] = ()
    """Hierarchies that we do not use. A container engine makes groups below ours there too."""
    systemd: Path | None = None
    """Of those, the one in which systemd keeps its units, in a version 1 that has no controllers."""
    freezer: Path | None = None
    """Of those, the one that holds processes still, in a version 1. Version 2 does so in its own."""

    def directories(self, group: str) -> tuple[Path, ...]:
        """The directories of a group, one in each hierarchy."""
        return tuple(dict.fromkeys(root / group for root in self.roots.values()))

    def everywhere(self, group: str) -> tuple[Path, ...]:
        """The same, and where the group would be in the other hierarchies."""
        return (*self.directories(group), *(root / group for root in self.others))


class Write(Struct, frozen=True):
    """One value for one file of a group."""

    controller: str
    file: str
    value: str


def find_layout(mounts: str) -> Layout:
    """The layout that a text such as /proc/self/mounts describes."""
    version_1: dict[str, Path] = {}
    version_2: Path | None = None
    mounted: list[Path] = []
    systemd: Path | None = None
    freezer: Path | None = None
    for line in mounts.splitlines():
        _, where, kind, options, *_ = line.split()
        path = Path(re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), where))
        if kind in ("cgroup", "cgroup2"):
            mounted.append(path)
        if kind == "cgroup" and "name=systemd" in options.split(","):
            systemd = path
        if kind == "cgroup" and "freezer" in options.split(","):
            freezer = path
        if kind == "cgroup":
            for controller in set(options.split(",")) & set(_CONTROLLERS):
                version_1.setdefault(controller, path)
        elif kind == "cgroup2":
            version_2 = version_2 or path
    if version_1:  # a version 2 tree beside it (systemd's "hybrid") has no controllers to give
        used = {name: version_1[name] for name in _CONTROLLERS if name in version_1}
        others = tuple(path for path in mounted if path not in used.values())
        return Layout(1, used, others, systemd, freezer)
    if version_2:
        return Layout(2, {"": version_2}, tuple(path for path in mounted if path != version_2))
    raise HostFailure(
        "looking for control groups: none are mounted",
        hint="mount them with: mount -t cgroup2 none /sys/fs/cgroup",
    )


def needed_controllers(limits: Limits) -> frozenset[str]:
    """The controllers without which these limits would have no effect."""
    cpu = limits.cpu_milli_quota is not None or limits.cpu_weight != DEFAULT_WEIGHT
    wanted = {"cpu": cpu, "memory": limits.memory_mib is not None, "pids": limits.pids is not None}
    return frozenset(name for name, needed in wanted.items() if needed)


def writes_v1(limits: Limits) -> tuple[Write, ...]:
    """What version 1 wants to be told."""
    quota = _quota_us(limits)
    memory = -1 if limits.memory_mib is None else limits.memory_mib * _MIB
    # As systemd does it: the default weight of 100 is the default of 1024 shares.
    shares = min(max(limits.cpu_weight * 1024 // DEFAULT_WEIGHT, 2), 262_144)
    return (
        Write("cpu", "cpu.shares", str(shares)),
        Write("cpu", "cpu.cfs_period_us", str(_PERIOD_US)),
        Write("cpu", "cpu.cfs_quota_us", str(-1 if quota is None else quota)),
        Write("memory", "memory.limit_in_bytes", str(memory)),
        Write("pids", "pids.max", _or_max(limits.pids)),
    )


def writes_v2(limits: Limits) -> tuple[Write, ...]:
    """What version 2 wants to be told."""
    memory = None if limits.memory_mib is None else limits.memory_mib * _MIB
    return (
        Write("cpu", "cpu.weight", str(limits.cpu_weight)),
        Write("cpu", "cpu.max", f"{_or_max(_quota_us(limits))} {_PERIOD_US}"),
        Write("memory", "memory.max", _or_max(memory)),
        Write("pids", "pids.max", _or_max(limits.pids)),
    )


def _quota_us(limits: Limits) -> int | None:
    if limits.cpu_milli_quota is None:
        return None
    return max(limits.cpu_milli_quota * _PERIOD_US // 1000, _MIN_QUOTA_US)


def _or_max(number: int | None) -> str:
    return "max" if number is None else str(number)
