"""What LXC is told of a machine. Pure: turns a machine into its configuration and seccomp profile.

Users and groups. Each container has a range of 65,536 ids of its own: inside it is 0 to 65,535, outside what its
machine was given. On disk the ids are those that the container sees (see roots.py), so a VM may move to another
node, where it is given other ids, without a change of its files.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from atoll.drivers.machine.base import Machine, Nic
from atoll.system.mounts import IdRange

IDS = 65_536

# Where its root is mounted, in the mount namespace of its monitor, which nobody else sees.
STAGE = Path("/mnt")
ROOT = STAGE / "root"
FURNISHED = STAGE / "furnished"
"""There when all is mounted."""

DROPPED_CAPABILITIES = (
    "audit_control", "audit_read", "block_suspend", "mac_admin", "mac_override", "sys_module", "sys_rawio",
    "sys_time", "syslog", "wake_alarm",
)  # fmt: skip

_CAPABILITY_NUMBERS = {
    "audit_control": 30, "audit_read": 37, "block_suspend": 36, "mac_admin": 33, "mac_override": 32,
    "sys_module": 16, "sys_rawio": 17, "sys_time": 25, "syslog": 34, "wake_alarm": 35,
}  # fmt: skip

# Of no use in a container, and each a way into the kernel that had holes before.
DENIED_CALLS = (
    "acct", "add_key", "bpf", "clock_adjtime", "clock_settime", "delete_module", "finit_module",
    "init_module", "io_uring_enter", "io_uring_register", "io_uring_setup", "ioperm", "iopl",
    "kexec_file_load", "kexec_load", "keyctl", "lookup_dcookie", "mbind", "migrate_pages", "move_pages",
    "nfsservctl", "open_by_handle_at", "perf_event_open", "quotactl", "request_key", "set_mempolicy",
    "settimeofday", "swapoff", "swapon", "userfaultfd", "vm86", "vm86old",
)  # fmt: skip
_ENOSYS = 38


class Init(Struct, frozen=True):
    """The first program of a container. systemd keeps what it starts in cgroups, and needs to see its own."""

    path: str
    systemd: bool = False


class Tools(Struct, frozen=True):
    """Where programs are: LXC's hooks run without a search path."""

    ip: Path
    printf: Path


def id_range(machine: Machine) -> IdRange:
    """The users and groups of a container."""
    return IdRange(inside=0, outside=machine.uid, count=machine.ids)


def disk_ranges(machine: Machine) -> tuple[IdRange, ...]:
    """How ids on disk become those of the container.

    Beside its own there is one for the host's root, as whom the kernel works behind the scenes of an overlay.
    """
    own = id_range(machine)
    return (own, IdRange(inside=own.count, outside=0, count=1))


def container_config(
    machine: Machine, *, console_log: Path, seccomp: Path, init: Init, apparmor: str, tools: Tools
) -> str:
    """The configuration file, for `lxc-start -f`."""
    ids = id_range(machine)
    settings = [
        ("lxc.uts.name", machine.name),
        ("lxc.rootfs.path", f"dir:{ROOT}"),
        ("lxc.init.cmd", init.path),
        ("lxc.idmap", f"u {ids.inside} {ids.outside} {ids.count}"),
        ("lxc.idmap", f"g {ids.inside} {ids.outside} {ids.count}"),
        ("lxc.mount.auto", "proc:mixed sys:ro" + (" cgroup:mixed:force" if init.systemd else "")),
        # The limit of files is for the monitor alone, which writes the console's log.
        ("lxc.prlimit.fsize", "unlimited"),
        ("lxc.tty.max", "0"),
        ("lxc.pty.max", "1024"),
        ("lxc.console.logfile", str(console_log)),
        ("lxc.apparmor.profile", apparmor),
        ("lxc.seccomp.profile", str(seccomp)),
        ("lxc.cap.drop", " ".join(DROPPED_CAPABILITIES)),
        *(_groups(machine) if init.systemd else ()),
        ("lxc.net.0.type", "empty"),
        ("lxc.hook.version", "1"),
        # Its monitor is started while its root is still being mounted, and told when that is done; or not at all, when
        # who mounts it has gone.
        ("lxc.hook.pre-start", f"/bin/sh -c '[ -e {FURNISHED} ] || read -r _'"),
        *link_hooks(machine.nics, tools),
    ]
    return "".join(f"{key} = {value}\n" for key, value in settings)


def _groups(machine: Machine) -> tuple[tuple[str, str], ...]:
    """For an init that keeps what it starts in groups. Others stay in that of their keeper, which is much quicker."""
    return (
        ("lxc.cgroup.dir.monitor", monitor_group(machine)),
        ("lxc.cgroup.dir.monitor.pivot", keeper_group(machine)),
        ("lxc.cgroup.dir.container", container_group(machine)),
    )


def link_hooks(nics: Sequence[Nic], tools: Tools) -> list[tuple[str, str]]:
    """What makes the links of the container, eth0, eth1, … in it, before its init starts; and removes them at its end.

    Not LXC itself: it makes links here and moves them, which takes the kernel much longer, and it looks for
    bridges in /sys, which shows those of the host's own namespace. Not the agent: a guest may reboot while there
    is none. All by one program: a start waits for each.
    """
    # Not the shell's own printf, which it does not find: LXC has it execute what comes first.
    words = [word for index, nic in enumerate(nics) for word in _link_commands(nic, f"eth{index}")]
    return [
        ("lxc.hook.start-host", f"{tools.printf} '%s\\n' {' '.join(words)} | {tools.ip} -batch -"),
        # The kernel may have been first; a hook that fails would turn a reboot into an end.
        *(
            (
                "lxc.hook.post-stop",
                f"/bin/sh -c {shlex.quote(f'{tools.ip} link delete {shlex.quote(nic.link)} || :')}",
            )
            for nic in nics
        ),
    ]


def _link_commands(nic: Nic, name: str) -> tuple[str, str]:
    """Two commands of `ip`, each a word of the shell."""
    # Made by the end in the container, so that this is up before its init starts: a bridge loses what comes while a
    # port is new. The other end is in the monitor's namespace.
    inner = f"address {nic.mac} mtu {nic.mtu} up type veth peer name {nic.link} mtu {nic.mtu}"
    # Without an IPv6 address of the host's own, which nobody asked for.
    outer = f"link set {nic.link} master {nic.bridge} addrgenmode none up"
    return f"'link add {name} netns '$LXC_PID{shlex.quote(f' {inner}')}", shlex.quote(outer)


def seccomp_profile() -> str:
    """What no process in a container may call: it is told that there is no such call."""
    calls = "".join(f"{name} errno {_ENOSYS}\n" for name in DENIED_CALLS)
    return f"2\ndenylist\n[all]\n{calls}"


def dropped_numbers() -> tuple[int, ...]:
    """The rights that no process of a container has, by their numbers in the kernel."""
    return tuple(_CAPABILITY_NUMBERS[name] for name in DROPPED_CAPABILITIES)


def container_name(machine: Machine) -> str:
    """LXC's sockets are named after it, so it differs from all others on the host."""
    return machine.cgroup.strip("/").replace("/", "-")


def keeper_group(machine: Machine) -> str:
    """The cgroup of the process that looks after the monitor; and of both, and the container, where LXC sees none."""
    return f"{machine.cgroup}/keeper"


def monitor_group(machine: Machine) -> str:
    return f"{machine.cgroup}/monitor"


def container_group(machine: Machine) -> str:
    return f"{machine.cgroup}/container"
