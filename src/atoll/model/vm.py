"""VMs: what is wanted (VmSpec) and what is (VM). Pure values.

    create ──► starting ───────► running ─── stop ───► stopping ──► stopped
                 ▲  │              │ └── guest powers off ────────────▲
                 │  │              └── guest or machine dies ──► crashed
                 │  └── it fails ──► failed-to-start
                 └── start ◄── stopped, crashed, failed-to-start

    any state ── destroy ──► destroying ──► gone

A create that fails leaves nothing; a reboot is a stop and a start. One thing at a time is done to a VM: one
that is found starting, stopping or destroying while nothing is being done to it is one whose last action
failed half-way. A stop finishes a stop, a destroy finishes everything.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from atoll.errors import Conflict, Invalid
from atoll.model.checks import (
    ImageName,
    Ip,
    Mac,
    Name,
    Principal,
    Tags,
    check_image,
    check_name,
    check_pattern,
    check_principal,
    check_range,
    check_tags,
)
from atoll.model.volume import Volume

MAX_MEMORY_MIB = 16 << 20
MAX_MILLI_CPUS = 1_024_000
MAX_USER_DATA = 1 << 20
MAX_OWNERS = 64

STAGES = ("address", "volume", "started", "dhcp", "metadata")
PORT_PATTERN = r"([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
WAIT_PATTERN = rf"^(started|dhcp|metadata|port:{PORT_PATTERN})$"

MemoryMib = Annotated[int, Meta(ge=16, le=MAX_MEMORY_MIB)]
MilliCpus = Annotated[int, Meta(ge=1, le=MAX_MILLI_CPUS)]
WaitFor = Annotated[str, Meta(pattern=WAIT_PATTERN, max_length=16)]
Owners = Annotated[tuple[Principal, ...], Meta(max_length=MAX_OWNERS)]


class VmState(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    FAILED_TO_START = "failed-to-start"
    STOPPING = "stopping"
    STOPPED = "stopped"
    CRASHED = "crashed"
    DESTROYING = "destroying"


class MachineType(StrEnum):
    AUTO = "auto"
    Q35 = "q35"
    MICROVM = "microvm"


_ALLOWED: dict[str, frozenset[VmState]] = {
    "start": frozenset({VmState.STOPPED, VmState.FAILED_TO_START, VmState.CRASHED}),
    "stop": frozenset({VmState.RUNNING, VmState.STOPPING}),
    "reboot": frozenset({VmState.RUNNING}),
    "destroy": frozenset(VmState),
}


def check_transition(action: str, name: str, state: VmState) -> None:
    """Refuse an action that this state forbids, and say which states allow it."""
    if state not in _ALLOWED[action]:
        states = ", ".join(sorted(_ALLOWED[action]))
        raise Conflict(
            f"cannot {action} VM {name}: it is {state}",
            hint=f"a VM can be asked to {action} when it is {states}",
            details={"state": str(state), "action": action},
        )


class VmSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """What a user asks for. Every field can be read back from the VM that came of it."""

    name: Name
    image: ImageName
    driver: Name = "qemu"
    memory_mib: MemoryMib = 128
    milli_cpus: MilliCpus = 250
    machine_type: MachineType = MachineType.AUTO
    subnet: Name | None = None
    tags: Tags = {}
    owner_users: Owners = ()
    owner_groups: Owners = ()

    def __post_init__(self) -> None:
        check_name("name", self.name)
        check_image("image", self.image)
        check_name("driver", self.driver)
        check_range("memory_mib", self.memory_mib, 16, MAX_MEMORY_MIB, "MiB")
        check_range("milli_cpus", self.milli_cpus, 1, MAX_MILLI_CPUS, "thousandths of a CPU")
        if self.subnet is not None:
            check_name("subnet", self.subnet)
        check_tags("tag", self.tags)
        for owners in (self.owner_users, self.owner_groups):
            if len(owners) > MAX_OWNERS:
                raise Invalid("owner", f"{len(owners)} owners", f"must be at most {MAX_OWNERS}")
            for who in owners:
                check_principal("owner", who)


class VM(Struct, frozen=True):
    """A VM as its Hypervisor knows it. The IP is its key."""

    ip: Ip
    mac: Mac
    name: Name
    state: VmState
    driver: str
    image: str
    image_digest: str
    memory_mib: int
    milli_cpus: int
    vcpus: int
    machine_type: MachineType
    subnet: str
    owner_users: tuple[str, ...]
    owner_groups: tuple[str, ...]
    tags: dict[str, str]
    created_at: datetime
    instance_id: str
    ready: dict[str, float]
    """Seconds from the request that started it, this time, to each stage reached."""
    volumes: tuple[Volume, ...] = ()
    user_data_sha256: str = ""
    request_id: str = ""
    reason: str = ""
    """Why it is in this state, where the state alone does not say it."""


def check_wait_for(field: str, value: str) -> str:
    return check_pattern(
        field, value, WAIT_PATTERN, "started, dhcp, metadata or port:N with N from 1 to 65535"
    )


def vcpus_for(milli_cpus: int, cores: int) -> int:
    """Virtual CPUs of a share: rounded up, and never more than the host has."""
    return max(1, min(-(-milli_cpus // 1000), cores))


def check_user_data(size: int) -> int:
    if size > MAX_USER_DATA:
        raise Invalid(
            "user_data",
            f"{size} bytes",
            f"must be at most {MAX_USER_DATA} bytes",
            hint="keep large content in an object store or an image and fetch it from the script",
        )
    return size
