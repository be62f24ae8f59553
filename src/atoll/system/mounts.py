"""Mounts in a mount namespace of their own, and user namespaces to map their owners. Makes both.

What is mounted inside `private` is seen by the processes that are started there, and by nobody else. It goes
with the last of them, so there is nothing to unmount, whoever is killed and when.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import struct
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

from atoll.errors import HostFailure
from atoll.system import clock, host, libc, own_thread
from atoll.system.failures import failing, ignoring
from atoll.system.pids import Pid, opened

T = TypeVar("T")

_LOOP_CONFIGURE = 0x4C0A
_LOOP_CTL_GET_FREE = 0x4C82
_LO_FLAGS_AUTOCLEAR = 4
_LO_FLAGS_DIRECT_IO = 16
_LOOP_BLOCK = 4096
_LOOP_TRIES = 64
_LOCK_PAUSE_S = 0.002

_MS_NOSUID = 2
_MS_NODEV = 4
_CLONE_NEWNS = 0x00020000
_MS_REC = 0x4000
_MS_SLAVE = 0x80000
_MNT_DETACH = 2
_AT_FDCWD = -100
_AT_EMPTY_PATH = 0x1000
_OPEN_TREE = 428
_MOVE_MOUNT = 429
_MOUNT_SETATTR = 442
_OPEN_TREE_CLONE = 1
_MOVE_MOUNT_F_EMPTY_PATH = 4
_MOUNT_ATTR_RDONLY = 0x00000001
_MOUNT_ATTR_NOSUID = 0x00000002
_MOUNT_ATTR_NODEV = 0x00000004
_MOUNT_ATTR_IDMAP = 0x00100000
_MOVE_MOUNT_T_EMPTY_PATH = 0x40
_MS_PRIVATE = 1 << 18

# Tells that it is in its user namespace, then waits for the end of its input.
_WAIT = "echo; read -r _"

_libc = ctypes.CDLL(None, use_errno=True)


class IdRange(Struct, frozen=True):
    """Users and groups `inside`, `inside` + 1, … are `outside`, `outside` + 1, … on the host."""

    inside: int
    outside: int
    count: int


def private(function: Callable[[], T]) -> T:
    """Run a function in a thread with mounts of its own; what it starts keeps them. Errors come through."""

    def leave() -> T:
        with failing("making a mount namespace"):
            _call("unshare", _CLONE_NEWNS)
            # Slave: an unmount on the host still reaches us, and nothing of ours reaches the host.
            _mount("none", Path("/"), "none", _MS_SLAVE | _MS_REC)
        return function()

    return own_thread.run(leave)


def inside(process: Pid, function: Callable[[], T]) -> T:
    """Run a function in a thread that has the mounts of a process. Errors come through."""

    def enter() -> T:
        with failing(f"entering the mounts of process {process.pid}"), opened(process) as handle:
            if handle is None:
                raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
            libc.unshare(libc.CLONE_FS)
            libc.setns(handle, libc.CLONE_NEWNS)
        return function()

    return own_thread.run(enter)


def tmpfs(target: Path) -> None:
    """An empty file system in memory, in place of what is there."""
    with failing(f"mounting a tmpfs on {target}"):
        _mount("tmpfs", target, "tmpfs", 0, "mode=0755")


def overlay(target: Path, lower: Path, upper: Path, work: Path) -> None:
    """`lower` with the changes in `upper`. `work` is on the same mount as `upper`."""
    with failing(f"mounting an overlay on {target}"):
        _mount("overlay", target, "overlay", 0, f"lowerdir={lower},upperdir={upper},workdir={work}")


def image(file: Path, target: Path, timeout_s: float) -> None:
    """The ext4 file system in a file. The device goes with the mount.

    One file is mounted once at a time: the device keeps the lock that is taken here. An earlier mount whose last
    process has just gone is waited for.
    """
    with failing(f"mounting {file}"), contextlib.ExitStack() as opened:

        def open_(path: Path) -> int:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            opened.callback(os.close, descriptor)
            return descriptor

        backing = open_(file)
        _lock(backing, timeout_s)
        control = open_(Path("/dev/loop-control"))
        for _ in range(_LOOP_TRIES):
            number = fcntl.ioctl(control, _LOOP_CTL_GET_FREE)
            device = open_(Path(f"/dev/loop{number}"))
            try:
                fcntl.ioctl(device, _LOOP_CONFIGURE, _loop_config(backing))
            except OSError as error:
                if error.errno != errno.EBUSY:  # somebody else was quicker
                    raise
                continue
            # noinit_itable: tables that are holes are empty. discard: what is deleted is given back.
            options = "discard,noinit_itable,errors=remount-ro"
            _mount(f"/dev/loop{number}", target, "ext4", _MS_NOSUID | _MS_NODEV, options)
            return
        raise OSError(errno.EBUSY, "no loop device is free")


def _lock(descriptor: int, timeout_s: float) -> None:
    until = clock.monotonic() + timeout_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if clock.monotonic() > until:
                raise
            time.sleep(_LOCK_PAUSE_S)
        else:
            return


def _loop_config(backing: int) -> bytes:
    """A `struct loop_config`: the file, its block size, and of its `struct loop_info64` the flags. Pure."""
    info = struct.pack("52x I 176x", _LO_FLAGS_AUTOCLEAR | _LO_FLAGS_DIRECT_IO)
    return struct.pack("II", backing, _LOOP_BLOCK) + info + bytes(64)


def options_of(path: Path) -> tuple[str, frozenset[str]]:
    """The kind of the file system that a path is on, and what it is mounted with, as /proc/self/mountinfo says it."""
    with failing(f"looking for the mount of {path}"):
        device = path.stat().st_dev
        lines = Path("/proc/self/mountinfo").read_text(errors="replace").splitlines()
    return options_in(lines, f"{os.major(device)}:{os.minor(device)}")


def options_in(lines: Sequence[str], device: str) -> tuple[str, frozenset[str]]:
    """Those of the last mount of a device. Pure."""
    for line in reversed(lines):
        before, _, after = line.partition(" - ")
        if before.split()[2] == device:
            kind, _, options = after.split(" ", 2)
            return kind, frozenset((*before.split()[5].split(","), *options.split(",")))
    return "", frozenset()


def unmount(target: Path) -> None:
    with failing(f"unmounting {target}"):
        _call("umount2", os.fsencode(target), _MNT_DETACH)


def unmount_all(target: Path) -> None:
    """All that is mounted at a place. Nothing is fine."""
    with failing(f"unmounting {target}"), ignoring(errno.EINVAL):
        while True:
            _call("umount2", os.fsencode(target), _MNT_DETACH)


@contextlib.contextmanager
def copy_of(source: int, user_namespace: int | None, *, read_only: bool) -> Iterator[int]:
    """An open directory once more, as a mount that is nowhere yet: without what is mounted in it, devices and rights of
    programs. Owners there are what the user namespace maps those on disk to; None: as they are.

    OSError with EINVAL when the file system of the directory cannot map owners.
    """
    tree = _syscall(_OPEN_TREE, source, b"", _OPEN_TREE_CLONE | os.O_CLOEXEC | _AT_EMPTY_PATH)
    try:
        change = _MOUNT_ATTR_NOSUID | _MOUNT_ATTR_NODEV | (_MOUNT_ATTR_RDONLY if read_only else 0)
        mapped = 0 if user_namespace is None else _MOUNT_ATTR_IDMAP
        told = struct.pack("QQQQ", change | mapped, 0, _MS_PRIVATE, user_namespace or 0)
        _syscall(_MOUNT_SETATTR, tree, b"", _AT_EMPTY_PATH, told, len(told))
        yield tree
    finally:
        os.close(tree)


def put(copy: int, target: int) -> None:
    """A mount that is nowhere yet comes to be at an open directory, in the mounts of this thread."""
    _syscall(_MOVE_MOUNT, copy, b"", target, b"", _MOVE_MOUNT_F_EMPTY_PATH | _MOVE_MOUNT_T_EMPTY_PATH)


def idmapped(source: Path, target: Path, user_namespace: int) -> None:
    """A directory a second time; owners there are what the user namespace maps those on disk to."""
    with failing(f"mapping the owners of {source}"):
        tree = _syscall(_OPEN_TREE, _AT_FDCWD, os.fsencode(source), _OPEN_TREE_CLONE | os.O_CLOEXEC)
        try:
            change = struct.pack("QQQQ", _MOUNT_ATTR_IDMAP, 0, 0, user_namespace)
            _syscall(_MOUNT_SETATTR, tree, b"", _AT_EMPTY_PATH, change, len(change))
            _syscall(_MOVE_MOUNT, tree, b"", _AT_FDCWD, os.fsencode(target), _MOVE_MOUNT_F_EMPTY_PATH)
        finally:
            os.close(tree)


@contextlib.contextmanager
def user_namespace(
    ranges: Sequence[IdRange], groups: Sequence[IdRange] | None = None
) -> Iterator[Callable[[], int]]:
    """A user namespace with these users and groups (the same as the users, if not said), and nobody in it.

    It is made beside whatever the block does first: the function that the block gets waits for it, and gives a
    descriptor, which is closed at the end of the block.
    """
    argv = [str(host.require_tool("unshare")), "--user", "--", "/bin/sh", "-c", _WAIT]
    maps = {"uid_map": ranges, "gid_map": ranges if groups is None else groups}

    def made() -> int:
        with failing("making a user namespace"):
            assert holder.stdout is not None
            if not holder.stdout.readline():
                raise HostFailure(
                    "making a user namespace: unshare refused",
                    hint="see: sysctl user.max_user_namespaces kernel.unprivileged_userns_clone",
                )
            for name, mapped in maps.items():
                lines = "".join(f"{one.inside} {one.outside} {one.count}\n" for one in mapped)
                Path(f"/proc/{holder.pid}/{name}").write_text(lines)
            descriptor = os.open(f"/proc/{holder.pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
            opened.callback(os.close, descriptor)
            return descriptor

    with (
        contextlib.ExitStack() as opened,
        subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder,
    ):
        yield made


def _mount(source: str, target: Path, kind: str, flags: int, options: str | None = None) -> None:
    _call(
        "mount",
        source.encode(),
        os.fsencode(target),
        kind.encode(),
        ctypes.c_ulong(flags),
        None if options is None else options.encode(),
    )


def _syscall(number: int, *args: object) -> int:
    return _call("syscall", ctypes.c_long(number), *args)


def _call(name: str, *args: object) -> int:
    result: int = getattr(_libc, name)(*args)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
