"""Named network namespaces, the same ones that `ip netns` shows. Makes, enters and removes them.

One that has no name is given by a process in it (`of_process`), or held by this one (`hold`).

A namespace belongs to a thread, so work inside one is done by a short-lived thread that enters it: the
caller's own thread never moves.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import re
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from atoll.errors import HostFailure, Invalid, NotFound
from atoll.system import own_thread
from atoll.system.directory_lock import mutex
from atoll.system.failures import failing

T = TypeVar("T")

DIRECTORY = Path("/run/netns")
_LOCK = Path("/run/atoll-netns.lock")
_IP_PATIENCE_S = 0.5

_CLONE_NEWNET = 0x40000000
_MS_BIND = 0x1000
_MS_REC = 0x4000
_MS_SHARED = 0x100000
_MNT_DETACH = 2
_SIOCGIFFLAGS = 0x8913
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 1

_libc = ctypes.CDLL(None, use_errno=True)


def ensure(name: str) -> None:
    """Make the namespace, with its loopback up. One that was left half made is completed."""
    path = _path(name)
    with failing(f"making network namespace {name}"), _locked_directory():
        if _is_namespace(path):
            return
        path.touch(mode=0o444)
        try:
            own_thread.run(lambda: _make_here(path))
        except BaseException:
            path.unlink(missing_ok=True)
            raise


def delete(name: str) -> None:
    """Remove the name; the namespace ends with its last process and socket. Gone is fine."""
    path = _path(name)
    with failing(f"removing network namespace {name}"):
        while _is_namespace(path):
            _call("umount2", os.fsencode(path), _MNT_DETACH)
        path.unlink(missing_ok=True)


def exists(name: str) -> bool:
    """Whether it can be entered. One that is half made cannot."""
    return _is_namespace(_path(name))


def names() -> set[str]:
    """All names, also of those that are half made."""
    try:
        return {entry.name for entry in DIRECTORY.iterdir()}
    except FileNotFoundError:
        return set()


def inside(name: str, function: Callable[[], T]) -> T:
    """Run a function in a thread that has entered the namespace and ends with it. Errors come through."""

    def there() -> T:
        _enter(name)
        return function()

    return own_thread.run(there)


def enter(name: str) -> None:
    """Move this whole process into the namespace. Only while it has a single thread, at its start."""
    if len(list(Path("/proc/self/task").iterdir())) > 1:
        raise HostFailure(
            f"entering network namespace {name}: this process has several threads already",
            hint="enter it before anything starts a thread",
        )
    _enter(name)


def of_process(pid: int) -> str:
    """The namespace of a process, for use where a name is asked for. It cannot be made or deleted."""
    return f"/proc/{pid}/ns/net"


def hold() -> str:
    """The namespace that this thread is in now, for use where a name is asked for, wherever it goes afterwards.

    Held as long as this process lives; no other one can use it."""
    with failing("holding on to this network namespace"):
        return f"/proc/self/fd/{os.open('/proc/thread-self/ns/net', os.O_RDONLY | os.O_CLOEXEC)}"


def socket_in(namespace: str, family: int, kind: int, proto: int = 0) -> socket.socket:
    """A socket that lives in the namespace, for use from anywhere."""
    return inside(namespace, lambda: socket.socket(family, kind, proto))


@contextlib.contextmanager
def opened(name: str) -> Iterator[int]:
    """A descriptor of the namespace, for handing it to the kernel."""
    path = _path(name)
    if not _is_namespace(path):
        raise NotFound(f"opening network namespace {name}: there is none", hint="see: ip netns list")
    with failing(f"opening network namespace {name}"):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _path(name: str) -> Path:
    if re.fullmatch(r"/proc/([0-9]+/ns/net|self/fd/[0-9]+)", name):
        return Path(name)
    if not name or name in (".", "..") or "/" in name or "\0" in name or len(os.fsencode(name)) > 255:
        raise Invalid("network namespace", name, "must be a file name")
    return DIRECTORY / name


def _is_namespace(path: Path) -> bool:
    # All namespaces are files of one kernel file system; a mere mount point is not.
    try:
        return path.stat().st_dev == Path("/proc/self/ns/net").stat().st_dev
    except FileNotFoundError:
        return False


def _enter(name: str) -> None:
    with opened(name) as descriptor, failing(f"entering network namespace {name}"):
        _call("setns", descriptor, _CLONE_NEWNET)


def _make_here(path: Path) -> None:
    """Give the calling thread a namespace of its own, and pin it to the path."""
    _call("unshare", _CLONE_NEWNET)
    _raise_loopback()
    _mount(b"/proc/thread-self/ns/net", path, _MS_BIND)


def _raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sH22x", b"lo", 0)
        (flags,) = struct.unpack_from("H", fcntl.ioctl(any_socket, _SIOCGIFFLAGS, request), 16)
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH22x", b"lo", flags | _IFF_UP))


@contextlib.contextmanager
def _locked_directory() -> Iterator[None]:
    """The directory as `ip netns add` wants it: a shared mount, so that removals reach everybody."""
    # Without a lock two of us could mount the directory onto itself twice.
    with mutex(_LOCK):
        DIRECTORY.mkdir(mode=0o755, parents=True, exist_ok=True)
        descriptor = os.open(DIRECTORY, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _wait_for_ip(descriptor)
            _share()
            yield
        finally:
            os.close(descriptor)


def _share() -> None:
    try:
        _mount(b"", DIRECTORY, _MS_SHARED | _MS_REC)
    except OSError as error:
        if error.errno != errno.EINVAL:  # EINVAL: not a mount point yet
            raise
        _mount(os.fsencode(DIRECTORY), DIRECTORY, _MS_BIND | _MS_REC)
        _mount(b"", DIRECTORY, _MS_SHARED | _MS_REC)


def _wait_for_ip(descriptor: int) -> None:
    """ip takes a lock that any user can take, and keep: what it is good for is not worth more than a moment."""
    until = time.monotonic() + _IP_PATIENCE_S
    while time.monotonic() < until:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            time.sleep(0.01)


def _mount(source: bytes, target: Path, flags: int) -> None:
    _call("mount", source, os.fsencode(target), b"none", ctypes.c_ulong(flags), None)


def _call(name: str, *args: object) -> None:
    if getattr(_libc, name)(*args) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
