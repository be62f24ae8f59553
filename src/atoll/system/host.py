"""What this machine is and has. Reads /proc and PATH; changes nothing."""

from __future__ import annotations

import os
import resource
import shutil
from pathlib import Path

from atoll.errors import HostFailure

_PACKAGES = {
    "cpio": "cpio",
    "dpkg-deb": "dpkg",
    "e2fsck": "e2fsprogs",
    "ip": "iproute2",
    "mke2fs": "e2fsprogs",
    "modprobe": "kmod",
    "nft": "nftables",
    "qemu-img": "qemu-utils",
    "qemu-system-x86_64": "qemu-system-x86",
    "resize2fs": "e2fsprogs",
    "setpriv": "util-linux",
    "tc": "iproute2",
}
_ADMIN_DIRECTORIES = ("/usr/local/sbin", "/usr/sbin", "/sbin")


def boot_id() -> str:
    """Differs after every boot, so what was cached about the host can be tied to it."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def process_limits() -> dict[str, int]:
    """The most open files and processes that a process of this user may have, by the names that engines use."""
    # There are never more processes than that, so engines cut their own limit down to it.
    pid_max = int(Path("/proc/sys/kernel/pid_max").read_text())
    processes = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    limited = processes != resource.RLIM_INFINITY
    return {
        "nofile": resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        "nproc": min(processes, pid_max) if limited else pid_max,
    }


def descriptors() -> int:
    """The most that this process may have open."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def cores() -> int:
    """Processors that this process may run on."""
    return len(os.sched_getaffinity(0))


def memory_mib() -> tuple[int, int]:
    """Total memory, and how much of it programs could still get without swapping."""
    kib = _meminfo(Path("/proc/meminfo").read_text())
    return kib["MemTotal"] // 1024, kib["MemAvailable"] // 1024


def kernel() -> str:
    """The release of the running kernel."""
    return os.uname().release


def find_tool(name: str) -> Path | None:
    """The program of that name. Looks where administrators' tools live even if PATH leaves them out."""
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), *_ADMIN_DIRECTORIES))
    found = shutil.which(name, path=path)
    return Path(found) if found else None


def require_tool(name: str) -> Path:
    """The program of that name, or HostFailure with a hint how to get it."""
    found = find_tool(name)
    if found is None:
        package = _PACKAGES.get(name)
        hint = f"install it: apt-get install {package}" if package else "install it, or add it to PATH"
        raise HostFailure(f"starting {name}: no such program", hint=hint)
    return found


def _meminfo(text: str) -> dict[str, int]:
    pairs = (line.split(":", 1) for line in text.splitlines())
    return {name: int(rest.split()[0]) for name, rest in pairs}
