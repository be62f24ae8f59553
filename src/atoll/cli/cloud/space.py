"""Whether there is room for a cloud in its directory, and for what its image is made of in the cache.

Effects: looks at file systems. What is lacking is found by `lacking`, purely.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from msgspec import Struct

from atoll.cli.cloud.layout import Paths
from atoll.errors import HostFailure, NoCapacity
from atoll.images import appliance, packages
from atoll.images.store import ImageStore
from atoll.system import files

STATE_MIB = 64
"""Records, certificates, logs, and what the agent keeps aside for a full disk."""
FEW_MIB = 1024
"""With less than that, there is room for VMs that have everything in memory, and for few others."""


class Need(Struct, frozen=True):
    """How much goes where, and what it is."""

    place: Path
    mib: int
    what: str


class FileSystem(Struct, frozen=True):
    """Where a place is: two places with the same number share what is free."""

    number: int
    free_mib: int


class Lack(Struct, frozen=True):
    """Places that share a file system on which there is too little room for what goes there."""

    needs: tuple[Need, ...]
    free_mib: int

    @property
    def mib(self) -> int:
        return sum(need.mib for need in self.needs)

    def __str__(self) -> str:
        parts = ", ".join(f"{need.mib} MiB for {need.what} in {need.place}" for need in self.needs)
        return f"{self.free_mib} MiB are free, and it takes {self.mib} MiB: {parts}"


def needs(paths: Paths, cache: Path) -> list[Need]:
    """What `atoll up` would write. Of a cloud that is there, with its image: nothing that counts."""
    found = [] if paths.cloud.exists() else [Need(paths.directory, STATE_MIB, "its records and logs")]
    if not is_built(paths, cache):
        found.append(Need(paths.images, appliance.IMAGE_MIB, "its image"))
        found.append(Need(cache, appliance.WORKSHOP_MIB, "making the image"))
        if packages.cached_kernel(cache) is None:
            found.append(Need(cache, packages.KERNEL_MIB, "the kernel package"))
    return found


def is_built(paths: Paths, cache: Path) -> bool:
    try:
        return appliance.built(ImageStore(paths.images), cache) is not None
    except HostFailure:  # there is not even what it is made of
        return False


def lacking(wanted: Iterable[Need], where: Mapping[Path, FileSystem]) -> list[Lack]:
    """Which file systems have too little room for all that goes there. Pure."""
    together: dict[int, list[Need]] = {}
    for need in wanted:
        together.setdefault(where[need.place].number, []).append(need)
    lacks = [Lack(tuple(group), where[group[0].place].free_mib) for group in together.values()]
    return [lack for lack in lacks if lack.mib > lack.free_mib]


def check(paths: Paths, cache: Path) -> None:
    """NoCapacity where `atoll up` would not get far."""
    for lack in find(paths, cache):
        raise NoCapacity(
            f"atoll up: too little room: {lack}",
            hint="free some, or choose another place: --dir DIR for the cloud, ATOLL_CACHE for downloads",
        )


def find(paths: Paths, cache: Path) -> list[Lack]:
    wanted = needs(paths, cache)
    return lacking(wanted, {need.place: file_system(need.place) for need in wanted})


def file_system(place: Path) -> FileSystem:
    """That of a place which may not be there yet."""
    found = next(parent for parent in (place, *place.parents) if parent.exists())
    return FileSystem(found.stat().st_dev, files.free_mib(found))
