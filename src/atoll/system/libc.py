"""Calls of the kernel that Python has no function for. Each has the effect that its name says."""

from __future__ import annotations

import ctypes
import os

CLONE_FS = 0x00000200
CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
MNT_DETACH = 2

_PIVOT_ROOT = 155

_libc = ctypes.CDLL(None, use_errno=True)


def unshare(flags: int) -> None:
    """Give the calling thread namespaces of its own; its children get a new pid namespace, not the thread."""
    _checked(_libc.unshare(flags))


def setns(descriptor: int, flags: int) -> None:
    """Move the calling thread into namespaces of this file, or of the process of this pidfd."""
    _checked(_libc.setns(descriptor, flags))


def mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    words = (word if word is None else word.encode() for word in (source, target, kind))
    _checked(_libc.mount(*words, ctypes.c_ulong(flags), None if options is None else options.encode()))


def unmount(target: str) -> None:
    """Take it, and what is mounted below it, out of this mount namespace. What is open stays open."""
    _checked(_libc.umount2(target.encode(), MNT_DETACH))


def pivot_root(new: str) -> None:
    """Make a mount the root of this mount namespace, with nothing of the old one left in it."""
    os.chdir(new)
    # The old root comes to lie on top of the new one, and is taken off again.
    syscall(_PIVOT_ROOT, b".", b".")
    unmount(".")
    os.chdir("/")


def sethostname(name: str) -> None:
    _checked(_libc.sethostname(name.encode(), len(name.encode())))


def syncfs(descriptor: int) -> None:
    """Put all that was written to the file system of this file on disk."""
    _checked(_libc.syncfs(descriptor))


def syscall(number: int, *args: object) -> int:
    """A call by its number, as it is on x86-64. What comes back; OSError where it fails."""
    return _checked(_libc.syscall(ctypes.c_long(number), *args))


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
