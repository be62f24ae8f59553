"""Where volumes are kept: <store>/<ip>/<name>.<format>, each file its VM's user's own, in directories that are closed.

`uid` is that user: the tools that read a volume run as whoever owns it.

Effects: files, in threads. One that is there under its name is whole: it is made beside it and takes its place in one
step. What no record names is removed when the agent starts.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from pathlib import Path
from typing import IO

from atoll.drivers.machine.base import ROOT_FILE
from atoll.errors import Conflict, HostFailure, Invalid, NotFound
from atoll.hypervisor.vms.records import Record
from atoll.model.size import show_mib
from atoll.model.vm import VM
from atoll.model.volume import FileSystem, Volume, VolumeFormat
from atoll.plan.volumes import ROOTS, Space
from atoll.system import aside, disks, files
from atoll.system.failures import failing

log = logging.getLogger(__name__)

# A qcow2 file is a little larger than the disk in it.
_QCOW2_MARGIN_MIB = 64


class Stores:
    """The stores of a node by name."""

    def __init__(
        self, places: Mapping[str, Path], reserve_mib: int = 0, *, roots: Path | None = None
    ) -> None:
        """`roots`: the directory of VMs, in which drivers keep their roots."""
        self._places = dict(places)
        self._roots = roots
        self._reserve_mib = reserve_mib
        self.spaces: tuple[Space, ...] = ()

    def prepare(
        self,
        vms: Mapping[str, Record],
        unreadable: Collection[str],
        carried: Mapping[str, str],
    ) -> None:
        """Make the stores, and leave in them what the VMs of this node have, and nothing else.

        `carried`: VMs whose files may still be at another address. `unreadable`: addresses of which nobody knows.
        """
        for place in self._places.values():
            files.make_dirs(place, 0o700)
        for ip, other in carried.items():
            self.carry(other, ip)
        for place in self._places.values():
            for directory in place.iterdir():
                if directory.name in unreadable:
                    continue
                if directory.name in vms:
                    self._tidy(directory, vms[directory.name])
                else:
                    _clear(directory)
        self.spaces = tuple(self._spaces())

    def _tidy(self, directory: Path, record: Record) -> None:
        disks.remove_parts(directory)
        vm = record.vm
        named = {self.path(vm.ip, volume) for volume in vm.volumes if volume.store and volume.made}
        for path in directory.iterdir():
            if path not in named:
                _clear(path)
            elif record.ids is not None and path.stat().st_uid != record.ids.first:
                disks.give(path, record.ids.first)

    def _spaces(self) -> Iterator[Space]:
        """What may be promised in all, however much of it is written already."""
        taken = {name: (place, place.glob("*/*")) for name, place in self._places.items()}
        if self._roots is not None:
            taken[ROOTS] = (self._roots, self._roots.glob(f"*/*/{ROOT_FILE}"))
        ours: dict[int, int] = {}
        for place, paths in taken.values():
            device = place.stat().st_dev
            ours[device] = ours.get(device, 0) + sum(map(disks.allocated_mib, paths))
        for name, (place, _) in taken.items():
            device = place.stat().st_dev
            total_mib = files.free_mib(place) + ours[device] - self._reserve_mib
            yield Space(name, device, max(0, total_mib))

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

    async def receive(
        self, ip: str, volume: Volume, chunks: AsyncIterator[bytes], sha256: str, uid: int
    ) -> FileSystem:
        """A volume with this content; Invalid if it is another. The file system that is on it, where that is known."""
        path = await aside.run(self._room_for, ip, volume)
        most = volume.size_mib << 20
        if volume.format is VolumeFormat.QCOW2:
            most += _QCOW2_MARGIN_MIB << 20
        async with disks.in_the_making(path, uid) as part:
            await _receive(part, chunks, sha256, most)
            if volume.format is VolumeFormat.QCOW2:
                await disks.grow_qcow2(part, volume.size_mib)
                return FileSystem.NONE
            await disks.set_size(part, volume.size_mib)
            return FileSystem.NONE if await aside.run(disks.ext_at, part) is None else FileSystem.EXT4

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
        """The file of a volume in another store too."""
        source = self._there(ip, volume)
        path = await aside.run(self._room_for, ip, moved)
        async with disks.in_the_making(path, uid) as part:
            await disks.copy(source, part)

    async def remove(self, ip: str, volume: Volume) -> None:
        """Gone is fine."""
        if volume.store in self._places:
            await aside.remove_tree(self.path(ip, volume))
            with contextlib.suppress(OSError):
                await aside.run((self._places[volume.store] / ip).rmdir)

    def discard(self, ip: str) -> None:
        """All that a VM has here. Gone is fine."""
        for place in self._places.values():
            files.remove_tree(place / ip)

    async def discard_aside(self, ip: str) -> None:
        """As `discard`, beside the event loop."""
        for place in self._places.values():
            await aside.remove_tree(place / ip)

    def carry(self, ip: str, to: str) -> None:
        """What was one address's is another's from now on. Nothing there is fine."""
        for place in self._places.values():
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
        files.make_dirs(path.parent, 0o700)
        return path

    def _there(self, ip: str, volume: Volume) -> Path:
        path = self.path(ip, volume)
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
