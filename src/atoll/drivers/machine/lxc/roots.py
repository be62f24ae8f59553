"""Root file systems of containers: an image's, unpacked once, below a VM's own changes. Files, and tar.

    <cache>/<digest>/root              the image, unpacked; never written to
    <cache>/<digest>/users/<ip>        a link to each root on top of it; with the last of them it may go
    <cache>/empty/<size>.ext4          empty file systems, one for each size that was asked for lately
    <VM's directory>/lxc/base          the digest of the image below this root
    <VM's directory>/lxc/root.ext4     a file system of the root's size, as a sparse file; in it
        upper                              what the VM changed
        work                               the kernel's own

A container can fill its own file system and no other. Owners there are those that containers see. Only root gets
near: a container can make a program that runs as root, and outside of it that would be the host's.
"""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path, PurePosixPath

from atoll.drivers.machine import shared_folders
from atoll.drivers.machine.base import ROOT_FILE, Machine
from atoll.drivers.machine.lxc import record
from atoll.drivers.machine.lxc.config import ROOT, STAGE
from atoll.errors import HostFailure
from atoll.system import aside, cgroups, disks, files, folders, mounts, processes
from atoll.system.failures import failing

UNPACK_TIMEOUT_S = 600.0
MOUNT_TIMEOUT_S = 10.0
"""For an earlier mount to go, when its last process has."""
MOST_SIZES = 16
_DIGEST_LIMIT = 256
_EMPTY = "empty"


class Roots:
    """The images that are unpacked on this node."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self._lock = asyncio.Lock()

    async def ensure(self, machine: Machine) -> Path:
        """The image below the machine's root, unpacked if need be, and its root if it has none."""
        digest = _base_of(machine) or machine.image_digest
        image = self._cache / digest / "root"
        async with self._lock:
            if not image.is_dir():
                await self._unpack(machine, digest)
            if not root_of(machine).exists():
                empty = await self._empty(machine)
                with failing(f"making the root of machine {machine.name}"):
                    await aside.run(_make_root, machine, digest, empty)
            _claim(self._cache / digest / "users", machine)
        return image

    def let_go(self, machine: Machine) -> None:
        """Its root is no more: no image is held for it. Gone is fine."""
        for users in self._cache.glob("*/users"):
            (users / machine.ip).unlink(missing_ok=True)

    async def _empty(self, machine: Machine) -> Path:
        """An empty file system of the size of the machine's root: to copy it is quicker than to make one."""
        if machine.root_mib <= 0:
            raise HostFailure(f"starting machine {machine.name}: its root has no size", hint="create it anew")
        path = self._cache / _EMPTY / f"{machine.root_mib}.ext4"
        if not path.exists():
            files.make_dirs(path.parent)
            for old in sorted(path.parent.iterdir(), key=lambda each: each.stat().st_mtime)[: 1 - MOST_SIZES]:
                old.unlink(missing_ok=True)
            async with disks.in_the_making(path, 0) as part:
                await disks.make_root(part, machine.root_mib)
        return path

    async def _unpack(self, machine: Machine, digest: str) -> None:
        if machine.rootfs is None or not digest or digest != machine.image_digest:
            raise HostFailure(
                f"starting machine {machine.name}: the image below its root is gone from {self._cache}",
                hint="create it anew from an image that is there",
            )
        await self._prune()
        final = self._cache / digest
        temporary = self._cache / f".{digest}.{secrets.token_hex(4)}"
        files.make_dirs(temporary / "root")
        (temporary / "root").chmod(0o755)
        try:
            await processes.run(unpack_argv(machine.rootfs, temporary / "root"), timeout_s=UNPACK_TIMEOUT_S)
            await aside.remove_tree(final)  # an earlier one that was not finished
            temporary.rename(final)
            files.sync_dir(self._cache)
        except BaseException:
            await aside.remove_tree(temporary)
            raise

    async def _prune(self) -> None:
        """Remove images that no root needs, and what an agent that was killed left half unpacked."""
        files.make_dirs(self._cache)
        for entry in list(self._cache.iterdir()):
            # A link to a root that is gone does not exist.
            if entry.name != _EMPTY and not any(link.exists() for link in entry.glob("users/*")):
                await aside.remove_tree(entry)


def unpack_argv(archive: Path, root: Path) -> list[str]:
    """Pure. Device files are left out: a container gets those that it may have from LXC."""
    keep = (
        "--numeric-owner",
        "--same-permissions",
        "--same-owner",
        "--xattrs",
        "--xattrs-include=security.capability",
    )
    leave_out = ("--anchored", "--exclude=dev/*", "--exclude=./dev/*")
    return ["tar", "--extract", *keep, *leave_out, f"--directory={root}", f"--file={archive}"]


def root_of(machine: Machine) -> Path:
    return record.own_directory(machine) / ROOT_FILE


def base_of(machine: Machine) -> Path:
    return record.own_directory(machine) / "base"


def mount_root(machine: Machine, base: Path, ids: int) -> None:
    """Mount it for the monitor that waits for it. To be called in the mount namespace that it has to itself.

    `ids`: the user namespace of `disk_ranges`.
    """
    lower, disk, changes = STAGE / "base", STAGE / "disk", STAGE / "changes"
    for place in (lower, disk, changes, ROOT):
        place.mkdir()
    mounts.idmapped(base, lower, ids)
    mounts.image(root_of(machine), disk, MOUNT_TIMEOUT_S)
    mounts.idmapped(disk, changes, ids)
    mounts.unmount(disk)
    mounts.overlay(ROOT, lower, *(changes / name for name in disks.OVERLAY))


def mount_folders(machine: Machine) -> None:
    """In its root, which is mounted, and in which nothing runs yet. LXC takes the mounts along, also after a reset."""
    for folder in machine.folders:
        with (
            failing(f"starting machine {machine.name}: share {folder.name}"),
            shared_folders.copied(folder, machine.uid) as copy,
            folders.made_beneath(ROOT, PurePosixPath(folder.target), machine.uid) as place,
        ):
            mounts.put(copy, place)


def hide_groups(*, systemd: bool) -> None:
    """LXC would make groups in every hierarchy that it sees, and move the container there. A systemd needs those."""
    for hierarchy in cgroups.hierarchies():
        if not (systemd and cgroups.has_units(hierarchy)):
            mounts.unmount(hierarchy)


def _make_root(machine: Machine, digest: str, empty: Path) -> None:
    # Not synced, as nothing is that the container writes there by itself; a start waits for this.
    record.own_directory(machine).mkdir(0o700, exist_ok=True)
    base_of(machine).write_text(digest)
    part = root_of(machine).with_suffix(".part")
    disks.copy_sparse(empty, part)
    part.replace(root_of(machine))


def _base_of(machine: Machine) -> str:
    try:
        return files.read_limited(base_of(machine), _DIGEST_LIMIT).decode()
    except FileNotFoundError:
        return ""


def _claim(users: Path, machine: Machine) -> None:
    users.mkdir(0o700, exist_ok=True)
    link = users / machine.ip
    target = str(root_of(machine))
    if not link.is_symlink() or str(link.readlink()) != target:
        link.unlink(missing_ok=True)
        link.symlink_to(target)
