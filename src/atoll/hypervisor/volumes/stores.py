"""Where volumes are kept, each file its VM's user's own, in directories that are closed.

    <store>/.owner                     the agent whose store it is; another one does not touch it
    <store>/<ip>/<name>.<format>       a volume
    <store>/<ip>/.<file>.loose         that file goes, unless a record names it: it is being moved or deleted
    <store>/.attic/                    what no record names: moved there when the agent starts, removed a week later

`uid` is that user: the tools that read a volume run as whoever owns it.

Effects: files, in threads. One that is there under its name is whole: it is made beside it and takes its place in one
step. Only what a record has named before is ever removed at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO

from atoll.drivers.machine.base import ROOT_FILE
from atoll.errors import AtollError, Conflict, HostFailure, Invalid, NotFound
from atoll.hypervisor.vms.records import Record
from atoll.model.checks import is_ip
from atoll.model.size import show_mib
from atoll.model.vm import VM
from atoll.model.volume import FileSystem, Unclaimed, Volume, VolumeFormat
from atoll.plan.volumes import ROOTS, STORE_HINT, Space, StoreEvidence, store_problem
from atoll.system import aside, cgroups, clock, disks, files
from atoll.system.attic import KEPT_FOR, Attic
from atoll.system.failures import failing
from atoll.system.owners import Owner, find_owner, hold, holder_of

log = logging.getLogger(__name__)

CHECK_EVERY_S = 3600.0
_ATTIC = ".attic"
_TOLD = 100
"""So much of what is in attics is told."""
# A qcow2 file is a little larger than the disk in it.
_QCOW2_MARGIN_MIB = 64


class Stores:
    """The stores of a node by name."""

    def __init__(
        self, places: Mapping[str, Path], owner: Owner, reserve_mib: int = 0, *, roots: Path | None = None
    ) -> None:
        """`roots`: the directory of VMs, in which drivers keep their roots."""
        self._places = dict(places)
        self._owner = owner
        self._roots = roots
        self._reserve_mib = reserve_mib
        self._problems: dict[str, str] = {}
        """Stores that are not used, and why."""
        self.spaces: tuple[Space, ...] = ()
        self.unclaimed: tuple[Unclaimed, ...] = ()

    def prepare(
        self,
        vms: Mapping[str, Record],
        unreadable: Collection[str],
        carried: Mapping[str, str],
    ) -> None:
        """Take the stores that are this node's own, and leave in them what its VMs have, and nothing else.

        `carried`: VMs whose files may still be at another address. `unreadable`: addresses of which nobody knows.
        """
        volumes = [(ip, one) for ip, record in vms.items() for one in record.vm.volumes if one.store]
        for name, place in self._places.items():
            try:
                problem = self._take(place, [(ip, one) for ip, one in volumes if one.store == name])
            except (AtollError, OSError) as error:
                problem = str(error)
            if problem:
                self._problems[name] = problem
                log.error("store %s in %s is not used: %s", name, place, problem)
        for ip, other in carried.items():
            self.carry(other, ip)
        for place in self._usable().values():
            for directory in sorted(place.iterdir()):
                if is_ip(directory.name) and directory.name not in unreadable:
                    self._tidy(place, directory, vms.get(directory.name))
        self._look_for_unclaimed()
        self.spaces = tuple(self._spaces([one for _, one in volumes]))

    def _usable(self) -> dict[str, Path]:
        return {name: place for name, place in self._places.items() if name not in self._problems}

    def _take(self, place: Path, volumes: Collection[tuple[str, Volume]]) -> str:
        """Make a store this node's own, if it is or can be; else why not."""
        holder = holder_of(place)
        made = [place / ip / volume.file for ip, volume in volumes if volume.made]
        there = [path.name for path in place.iterdir()] if place.is_dir() else []
        evidence = StoreEvidence(
            mark=holder.mark if holder is not None else "",
            holder=holder.state if holder is not None else "",
            named=len(made),
            found=sum(path.exists() for path in made),
            others=sum(is_ip(name) for name in there),
        )
        problem = store_problem(evidence, self._owner.mark)
        if not problem and holder != self._owner:
            files.make_dirs(place)
            hold(place, self._owner)
        return problem

    def _tidy(self, place: Path, directory: Path, record: Record | None) -> None:
        """Leave what the record names, remove what it or an earlier one has named, and keep the rest elsewhere."""
        volumes = record.vm.volumes if record is not None else ()
        own = [volume for volume in volumes if volume.store and self._places.get(volume.store) == place]
        named = {volume.file for volume in own if volume.made}
        unfinished = {volume.file for volume in own if not volume.made}
        if directory.is_dir():
            disks.remove_parts(directory)
            for path in sorted(directory.iterdir()):
                if path.name in named:
                    if record is not None and record.ids is not None:
                        _give(path, record.ids.first)
                elif path.name in unfinished or _loose(path).exists():
                    _clear(path)
            for mark in directory.glob(_loose(directory / "*").name):
                mark.unlink(missing_ok=True)
            unknown = [path for path in sorted(directory.iterdir()) if path.name not in named]
            if not unknown:
                with contextlib.suppress(OSError):  # it has volumes
                    directory.rmdir()
                return
        if record is None:
            _set_aside(place, directory, directory.name)
        else:
            for path in unknown:
                _set_aside(place, path, f"{directory.name}-{path.name}")

    def _look_for_unclaimed(self) -> None:
        self.unclaimed = tuple(
            Unclaimed(name, kept.path.name, kept.until)
            for name, place in self._usable().items()
            for kept in Attic(place / _ATTIC).kept()
        )[:_TOLD]

    async def tend(self) -> None:
        """For ever: what was moved out of the way goes when its time is over."""
        while True:
            for place in self._usable().values():
                await Attic(place / _ATTIC).clear(clock.now())
            await aside.run(self._look_for_unclaimed)
            await asyncio.sleep(CHECK_EVERY_S)

    def _spaces(self, volumes: Collection[Volume]) -> Iterator[Space]:
        """What may be promised in all, however much of it is written already."""
        taken = {name: (place, place.glob("*/*")) for name, place in self._usable().items()}
        if self._roots is not None:
            taken[ROOTS] = (self._roots, self._roots.glob(f"*/*/{ROOT_FILE}"))
        ours: dict[int, int] = {}
        for place, paths in taken.values():
            device = place.stat().st_dev
            ours[device] = ours.get(device, 0) + sum(map(disks.allocated_mib, paths))
        for number, (name, problem) in enumerate(self._problems.items(), 1):
            # What was promised of it stays promised, and takes nothing from the others.
            promised_mib = sum(volume.size_mib for volume in volumes if volume.store == name)
            yield Space(name, -number, promised_mib, problem)
        for name, (place, _) in taken.items():
            device = place.stat().st_dev
            total_mib = files.free_mib(place) + ours[device] - self._reserve_mib
            yield Space(name, device, max(0, total_mib))

    def check_usable(self, volume: Volume) -> None:
        """Refuse what would need a store that is not used."""
        if volume.store in self._problems:
            raise HostFailure(
                f"volume {volume.name}: store {volume.store} is not used: {self._problems[volume.store]}",
                hint=STORE_HINT,
            )

    def path(self, ip: str, volume: Volume) -> Path:
        """The file of a volume, whether it is there or not."""
        if volume.store not in self._places:
            known = ", ".join(self._places) or "none"
            raise NotFound(f"store {volume.store!r}: not on this node", hint=f"there are: {known}")
        return self._places[volume.store] / ip / volume.file

    async def make(self, ip: str, volume: Volume, uid: int) -> None:
        """An empty volume, or one with an empty file system. There already is success."""
        path = await aside.run(self._room_for, ip, volume)
        if path.exists():
            return
        async with disks.in_the_making(path, uid) as part:
            if volume.fs is FileSystem.NONE:
                await _make_empty(part, volume.format, volume.size_mib)
            elif volume.format is VolumeFormat.RAW:
                await disks.set_size(part, volume.size_mib)
                await disks.make_ext4(part)
            else:
                await disks.make_qcow2(part, volume.size_mib)
                async with self._scratch(path, uid) as raw:
                    await disks.set_size(raw, volume.size_mib)
                    await disks.make_ext4(raw)
                    await disks.convert(raw, "raw", part, "qcow2")

    @contextlib.asynccontextmanager
    async def receive(
        self, ip: str, volume: Volume, chunks: AsyncIterator[bytes], sha256: str, uid: int
    ) -> AsyncIterator[FileSystem]:
        """A volume with this content; Invalid if it is another. The file system that is on it, where that is known.

        In the block it is whole, and beside its place: it takes that when the block ends well, and is gone otherwise.
        """
        path = await aside.run(self._room_for, ip, volume)
        most = volume.size_mib << 20
        if volume.format is VolumeFormat.QCOW2:
            most += _QCOW2_MARGIN_MIB << 20
        async with disks.in_the_making(path, uid) as part:
            await _receive(part, chunks, sha256, most)
            if volume.format is VolumeFormat.QCOW2:
                await disks.grow_qcow2(part, volume.size_mib)
                yield FileSystem.NONE
                return
            await disks.set_size(part, volume.size_mib)
            yield FileSystem.NONE if await aside.run(disks.ext_at, part) is None else FileSystem.EXT4

    async def grow(self, ip: str, volume: Volume, size_mib: int, uid: int) -> None:
        """The disk, and the ext4 file system on it. So large already is success."""
        path = self._there(ip, volume)
        if volume.format is VolumeFormat.RAW:
            await disks.set_size(path, size_mib)
            if volume.fs is FileSystem.EXT4:
                await disks.resize_ext(path)
        elif volume.fs is FileSystem.EXT4:
            async with self._scratch(path, uid) as raw:
                await disks.set_size(raw, size_mib)
                await disks.convert(path, "qcow2", raw, "raw")
                await disks.resize_ext(raw)
                await self._replace(ip, volume, raw, size_mib, uid)
        else:
            await disks.grow_qcow2(path, size_mib)

    async def shrink(self, ip: str, volume: Volume, size_mib: int, uid: int) -> None:
        """The ext4 file system, and then the disk. On a copy: killed half-way, it is as it was."""
        path = self._there(ip, volume)
        async with self._scratch(path, uid) as raw:
            if volume.format is VolumeFormat.RAW:
                await disks.copy(path, raw)
            else:
                await disks.set_size(raw, volume.size_mib)
                await disks.convert(path, "qcow2", raw, "raw")
            least = await disks.least_mib(raw)
            if size_mib < least:
                raise Conflict(
                    f"volume {volume.name}: what is on it needs {show_mib(least)}, more than {show_mib(size_mib)}",
                    hint="delete files in the guest first, or choose a larger size",
                    details={"least_mib": least},
                )
            await disks.resize_ext(raw, size_mib)
            await disks.set_size(raw, size_mib)
            await self._replace(ip, volume, raw, size_mib, uid)

    async def _replace(self, ip: str, volume: Volume, raw: Path, size_mib: int, uid: int) -> None:
        async with disks.in_the_making(self.path(ip, volume), uid) as part:
            if volume.format is VolumeFormat.RAW:
                await disks.copy(raw, part)
            else:
                await disks.make_qcow2(part, size_mib)
                await disks.convert(raw, "raw", part, "qcow2")

    async def copy_to(self, ip: str, volume: Volume, moved: Volume, uid: int) -> None:
        """The file of a volume in another store too, where it is loose."""
        source = self._there(ip, volume)
        path = await aside.run(self._room_for, ip, moved)
        await aside.run(self.loosen, ip, moved)
        async with disks.in_the_making(path, uid) as part:
            await disks.copy(source, part)

    async def remove(self, ip: str, volume: Volume) -> None:
        """Gone is fine."""
        if volume.store in self._places:
            self.check_usable(volume)
            await aside.remove_tree(self.path(ip, volume))
            await aside.run(self.fasten, ip, volume)
            with contextlib.suppress(OSError):
                await aside.run((self._places[volume.store] / ip).rmdir)

    def loosen(self, ip: str, volume: Volume) -> None:
        """From now on its file goes at the next start, unless a record names it then."""
        self.check_usable(volume)
        mark = _loose(self.path(ip, volume))
        with failing(f"writing {mark}"):
            mark.touch(0o600)
            files.sync_dir(mark.parent)

    def fasten(self, ip: str, volume: Volume) -> None:
        """The opposite of `loosen`. May be repeated."""
        mark = _loose(self.path(ip, volume))
        with failing(f"removing {mark}"):
            mark.unlink(missing_ok=True)

    def discard(self, ip: str) -> None:
        """All that a VM has here. Gone is fine."""
        for place in self._usable().values():
            files.remove_tree(place / ip)

    async def discard_aside(self, ip: str) -> None:
        """As `discard`, beside the event loop."""
        for place in self._usable().values():
            await aside.remove_tree(place / ip)

    def carry(self, ip: str, to: str) -> None:
        """What was one address's is another's from now on. Nothing there is fine."""
        for place in self._usable().values():
            if not (place / ip).is_dir():
                continue
            with failing(f"moving volumes of {ip} to {to}"):
                (place / ip).rename(place / to)
                files.sync_dir(place)

    def used_mib(self, vm: VM) -> int:
        """What its volumes really take, and its root, where that is a file."""
        volumes = (self.path(vm.ip, volume) for volume in vm.volumes if volume.store in self._places)
        roots = () if self._roots is None else (self._roots / vm.ip).glob(f"*/{ROOT_FILE}")
        return sum(map(disks.allocated_mib, (*volumes, *roots)))

    def free_mib(self, vm: VM) -> int | None:
        """What is free where its volumes are, at the place that has least; None when it has none here."""
        places = {self._places[volume.store] for volume in vm.volumes if volume.store in self._places}
        return min(map(files.free_mib, places), default=None)

    def _room_for(self, ip: str, volume: Volume) -> Path:
        path = self.path(ip, volume)
        self.check_usable(volume)
        files.make_dirs(path.parent, 0o700)
        return path

    def _there(self, ip: str, volume: Volume) -> Path:
        path = self.path(ip, volume)
        self.check_usable(volume)
        if not path.exists():
            raise HostFailure(
                f"volume {volume.name}: its file {path} is gone", hint="restore it, or delete it"
            )
        return path

    @contextlib.asynccontextmanager
    async def _scratch(self, path: Path, uid: int) -> AsyncIterator[Path]:
        """A file beside it for the time of the block."""
        scratch = path.with_name(f".{path.name}.scratch.part")
        with failing(f"making {scratch}"):
            await aside.run(disks.make_anew, scratch, uid)
        try:
            yield scratch
        finally:
            await aside.run(scratch.unlink, missing_ok=True)


async def _make_empty(part: Path, disk_format: VolumeFormat, size_mib: int) -> None:
    if disk_format is VolumeFormat.RAW:
        await disks.set_size(part, size_mib)
    else:
        await disks.make_qcow2(part, size_mib)


def _put(file: IO[bytes], place: int, chunk: bytes, digest: hashlib._Hash) -> None:
    digest.update(chunk)
    if chunk.count(0) < len(chunk):  # else it stays a hole
        os.lseek(file.fileno(), place, os.SEEK_SET)
        files.write_whole(file.fileno(), chunk)


def check_not_lost(state: Path, places: Iterable[Path], cgroup: str) -> None:
    """Refuse to begin anew in a state directory that is empty, while there are stores or machines of its agent.

    To be called before that directory is marked.
    """
    if find_owner(state) is not None or any(state.glob("vms/*")):
        return
    for kind in sorted(cgroups.children(cgroup)):
        for ip in filter(is_ip, sorted(cgroups.children(f"{cgroup}/{kind}"))):
            if cgroups.members(f"{cgroup}/{kind}/{ip}"):
                raise HostFailure(
                    f"state directory {state}: it is empty, but machine {ip} of its agent runs",
                    hint="mount or restore it; if it is gone for good, end what runs in cgroup " + cgroup,
                )
    for place in places:
        holder = holder_of(place)
        if holder is not None and holder.state == str(state.resolve()):
            raise HostFailure(
                f"state directory {state}: it is empty, but there is a store of its agent in {place}",
                hint=f"mount or restore it; if it is gone for good, move what is in {place} elsewhere",
            )


def _loose(path: Path) -> Path:
    return path.with_name(f".{path.name}.loose")


def _give(path: Path, uid: int) -> None:
    if path.stat().st_uid != uid:
        disks.give(path, uid)


def _set_aside(place: Path, path: Path, name: str) -> None:
    """Nobody knows what it is. What cannot be moved stays, and is no reason not to start."""
    try:
        moved = Attic(place / _ATTIC).put(path, name, clock.now())
        log.error("no record names %s: moved to %s, and removed after %d days", path, moved, KEPT_FOR.days)
    except HostFailure as failure:
        log.error("tidying stores: %s", failure)


def _clear(path: Path) -> None:
    """Remove what is nobody's. What cannot be removed is no reason not to start."""
    try:
        files.remove_tree(path)
    except HostFailure as failure:
        log.error("tidying stores: %s", failure)


async def _receive(part: Path, chunks: AsyncIterator[bytes], sha256: str, most: int) -> None:
    digest, got = hashlib.sha256(), 0
    with failing(f"writing {part}"), part.open("r+b", buffering=0) as file:
        async for chunk in chunks:
            if got + len(chunk) > most:
                raise Invalid("content", f"more than {most} bytes", "is larger than the volume")
            await aside.run(_put, file, got, chunk, digest)
            got += len(chunk)
        await aside.run(file.truncate, got)
    if digest.hexdigest() != sha256:
        raise Invalid(
            "content",
            digest.hexdigest(),
            "is not what its hash says",
            hint="send it again; was the file changed meanwhile?",
        )
