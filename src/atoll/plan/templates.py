"""Which template a VM could be forked from, and which templates a node keeps. Pure.

A template is good for VMs of one image and size on one host as it is: its key is a hash over all of that, so
one that has gone stale is simply never found again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec import Struct

from atoll.model.hardware import Netboot, Watchdog
from atoll.model.image import Image
from atoll.model.vm import VM, ConsoleKind, MachineType
from atoll.model.volume import VolumeFormat


class TemplateSpec(Struct, frozen=True):
    """What VMs of one template have in common."""

    driver: str
    image: str
    image_digest: str
    memory_mib: int
    vcpus: int
    machine_type: MachineType
    mtu: int


class Template(Struct, frozen=True):
    """A template as a node keeps it: what it is of, and what it depends on."""

    key: str
    spec: TemplateSpec
    basis: dict[str, str]


class Kept(Struct, frozen=True):
    """A template beside others: what it takes, and when it was of use last, as a count."""

    key: str
    used: int
    size_mib: int
    """On disk, and again in memory while it is ready for forks."""
    ready: bool


class Patience(Struct, frozen=True):
    """How long a node leaves alone what did not work: twice as long each time, up to a limit."""

    first_s: float = 30.0
    longest_s: float = 3600.0

    def pause_s(self, failures: int) -> float:
        return min(self.first_s * 2.0 ** min(failures - 1, 64), self.longest_s)


class Doubt(Struct, frozen=True):
    """What did not work, how often in a row, and when it is tried again."""

    failures: int
    until: float


def doubted(last: Doubt | None, now: float, patience: Patience) -> Doubt:
    """One more failure."""
    failures = 1 if last is None else last.failures + 1
    return Doubt(failures, now + patience.pause_s(failures))


def can_fork(image: Image, vm: VM) -> bool:
    """Whether a VM may begin as a copy of memory: its image says so, and it has nothing that others have not."""
    no_disk = all(volume.format is VolumeFormat.MEMORY for volume in vm.volumes)
    no_screen = vm.console is not ConsoleKind.VNC
    plain = no_disk and no_screen and not vm.nics and not vm.shares and vm.watchdog is Watchdog.NONE
    boots_alike = not vm.kernel_options and vm.netboot is Netboot.NEVER
    return image.forkable and image.digest == vm.image_digest and plain and boots_alike


def spec_of(vm: VM, mtu: int) -> TemplateSpec:
    return TemplateSpec(
        driver=vm.driver,
        image=vm.image,
        image_digest=vm.image_digest,
        memory_mib=vm.memory_mib,
        vcpus=vm.vcpus,
        machine_type=vm.machine_type,
        mtu=mtu,
    )


def key_of(spec: TemplateSpec, basis: Mapping[str, str]) -> str:
    """Names the template; the image's name is left out, since its digest says what is in it."""
    parts = msgspec.json.encode([msgspec.structs.replace(spec, image=""), sorted(basis.items())])
    return hashlib.sha256(parts).hexdigest()[:32]


def to_drop(kept: Iterable[Kept], most: int, free_disk_mib: int, reserve_mib: int) -> tuple[str, ...]:
    """Those that have to go from the disk, the least recently used first."""
    oldest = sorted(kept, key=lambda one: one.used)
    dropped: list[str] = []
    for one in oldest:
        if len(oldest) - len(dropped) > most or free_disk_mib < reserve_mib:
            dropped.append(one.key)
            free_disk_mib += one.size_mib
    return tuple(dropped)


def to_unload(kept: Iterable[Kept], available_mib: int, reserve_mib: int) -> tuple[str, ...]:
    """Those that have to go from memory, the least recently used first."""
    unloaded: list[str] = []
    for one in sorted(kept, key=lambda one: one.used):
        if one.ready and available_mib < reserve_mib:
            unloaded.append(one.key)
            available_mib += one.size_mib
    return tuple(unloaded)


def to_load(kept: Sequence[Kept], available_mib: int, reserve_mib: int) -> tuple[str, ...]:
    """Those that can be made ready for forks, the most recently used first."""
    loaded: list[str] = []
    for one in sorted(kept, key=lambda one: -one.used):
        if not one.ready and available_mib - one.size_mib >= 2 * reserve_mib:
            loaded.append(one.key)
            available_mib -= one.size_mib
    return tuple(loaded)


def has_room(spec: TemplateSpec, available_mib: int, free_disk_mib: int, reserve_mib: int) -> bool:
    """Whether another one can be made: twice the reserve is left then, or it would be dropped at once."""
    return min(available_mib, free_disk_mib) - spec.memory_mib >= 2 * reserve_mib
