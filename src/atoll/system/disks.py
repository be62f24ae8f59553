"""Disk images in files: made, filled, copied, resized. Runs qemu-img and e2fsprogs, works on files in threads.

What is on a disk was written by a guest. The tools that read it run as the user that owns the file, the VM's own,
and get it as an open file: a disk that takes one of them over has won nothing but itself.

One at a time has a disk: a tool, or the machine whose disk it is. The open file that each of them gets is locked, and
stays so until the last copy of it is closed: a tool that outlives the agent that started it keeps its disk until it
ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import secrets
from collections.abc import AsyncIterator
from pathlib import Path

from atoll.errors import Conflict, HostFailure, Invalid
from atoll.model.size import show_mib
from atoll.plan.disk_content import (
    EXT_SUPERBLOCK,
    QCOW2_HEADER,
    Ext,
    ext_of,
    in_mib,
    least_blocks,
    qcow2_size_mib,
)
from atoll.system import aside, clock, files, pids, processes, sparse
from atoll.system.failures import failing

TIMEOUT_S = 3600.0
BUSY_PATIENCE_S = 30.0
_POLL_S = 0.05
_MIB = 1 << 20
_PART = ".part"

OVERLAY = ("upper", "work")
"""The directories of an overlay, as mounts takes them: what was changed, and the kernel's own."""


@contextlib.asynccontextmanager
async def in_the_making(path: Path, uid: int) -> AsyncIterator[Path]:
    """A file beside `path` that takes its place when the block ends well, for good, and is gone otherwise."""
    # A name that nobody else has: the next VM at this address may be making a volume of the same name.
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}{_PART}")
    try:
        with failing(f"making {path}"):
            await aside.run(make_anew, part, uid)
        yield part
        with failing(f"making {path}"):
            await aside.run(_take_its_place, part, path)
    except BaseException:
        await aside.run(part.unlink, missing_ok=True)
        raise


def make_anew(path: Path, uid: int) -> None:
    """An empty file of this user, whatever was there before."""
    path.unlink(missing_ok=True)
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    give(path, uid)


def _take_its_place(part: Path, path: Path) -> None:
    files.sync(part)
    part.replace(path)
    files.sync_dir(path.parent)


def give(path: Path | int, uid: int) -> None:
    """Make it this user's own. Only root can; without, it stays ours, and so do the tools that read it."""
    if os.geteuid() == 0:
        os.chown(path, uid, uid)


def remove_parts(directory: Path) -> None:
    """Remove what was in the making when its maker was killed."""
    for part in directory.glob(f".*{_PART}"):
        part.unlink(missing_ok=True)


async def set_size(path: Path, size_mib: int) -> None:
    """Of a raw disk. What is added is empty, and takes no space until it is written."""
    with failing(f"giving {path} {show_mib(size_mib)}"):
        await aside.run(os.truncate, path, size_mib * _MIB)


async def make_qcow2(path: Path, size_mib: int) -> None:
    """An empty one, in a file that is there."""
    await _run(["qemu-img", "create", "-q", "-f", "qcow2"], [path], [f"{size_mib}M"])


async def make_ext4(path: Path) -> None:
    """An empty file system over all of a raw disk."""
    # lazy_itable_init: the guest's kernel does the rest in the background, and the file stays small.
    await _run(["mke2fs", "-q", "-F", "-t", "ext4", "-E", "lazy_itable_init=1,nodiscard"], [path])


async def make_root(path: Path, size_mib: int) -> None:
    """A raw disk of this size with an empty file system for a container: small until it is written to, and all of it
    the container's. In it are the directories of an overlay. A journal that is a hole is an empty one."""
    await set_size(path, size_mib)
    layout = ["-b", "4096", "-i", "16384", "-m", "0", "-J", f"size={min(16, max(4, size_mib // 64))}"]
    options = ["-E", "lazy_journal_init=1,discard"]
    await _run(["mke2fs", "-q", "-F", "-t", "ext4", *layout, *options], [path])
    for name in OVERLAY:
        await _run(["debugfs", "-w", "-R", f"mkdir {name}"], [path])


def copy_sparse(source: Path, target: Path) -> None:
    """A new file with the same content, holes as holes."""
    with contextlib.ExitStack() as opened:
        from_ = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
        opened.callback(os.close, from_)
        to = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        opened.callback(os.close, to)
        size = os.fstat(from_).st_size
        os.ftruncate(to, size)
        at = sparse.first_kept(from_)
        while at < size:
            end = os.lseek(from_, at, os.SEEK_HOLE)
            while at < end:
                at += os.copy_file_range(from_, to, end - at, at, at)
            at = sparse.first_kept(from_, end)


async def convert(source: Path, source_format: str, target: Path, target_format: str) -> None:
    """What is on one disk onto another one, which is there and at least as large."""
    await aside.run(check_standing_alone, source, source_format)
    argv = ["qemu-img", "convert", "-n", "-f", source_format, "-O", target_format]
    await _run(argv, [source, target])


async def copy(source: Path, target: Path) -> None:
    """The same file, holes as holes; shared with the first where the file system can."""
    await _run(["cp", "--sparse=always", "--reflink=auto", "--no-preserve=all", "--"], [source, target])


async def grow_qcow2(path: Path, size_mib: int) -> None:
    await aside.run(check_standing_alone, path, "qcow2")
    await _run(["qemu-img", "resize", "-q", "-f", "qcow2"], [path], [f"{size_mib}M"])


async def resize_ext(path: Path, size_mib: int | None = None) -> None:
    """The file system on a raw disk: so large, or as large as the disk. It is checked first."""
    checked = await _run(["e2fsck", "-f", "-p"], [path], check=False)
    if checked.returncode > 1:  # 1: it found errors, and mended them
        said = (checked.stdout + checked.stderr).decode(errors="replace").strip().splitlines()
        raise HostFailure(
            f"checking the file system on {path.name}: {said[-1] if said else checked.returncode}",
            hint="attach it to a guest and mend it there: e2fsck -f",
        )
    await _run(["resize2fs"], [path], [f"{size_mib}M"] if size_mib is not None else [])


async def least_mib(path: Path) -> int:
    """The least size that the ext file system on a raw disk can be cut to."""
    found = await aside.run(ext_at, path)
    if found is None:
        raise Conflict(
            f"{path.name}: there is no ext4 file system on it, so cutting it may cut its content",
            hint="add a smaller volume and copy what is on it",
        )
    completed = await _run(["resize2fs", "-P"], [path])
    return in_mib(least_blocks(completed.stdout.decode()) * found.block_bytes)


def ext_at(path: Path) -> Ext | None:
    """The ext file system on a raw disk."""
    return ext_of(_start_of(path, EXT_SUPERBLOCK))


def check_standing_alone(path: Path, disk_format: str) -> None:
    """Refuse a qcow2 file that would make a tool open another one."""
    if disk_format == "qcow2":
        try:
            qcow2_size_mib(_start_of(path, QCOW2_HEADER))
        except Invalid as error:
            raise HostFailure(f"{path.name}: its content {error.details['why']}") from None


def allocated_mib(path: Path) -> int:
    """The space that a file really takes. Gone is nothing."""
    try:
        return path.stat().st_blocks * 512 // _MIB
    except FileNotFoundError:
        return 0


def allocate_in_memory(name: str, size_mib: int, uid: int) -> int:
    """The descriptor of an empty raw disk in memory. Gone when the last one who has it open closes it."""
    with failing(f"making disk {name} in memory"):
        descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
        try:
            os.ftruncate(descriptor, size_mib * _MIB)
            give(descriptor, uid)
        except BaseException:
            os.close(descriptor)
            raise
    return descriptor


async def _run(
    before: list[str], paths: list[Path], after: list[str] | None = None, *, check: bool = True
) -> processes.Completed:
    """A tool on files, which it gets open, as the user that owns the first of them."""
    async with contextlib.AsyncExitStack() as stack:
        opened = []
        for path in paths:
            opened.append(await claim(path))
            stack.callback(os.close, opened[-1])
        named = [f"/proc/self/fd/{descriptor}" for descriptor in opened]
        owner = os.fstat(opened[0]).st_uid if os.geteuid() == 0 else 0
        launch = processes.Launch(
            argv=(*before, *named, *(after or ())),
            uid=owner or None,
            pass_fds=tuple(opened),
            cwd=Path("/"),
            env={"LC_ALL": "C.UTF-8", "PATH": os.defpath},
        )
        return await processes.launch(launch, timeout_s=TIMEOUT_S, check=check)


async def claim(path: Path) -> int:
    """Open a disk that nobody else has. It is nobody else's until this descriptor and all copies of it are closed.

    Whoever has it is waited for, and after a while it is a Conflict: no tool is ended in the middle of its work.
    """
    with failing(f"opening {path}"):
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        until = clock.monotonic() + BUSY_PATIENCE_S
        while not _lock(descriptor):
            if clock.monotonic() > until:
                who = ", ".join(await aside.run(pids.having_open, descriptor)) or "somebody"
                raise Conflict(
                    f"disk {path.name}: {who} is at work on it", hint="try again when that is done, or end it"
                )
            await asyncio.sleep(_POLL_S)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _start_of(path: Path, length: int) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(length)
    except OSError as error:
        name = errno.errorcode.get(error.errno or 0, "")
        raise HostFailure(f"reading {path}: {error.strerror or name}") from error
