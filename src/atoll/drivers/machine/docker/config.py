"""What a Docker Engine is told of a machine. Pure: names, labels and the body of a create request."""

from __future__ import annotations

import ipaddress
from typing import Any

from atoll.drivers.machine.base import Machine, Nic

API_VERSION = "1.41"
"""The one that this was written for; see parse.choose_version."""

REPOSITORY = "atoll/image"
INIT = "/sbin/init"
METADATA_ROUTE = "169.254.169.254/32"
LABEL = "atoll.cgroup"
"""Its value is the machine's cgroup, which says whose it is: <cloud>/<ip>."""

# Enough to give up rights and to look after its own files and processes; not for network, devices, kernel.
CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "NET_BIND_SERVICE", "SETGID", "SETUID")
MAX_PROCESSES = 1024

# The engine keeps what was written while no agent was there to read it: so much, and no more.
_LOG = {"Type": "json-file", "Config": {"max-size": "1m", "max-file": "2"}}
_TMPFS = "rw,exec,nosuid,nodev,mode={mode},size={size_mib}m"
# As keys: never typed, so that all that is typed reaches the guest.
DETACH_KEYS = ",".join(["ctrl-^", "ctrl-_"] * 4)


def image_reference(digest: str) -> str:
    return f"{REPOSITORY}:{digest}"


def container_name(machine: Machine) -> str:
    """Tells cloud and IP, and is one that an engine takes."""
    return machine.cgroup.strip("/").replace("/", "-")


def labels(machine: Machine) -> dict[str, str]:
    return {LABEL: machine.cgroup, "atoll.ip": machine.ip, "atoll.instance": machine.instance_id}


def is_of(cloud: str, group: str) -> bool:
    """Whether a machine with this cgroup belongs to the cloud with that one."""
    return group.startswith(f"{cloud.rstrip('/')}/")


def container_body(machine: Machine, *, cgroup_driver: str) -> dict[str, Any]:
    """The container: what it runs, what it may do, how much of the host it gets. It has no network yet."""
    return {
        "Image": image_reference(machine.image_digest),
        "Hostname": machine.name,
        "Domainname": machine.nic.domain,
        "Env": ["container=docker"],
        "Labels": labels(machine),
        "Tty": True,
        "OpenStdin": True,
        "StdinOnce": False,
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "HostConfig": {
            "NetworkMode": "none",
            "Dns": list(machine.nic.dns),
            "DnsSearch": [machine.nic.domain] if machine.nic.domain else [],
            "RestartPolicy": {"Name": "no"},
            "LogConfig": _LOG,
            **_rights(machine),
            **_share(machine, cgroup_driver),
        },
    }


def _rights(machine: Machine) -> dict[str, Any]:
    room = max(machine.memory_mib // 4, 16)
    return {
        "CapDrop": ["ALL"],
        "CapAdd": list(CAPABILITIES),
        "SecurityOpt": ["no-new-privileges"],
        "Privileged": False,
        "IpcMode": "private",
        "CgroupnsMode": "private",
        "Ulimits": [{"Name": "core", "Soft": 0, "Hard": 0}],
        "Tmpfs": {
            "/run": _TMPFS.format(mode="0755", size_mib=room),
            "/tmp": _TMPFS.format(mode="1777", size_mib=room),  # noqa: S108 - the container's own
        },
    }


def _share(machine: Machine, cgroup_driver: str) -> dict[str, Any]:
    memory = machine.memory_mib * 1024 * 1024
    limits: dict[str, Any] = {
        "Memory": memory,
        "MemorySwap": memory,
        "PidsLimit": MAX_PROCESSES,
        "CpuShares": max(2, machine.milli_cpus * 1024 // 1000),
    }
    if cgroup_driver == "systemd":
        # systemd takes no groups but its own: the container's limits must do, without a burst at the start.
        return {**limits, "NanoCpus": machine.milli_cpus * 1_000_000}
    # No quota of its own: the machine's group has one, which changes, and a larger one below it is refused.
    return {**limits, "CgroupParent": f"/{machine.cgroup}"}


def link_name(index: int) -> str:
    """What a link is called in the container."""
    return f"eth{index}"


def address_of(machine: Machine) -> str:
    """The address that its first link gets, with the prefix."""
    return machine.nic.address or f"{machine.ip}/32"


def routes(nic: Nic) -> list[tuple[str, str | None]]:
    """Networks, and the gateway to each; None: on the link itself."""
    if not nic.gateway:
        return [(METADATA_ROUTE, None)]
    default: list[tuple[str, str | None]] = [("0.0.0.0/0", nic.gateway)]
    network = ipaddress.ip_interface(nic.address or "0.0.0.0/32").network
    if ipaddress.ip_address(nic.gateway) in network:
        return default
    return [(f"{nic.gateway}/32", None), *default]
