"""Root file systems of containers: an image's, unpacked once, below a VM's own changes. Files, and tar.

    <cache>/<digest>/root              the image, unpacked; never written to
    <cache>/<digest>/users/<ip>        a link to each disk on top of it; with the last of them it may go
    <VM's directory>/lxc/disk/base     the digest of the image below this disk
    <VM's directory>/lxc/disk/upper    what the VM changed
    <VM's directory>/lxc/disk/work     the kernel's own

Owners on disk are those that containers see. Only root gets near: a container can make a program that runs as
root, and outside of it that would be the host's.
"""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path

from atoll.drivers.machine.base import Machine
from atoll.drivers.machine.lxc import record
from atoll.drivers.machine.lxc.config import ROOT, STAGE, disk_ranges
from atoll.errors import HostFailure
from atoll.system import aside, cgroups, files, mounts, processes

UNPACK_TIMEOUT_S = 600.0
_DIGEST_LIMIT = 256


class Roots:
    """The images that are unpacked on this node."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self._lock = asyncio.Lock()

    async def ensure(self, machine: Machine) -> Path:
        """The root below the machine's disk, unpacked if need be, and the disk if it has none."""
        digest = _base_of(machine) or machine.image_digest
        root = self._cache / digest / "root"
        async with self._lock:
            if not root.is_dir():
                await self._unpack(machine, digest)
            _claim(self._cache / digest / "users", machine)
            _ensure_disk(disk_of(machine), digest)
        return root

    async def _unpack(self, machine: Machine, digest: str) -> None:
        if machine.rootfs is None or not digest or digest != machine.image_digest:
            raise HostFailure(
                f"starting machine {machine.name}: the image below its disk is gone from {self._cache}",
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
        """Remove images that no disk needs, and what an agent that was killed left half unpacked."""
        files.make_dirs(self._cache)
        for entry in list(self._cache.iterdir()):
            # A link to a disk that is gone does not exist.
            if not any(link.exists() for link in entry.glob("users/*")):
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


def disk_of(machine: Machine) -> Path:
    return record.own_directory(machine) / "disk"


def mount_root(machine: Machine, base: Path, *, systemd: bool) -> None:
    """Mount it for the monitor that is started next. To be called in a mount namespace of its own."""
    with mounts.user_namespace(disk_ranges(machine)) as ids:
        mounts.tmpfs(STAGE)
        # Here LXC keeps locks and sockets, for good: now they go with it.
        mounts.tmpfs(Path("/run"))
        # It would make groups in all of them, in which nothing of ours is limited. A systemd keeps its units in one.
        needed = {cgroups.systemd_hierarchy()} if systemd else set()
        for hierarchy in cgroups.other_hierarchies():
            if hierarchy not in needed:
                mounts.unmount(hierarchy)
        lower, disk = STAGE / "base", STAGE / "disk"
        for place in (lower, disk, ROOT):
            place.mkdir()
        mounts.idmapped(base, lower, ids)
        mounts.idmapped(disk_of(machine), disk, ids)
        mounts.overlay(ROOT, lower, disk / "upper", disk / "work")


def _ensure_disk(disk: Path, digest: str) -> None:
    # Not synced, as nothing is that the container writes there by itself; a start waits for this.
    for path in (disk.parent, disk, disk / "upper", disk / "work"):
        path.mkdir(0o700, exist_ok=True)
    # Its mode is that of the container's root.
    (disk / "upper").chmod(0o755)
    if not (disk / "base").exists():
        (disk / "base").write_text(digest)


def _base_of(machine: Machine) -> str:
    try:
        return files.read_limited(disk_of(machine) / "base", _DIGEST_LIMIT).decode()
    except FileNotFoundError:
        return ""


def _claim(users: Path, machine: Machine) -> None:
    users.mkdir(0o700, exist_ok=True)
    link = users / machine.ip
    target = str(disk_of(machine))
    if not link.is_symlink() or str(link.readlink()) != target:
        link.unlink(missing_ok=True)
        link.symlink_to(target)
