"""What a Docker Engine is told of a machine. Names, labels and bodies of requests. Pure, but for a random name."""

from __future__ import annotations

import hashlib
import ipaddress
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from atoll.drivers.machine.base import Machine, Nic
from atoll.model.command import Command

API_VERSION = "1.41"
"""The one that this was written for; see parse.choose_version."""

EXEC_API_VERSION = "1.42"

IMAGES = "atoll/image"
ROOTS = "atoll/root"
"""Repositories: the images that VMs are made of, of each cloud one; and roots of VMs whose containers had to be made
anew."""
INIT = "/sbin/init"
METADATA_ROUTE = "169.254.169.254/32"
LABEL = "atoll.cgroup"
"""Its value is the machine's cgroup, which says whose it is: <cloud>/<kind>/<ip>."""
IMAGE_LABEL = "atoll.image"
"""Its value is the digest of an image that VMs are made of. Clouds share it: each has a reference of its own to it, and
the engine removes it with the last of them."""
INSTANCE = "atoll.instance"
SETTINGS = "atoll.settings"
"""Its value tells apart containers that an engine would have to make anew: see settings_of."""

# Enough to give up rights and to look after its own files and processes; not for network, devices, kernel.
STAGE = Path("/run/atoll-shares")
"""Ours alone: see folders.py."""

CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "NET_BIND_SERVICE", "SETGID", "SETUID")
MAX_PROCESSES = 1024

# The engine keeps what was written while no agent was there to read it: so much, and no more.
_LOG = {"Type": "json-file", "Config": {"max-size": "1m", "max-file": "2"}}
_TMPFS = "rw,exec,nosuid,nodev,mode={mode},size={size_mib}m"
# As keys: never typed, so that all that is typed reaches the guest.
DETACH_KEYS = ",".join(["ctrl-^", "ctrl-_"] * 4)


def exec_config(command: Command) -> dict[str, Any]:
    """What to run in a container, for the engine's own API."""
    wanted: dict[str, Any] = {
        "AttachStdin": command.input,
        "AttachStdout": True,
        "AttachStderr": True,
        "Tty": command.terminal is not None,
        "Env": [f"{name}={value}" for name, value in command.env.items()],
        "Cmd": list(command.argv),
        "DetachKeys": DETACH_KEYS,
    }
    if command.user:
        wanted["User"] = command.user
    if command.cwd:
        wanted["WorkingDir"] = command.cwd
    return wanted | _console_size(command)


def exec_start(command: Command) -> dict[str, Any]:
    return {"Detach": False, "Tty": command.terminal is not None} | _console_size(command)


def _console_size(command: Command) -> dict[str, Any]:
    size = command.terminal
    return {} if size is None else {"ConsoleSize": [size.rows, size.columns]}


def image_repository(cloud: str) -> str:
    """Where a cloud, which is named by its cgroup, has its references to images."""
    return f"{IMAGES}-{hashlib.sha256(cloud.strip('/').encode()).hexdigest()[:12]}"


def image_reference(machine: Machine) -> str:
    cloud, _kind, _ip = machine.cgroup.strip("/").rsplit("/", 2)
    return f"{image_repository(cloud)}:{machine.image_digest}"


def is_in(repository: str, reference: str) -> bool:
    """Podman says on which host it would look for one that it has already."""
    return reference.removeprefix("localhost/").startswith(f"{repository}:")


def root_reference(container: str) -> str:
    """The image of which this container was made, where that is the root of an earlier one."""
    return f"{ROOTS}:{container}"


def new_container_name(machine: Machine) -> str:
    """Tells cloud and IP, is one that an engine takes, and never comes again: a VM may have had another there."""
    return f"{machine.cgroup.strip('/').replace('/', '-')}-{secrets.token_hex(4)}"


def labels(machine: Machine) -> dict[str, str]:
    return {LABEL: machine.cgroup, "atoll.ip": machine.ip, INSTANCE: machine.instance_id}


def is_of(cloud: str, group: str) -> bool:
    """Whether a machine with this cgroup belongs to the cloud with that one."""
    return group.startswith(f"{cloud.rstrip('/')}/")


def container_body(
    machine: Machine,
    image: str,
    *,
    cgroup_driver: str,
    most: Mapping[str, int],
    storage: Mapping[str, str] | None = None,
    mounts_anew: bool = False,
) -> dict[str, Any]:
    """The container: what it runs, what it may do, how much of the host it gets. It has no network yet.

    `most` of some resources of a process is what the host lets us have: Podman would ask for more, and fail.
    `storage`: what holds its root to its size, where the engine can.
    `mounts_anew`: the engine has to be told that a folder is read-only. Others would undo the rest of its options.
    """
    body = _body(machine, cgroup_driver)
    for mount in body["HostConfig"].get("Mounts", ()):
        mount["ReadOnly"] = mount["ReadOnly"] and mounts_anew
    body["HostConfig"]["Ulimits"] = [
        {"Name": name, "Soft": limit, "Hard": limit} for name, limit in {"core": 0, **most}.items()
    ]
    if storage:
        body["HostConfig"]["StorageOpt"] = dict(storage)
    own = {**labels(machine), SETTINGS: settings_of(machine, cgroup_driver=cgroup_driver)}
    return {**body, "Image": image, "Labels": own}


def settings_of(machine: Machine, *, cgroup_driver: str) -> str:
    """Tells whether a container that is there still suits its machine, after it was given its limits anew.

    The size of what it has in memory (/run, /tmp) stays what it was when it was made.
    """
    body = _body(machine, cgroup_driver)
    changeable = {"Tmpfs", *limits(machine, cgroup_driver)}
    body["HostConfig"] = {key: value for key, value in body["HostConfig"].items() if key not in changeable}
    parts = msgspec.json.encode([body, labels(machine)], order="deterministic")
    return hashlib.sha256(parts).hexdigest()[:16]


def _body(machine: Machine, cgroup_driver: str) -> dict[str, Any]:
    # A group of systemd's own cannot be named: the container's limits must do, without a burst at the start.
    parent = {} if cgroup_driver == "systemd" else {"CgroupParent": f"/{machine.cgroup}"}
    return {
        "Hostname": machine.name,
        "Domainname": machine.nic.domain,
        "Env": ["container=docker"],
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
            **({"Mounts": mounts_of(machine)} if machine.folders else {}),
            **parent,
            **limits(machine, cgroup_driver),
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
        "Tmpfs": {
            "/run": _TMPFS.format(mode="0755", size_mib=room),
            "/tmp": _TMPFS.format(mode="1777", size_mib=room),  # noqa: S108 - the container's own
        },
    }


def mounts_of(machine: Machine) -> list[dict[str, Any]]:
    """Its folders. Engines mount them once more; what comes of it is looked at: see folders.py."""
    place = stage_of(machine.cgroup)
    return [
        {
            "Type": "bind",
            "Source": str(place / folder.name),
            "Target": folder.target,
            "ReadOnly": folder.read_only,
            "BindOptions": {"Propagation": "rprivate"},
        }
        for folder in machine.folders
    ]


def stage_of(cgroup: str) -> Path:
    """Where the folders of a machine are while the engine starts it; of a cloud, how those of its machines begin."""
    return STAGE / cgroup.strip("/").replace("/", "-")


def limits(machine: Machine, cgroup_driver: str) -> dict[str, Any]:
    """Its share of the host, where the group of its VM does not limit it: as a create or update request says it."""
    if cgroup_driver != "systemd":
        return {}
    memory = machine.memory_mib * 1024 * 1024
    return {
        "Memory": memory,
        "MemorySwap": memory,
        "PidsLimit": MAX_PROCESSES,
        "CpuShares": max(2, machine.milli_cpus * 1024 // 1000),
        "NanoCpus": machine.milli_cpus * 1_000_000,
    }


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
