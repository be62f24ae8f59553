"""Where volumes go, and what may be done to them. Pure: (wanted, what there is) -> volumes.

A node keeps volumes in stores: directories, several of which may share a file system and so its space. A volume
counts with its whole size, however little of it is written yet: what was promised is there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from msgspec import Struct

from atoll.errors import Conflict, Invalid, NoCapacity, NotFound
from atoll.model.size import show_mib
from atoll.model.volume import (
    MAX_VOLUMES,
    ROOT,
    FileSystem,
    StoreInfo,
    Volume,
    VolumeSpec,
    VolumeType,
    find,
    named,
)

STORE_HINT = "put that right and restart the agent; see: atoll node show"

ROOTS = ""
"""What the place is called in which kinds of machine keep roots: it is no store, and what it holds is in none."""


class Space(Struct, frozen=True):
    """A store, or the place of roots: the file system that it is on, and what VMs may use of that."""

    name: str
    device: int
    total_mib: int
    problem: str = ""
    """Why nothing can be put there, or used that is there."""


class StoreEvidence(Struct, frozen=True):
    """What tells whose a store is."""

    mark: str
    """Of the agent whose own it says it is; empty: it says nothing."""
    holder: str
    """The state directory of that agent."""
    named: int
    """Volumes that the records of this node have there."""
    found: int
    """Those of them that are there."""
    others: int
    """VMs without a record here of which it holds volumes."""


def store_problem(seen: StoreEvidence, mark: str) -> str:
    """Why a store is not the own one of the agent with this mark; empty when it is, or can become it."""
    if seen.mark:
        return "" if seen.mark == mark else f"it is the store of the agent in {seen.holder}"
    # Without a mark it is new, or of an agent that did not put any; or what should be there is not mounted.
    if seen.found:
        return ""
    if seen.named:
        return f"none of the {seen.named} volumes that belong there is in it: is its file system mounted?"
    if seen.others:
        return "it holds volumes of VMs that this node has no record of, and does not say whose it is"
    return ""


def total_mib(spaces: Iterable[Space]) -> int:
    """Each file system once."""
    return sum({space.device: space.total_mib for space in spaces}.values())


def free_by_store(spaces: Sequence[Space], volumes: Iterable[Volume]) -> dict[str, int]:
    """What is left for each store; those on one file system have the same left."""
    device_of = {space.name: space.device for space in spaces}
    used: Counter[int] = Counter()
    for volume in volumes:
        if volume.store in device_of and not volume.in_memory:
            used[device_of[volume.store]] += volume.size_mib
    return {space.name: space.total_mib - used[space.device] for space in spaces}


def check_root(size_mib: int, spaces: Sequence[Space], volumes: Iterable[Volume]) -> None:
    """Refuse a root that the file system of roots has no room for."""
    left = free_by_store(spaces, volumes).get(ROOTS)
    if left is not None and size_mib > max(0, left):
        raise NoCapacity(
            f"a root of {show_mib(size_mib)}: where roots are kept, {show_mib(max(0, left))} are left",
            hint="ask for less, or destroy a VM; see: atoll node show",
            details={"free_mib": left},
        )


def store_infos(spaces: Sequence[Space], volumes: Iterable[Volume]) -> tuple[StoreInfo, ...]:
    free = free_by_store(spaces, volumes)
    return tuple(
        StoreInfo(
            space.name, space.total_mib, 0 if space.problem else max(0, free[space.name]), space.problem
        )
        for space in spaces
        if space.name != ROOTS
    )


def place(
    specs: Sequence[VolumeSpec], spaces: Sequence[Space], there: Sequence[Volume], own: Sequence[Volume] = ()
) -> tuple[Volume, ...]:
    """New volumes of a VM, each in the store that it names or else in the one with most room.

    `there`: all volumes of the node; `own`: those that the VM has already.
    """
    if len(own) + len(specs) > MAX_VOLUMES + 1:
        raise Invalid("volumes", f"{len(own) + len(specs) - 1} volumes", f"must be at most {MAX_VOLUMES}")
    taken = [volume.name for volume in own]
    for spec in specs:
        if spec.name in taken:
            raise Conflict(f"volume {spec.name}: there is one of this name", hint="choose another name")
    placed: list[Volume] = []
    for name, spec in zip(named(specs, taken), specs, strict=True):
        store = ""
        if spec.type is VolumeType.PERSISTENT:
            store = choose_store(spec.size_mib, spec.store, spaces, [*there, *placed])
        placed.append(
            Volume(spec.format, spec.size_mib, name, spec.fs, spec.type, store, interface=spec.interface)
        )
    return tuple(placed)


def choose_store(size_mib: int, pinned: str | None, spaces: Sequence[Space], there: Sequence[Volume]) -> str:
    """The store for a volume of this size; of equal ones that with the fewest volumes."""
    free = free_by_store(spaces, there)
    free.pop(ROOTS, None)
    if pinned is not None and pinned not in free:
        raise NotFound(f"store {pinned!r}: not on this node", hint=f"there are: {', '.join(free) or 'none'}")
    problems = {space.name: space.problem for space in spaces if space.problem}
    if pinned in problems:
        raise Conflict(f"store {pinned!r} is not used: {problems[pinned]}", hint=STORE_HINT)
    count = Counter(volume.store for volume in there)
    candidates = [pinned] if pinned is not None else [name for name in free if name not in problems]
    best = max(candidates, key=lambda name: (free[name], -count[name]), default=None)
    if best is None or free[best] < size_mib:
        left = ", ".join(f"{name} {show_mib(max(0, free[name]))}" for name in candidates)
        raise NoCapacity(
            f"a volume of {show_mib(size_mib)}: no store has that much left: {left or 'there is no store'}",
            hint="ask for less, or delete a volume; see: atoll node show",
            details={"free": {name: free[name] for name in candidates}},
        )
    return best


def reordered(volumes: Sequence[Volume], names: Sequence[str], vm: str) -> tuple[Volume, ...]:
    """The same volumes in this order, behind the root. Every one of them has to be named."""
    others = [volume.name for volume in volumes if volume.name != ROOT]
    if sorted(names) != sorted(others):
        raise Invalid(
            "order",
            " ".join(names),
            f"must name each volume of VM {vm} once",
            hint=f"it has: {' '.join(others) or 'none'}",
        )
    roots = [volume for volume in volumes if volume.name == ROOT]
    return (*roots, *(find(volumes, name, vm) for name in names))


def check_resize(volume: Volume, size_mib: int, vm: str) -> None:
    """Whether a volume may get another size at all; how much of it is in use is found out later."""
    if volume.type is VolumeType.MEMORY:
        raise Conflict(
            f"volume {volume.name} of VM {vm}: is in memory and made anew at every start",
            hint="delete it, and add one of the other size",
        )
    if size_mib < volume.size_mib and volume.fs is not FileSystem.EXT4:
        raise Conflict(
            f"volume {volume.name} of VM {vm}: holds no ext4 file system, so cutting it may cut its content",
            hint="add a smaller volume and copy what is on it",
        )
