"""Which accelerator guests get on this host, found out by running one. Runs QEMU, reads /dev and /proc.

Why a real kernel: there are hosts where /dev/kvm opens, creates machines and even runs a program in long
mode with paging, and yet no kernel ever reaches user space (nested set-ups that virtualise page tables in
software), or where QEMU aborts on the host's CPU model. So the probe boots a kernel, with the machine and CPU
that guests get, and without any root: the kernel's complaint about that is the last thing it does before it
would start user space. Then it restarts, which ends QEMU. The exit status alone would not do, since a triple
fault restarts as well.
"""

from __future__ import annotations

import re
import stat
from pathlib import Path

import msgspec
from msgspec import Struct

from atoll.drivers.machine.qemu.argv import SANDBOX, Accelerator, board_args
from atoll.errors import AtollError, TimedOut
from atoll.model.vm import MachineType
from atoll.system import clock, files, host, processes

KVM = Path("/dev/kvm")
# An emulated guest needs two seconds for the same on a slow core: an accelerator that needs longer is none.
TIMEOUT_S = 2.0

_END_OF_BOOT = b"Unable to mount root fs"
_CACHE_LIMIT = 4096


class Verdict(Struct, frozen=True):
    """Which accelerator guests get here, and why."""

    accelerator: Accelerator
    reason: str


class _Cached(Struct, frozen=True):
    key: tuple[str, ...]
    verdict: Verdict


async def choose(
    kernel: Path, cache: Path, *, binary: str = "qemu-system-x86_64", timeout_s: float = TIMEOUT_S
) -> Verdict:
    """`kvm` if a guest with this kernel boots under it in time, else `tcg`. Tried once per boot and QEMU."""
    if (obstacle := kvm_obstacle()) is not None:
        return Verdict("tcg", obstacle)
    if (known := cached_verdict(cache, binary=binary)) is not None:
        return known
    verdict = await try_kvm(kernel, binary=binary, timeout_s=timeout_s)
    files.write_durably(cache, msgspec.json.encode(_Cached(_cache_key(binary), verdict)))
    return verdict


def cached_verdict(cache: Path, *, binary: str = "qemu-system-x86_64") -> Verdict | None:
    """What was found earlier in this boot, with this QEMU."""
    try:
        cached = msgspec.json.decode(files.read_limited(cache, _CACHE_LIMIT), type=_Cached)
    except (OSError, AtollError, msgspec.DecodeError):
        return None
    return cached.verdict if cached.key == _cache_key(binary) else None


async def try_kvm(kernel: Path, *, binary: str, timeout_s: float) -> Verdict:
    """Boot a kernel under KVM, and judge."""
    began = clock.monotonic()
    try:
        argv = probe_argv(kernel, "kvm", binary=binary)
        completed = await processes.run(argv, timeout_s=timeout_s, check=False)
    except TimedOut:
        return Verdict("tcg", f"under /dev/kvm a kernel did not boot in {timeout_s:g} s")
    if reached_end_of_boot(completed):
        return Verdict("kvm", f"a kernel booted under it in {clock.monotonic() - began:.2f} s")
    return Verdict("tcg", f"under /dev/kvm a kernel did not boot: {_last_words(completed)}")


def probe_argv(kernel: Path, accelerator: Accelerator, *, binary: str) -> tuple[str, ...]:
    """A guest that boots this kernel as far as it gets without a root, then ends. Pure."""
    return (
        binary,
        "-no-user-config",
        "-nodefaults",
        "-display",
        "none",
        "-no-reboot",
        "-sandbox",
        SANDBOX,
        *board_args(MachineType.Q35),
        "-accel",
        accelerator,
        "-cpu",
        "host" if accelerator == "kvm" else "max",
        "-m",
        "size=128M",
        "-kernel",
        str(kernel),
        "-append",
        "console=ttyS0 quiet panic=-1",
        "-serial",
        "stdio",
    )


def reached_end_of_boot(completed: processes.Completed) -> bool:
    """Whether what a probe left shows a kernel that did all of its work. Pure."""
    return completed.returncode == 0 and _END_OF_BOOT in completed.stdout


def kvm_obstacle() -> str | None:
    """Why /dev/kvm need not be tried. QEMU opens it by name, unprivileged, in the group of the device."""
    try:
        mode = KVM.stat().st_mode
    except OSError as error:
        return f"/dev/kvm: {error.strerror}"
    group = stat.S_IRGRP | stat.S_IWGRP
    others = stat.S_IROTH | stat.S_IWOTH
    if mode & group != group and mode & others != others:
        return f"/dev/kvm: mode {stat.S_IMODE(mode):04o} keeps unprivileged users out"
    return None


def kvm_group() -> tuple[int, ...]:
    """The group that may open /dev/kvm, for those who run under it. Never root's."""
    group = KVM.stat().st_gid
    return (group,) if group != 0 else ()


def host_tsc_khz() -> int | None:
    """The frequency of this host's time stamp counter, where it can be known."""
    # With frequency scaling, cpuinfo shows the momentary frequency of the core instead.
    if Path("/sys/devices/system/cpu/cpu0/cpufreq").exists():
        return None
    return tsc_khz_of(Path("/proc/cpuinfo").read_text())


def tsc_khz_of(cpuinfo: str) -> int | None:
    """The TSC frequency in a /proc/cpuinfo of a host without frequency scaling. Pure."""
    found = re.search(r"^cpu MHz\s*:\s*([0-9]+)\.([0-9]{3})$", cpuinfo, re.MULTILINE)
    if found is None or not re.search(r"^flags\s*:.*\bconstant_tsc\b", cpuinfo, re.MULTILINE):
        return None
    return int(found[1] + found[2]) or None


def _cache_key(binary: str) -> tuple[str, ...]:
    path = host.find_tool(binary)
    changed = str(path.stat().st_mtime_ns) if path is not None else ""
    return (host.boot_id(), str(path), changed)


def _last_words(completed: processes.Completed) -> str:
    said = completed.stderr.decode(errors="replace").strip()
    return said.splitlines()[-1][:200] if said else f"exit status {completed.returncode}"
