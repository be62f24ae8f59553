"""VMs: what is wanted (VmSpec) and what is (VM). Pure values; the states and what leads where are in lifecycle.py."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct

from atoll.errors import Invalid
from atoll.model.checks import (
    NAME_PATTERN,
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
from atoll.model.hardware import (
    KernelOptions,
    Netboot,
    Watchdog,
    WatchdogAction,
    check_kernel_options,
)
from atoll.model.network import link_local
from atoll.model.publishing import Publication
from atoll.model.share import Mounts, ShareMount, check_mounts
from atoll.model.ssh import SshKeys, check_ssh_keys
from atoll.model.volume import (
    MAX_VOLUME_MIB,
    MAX_VOLUMES,
    MIN_ROOT_MIB,
    ROOT,
    Kept,
    RootMib,
    Volume,
    VolumeSpec,
    VolumeType,
    check_interfaces,
    check_volumes,
)

if TYPE_CHECKING:
    from uuid import UUID

MAX_MEMORY_MIB = 16 << 20
MAX_MILLI_CPUS = 1_024_000
MAX_USER_DATA = 1 << 20
MAX_OWNERS = 64
MAX_ROLE = 48
MAX_EXTRA_SUBNETS = 7

STAGES = ("address", "volume", "started", "dhcp", "metadata")
PORT_PATTERN = r"([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
WAIT_PATTERN = rf"^(started|dhcp|metadata|port:{PORT_PATTERN})$"

MemoryMib = Annotated[int, Meta(ge=16, le=MAX_MEMORY_MIB)]
MilliCpus = Annotated[int, Meta(ge=1, le=MAX_MILLI_CPUS)]
WaitFor = Annotated[str, Meta(pattern=WAIT_PATTERN, max_length=16)]
Owners = Annotated[tuple[Principal, ...], Meta(max_length=MAX_OWNERS)]
BASE64_PATTERN = r"^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
UserData = Annotated[bytes, Meta(max_length=MAX_USER_DATA, extra_json_schema={"pattern": BASE64_PATTERN})]
Volumes = Annotated[tuple[VolumeSpec, ...], Meta(max_length=MAX_VOLUMES)]
ExtraSubnets = Annotated[tuple[Name, ...], Meta(max_length=MAX_EXTRA_SUBNETS)]
Moment = Annotated[datetime, Meta(tz=True)]
Role = Annotated[str, Meta(pattern=NAME_PATTERN, max_length=MAX_ROLE)]


class VmState(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    FAILED_TO_START = "failed-to-start"
    STOPPING = "stopping"
    STOPPED = "stopped"
    CRASHED = "crashed"
    SUSPENDING = "suspending"
    SUSPENDED = "suspended"
    RESUMING = "resuming"
    DESTROYING = "destroying"
    DAMAGED = "damaged"
    """Its record cannot be read. What runs of it runs on; it can be destroyed, and nothing else."""


PAUSED = "paused: "
"""How the reason of a VM begins that runs, but does not get on: there is no room for what its guest writes."""

UNKNOWN_DRIVER = "unknown"
"""That of a damaged VM: any of the node's may run it."""


class MachineType(StrEnum):
    AUTO = "auto"
    Q35 = "q35"
    MICROVM = "microvm"


class ConsoleKind(StrEnum):
    """How a VM can be seen and typed to from outside. Its boot log is kept in any case."""

    NONE = "none"
    SERIAL = "serial"
    VNC = "vnc"
    """A screen, keyboard and pointer, beside the serial line."""


class RestartPolicy(StrEnum):
    """Whether a VM that went down by itself is started again."""

    NEVER = "never"
    ON_CRASH = "on-crash"
    ALWAYS = "always"
    """Also when the guest powered itself off; never when its owner stopped it."""


class StartedBy(StrEnum):
    """How a VM came to run."""

    COLD = "cold"
    """Its guest booted."""
    FORK = "fork"
    """As a copy of a template: a guest that had booted, and waited for its identity."""
    POOL = "pool"
    """As a copy that ran already."""


class SuspendTo(StrEnum):
    """Where the memory of a VM is that is suspended."""

    MEMORY = "memory"
    """Where it was: it goes on at once, and is lost when the host is rebooted."""
    DISK = "disk"
    """In a file in the VM's directory. Its memory and CPUs are free for others, and it survives a reboot."""


class Suspension(Struct, frozen=True):
    """Since when a VM is suspended, and how."""

    to: SuspendTo
    since: datetime
    disk_mib: int = 0
    """The most that its memory takes on disk."""


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
    ssh_keys: SshKeys = ()
    """Public keys that may log in."""
    role: Role | None = None
    """What the guest acts as: its Hypervisor keeps credentials for it fresh on the metadata address."""
    imdsv2_required: bool | None = None
    """Metadata is given for tokens only, which a forged request from outside the guest cannot get. Not said: as its
    image can."""
    restart: RestartPolicy = RestartPolicy.NEVER
    destroy_on_power_down: bool = False
    """A guest that powers itself off is gone for good."""
    protected: bool = False
    """Cannot be destroyed until this is lifted; its expiry does not count either."""
    expires_at: Moment | None = None
    """When it is destroyed by itself."""
    volumes: Volumes = ()
    """Disks beside the root, in the order in which the guest finds them."""
    console: ConsoleKind = ConsoleKind.SERIAL
    extra_subnets: ExtraSubnets = ()
    """Those that it has an interface in beside its first one, in the order in which the guest finds them."""
    kernel_options: KernelOptions = ""
    """Added to the command line of the image's kernel."""
    watchdog: Watchdog = Watchdog.NONE
    watchdog_action: WatchdogAction = WatchdogAction.RESET
    """What comes of a guest that has begun to stir its watchdog and stirs it no more."""
    netboot: Netboot = Netboot.NEVER
    root_mib: RootMib | None = None
    """How much it may change of its image, for kinds that keep that on the node's disk (containers). Left out: what
    the node gives."""
    shares: Mounts = ()
    """Folders of the node that it has, and where."""

    def __post_init__(self) -> None:
        check_name("name", self.name)
        check_image("image", self.image)
        check_name("driver", self.driver)
        check_range("memory_mib", self.memory_mib, 16, MAX_MEMORY_MIB, "MiB")
        check_range("milli_cpus", self.milli_cpus, 1, MAX_MILLI_CPUS, "thousandths of a CPU")
        if self.subnet is not None:
            check_name("subnet", self.subnet)
        check_extra_subnets(self.subnet, self.extra_subnets)
        check_tags("tag", self.tags)
        for owners in (self.owner_users, self.owner_groups):
            if len(owners) > MAX_OWNERS:
                raise Invalid("owner", f"{len(owners)} owners", f"must be at most {MAX_OWNERS}")
            for who in owners:
                check_principal("owner", who)
        check_ssh_keys("ssh_key", self.ssh_keys)
        if self.role is not None:
            check_role(self.role)
        check_volumes(self.volumes)
        check_policies(self.restart, self.destroy_on_power_down)
        check_console(self.console, self.machine_type)
        check_kernel_options(self.kernel_options)
        check_watchdog(self.watchdog, self.machine_type)
        check_interfaces(self.volumes, has_pci=self.machine_type is not MachineType.MICROVM)
        check_netboot(self)
        if self.root_mib is not None:
            check_range("root_mib", self.root_mib, MIN_ROOT_MIB, MAX_VOLUME_MIB, "MiB")
        check_mounts(self.shares)
        check_folders(self.shares, self.machine_type)


class Running(Struct, frozen=True):
    """What the machine that runs now was started with, where its VM has been changed since."""

    memory_mib: int
    vcpus: int
    machine_type: MachineType
    console: ConsoleKind
    volumes: tuple[str, ...]
    """The names of those that the guest has."""
    kernel_options: str = ""
    watchdog: Watchdog = Watchdog.NONE
    watchdog_action: WatchdogAction = WatchdogAction.RESET
    netboot: Netboot = Netboot.NEVER
    shares: tuple[ShareMount, ...] = ()


class VmNic(Struct, frozen=True):
    """One interface of a VM: its address in a subnet."""

    ip: Ip
    mac: Mac
    subnet: str
    ip6: str = ""

    @property
    def marks(self) -> tuple[str, ...]:
        """All that tells on the wires of its subnet that a frame is its own: its MAC and its addresses."""
        return (self.mac, self.ip, self.ip6, link_local(self.mac)) if self.ip6 else (self.mac, self.ip)


def instance_id_of(made: UUID, *, imdsv2_required: bool) -> str:
    """Where metadata needs tokens it begins as those of EC2 do, by which cloud-init knows to ask for one."""
    return f"ec2{str(made)[3:]}" if imdsv2_required else str(made)


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
    """Why it is in this state, where the state alone does not say it. One that runs and is paused for want of room on
    the node's disk says so here; it goes on by itself."""
    ssh_keys: tuple[str, ...] = ()
    role: str | None = None
    imdsv2_required: bool = False
    ip6: str = ""
    """Its IPv6 address, where its subnet has IPv6: it follows from the MAC."""
    restart: RestartPolicy = RestartPolicy.NEVER
    destroy_on_power_down: bool = False
    protected: bool = False
    expires_at: datetime | None = None
    restarts: int = 0
    """How often it was started again by itself."""
    previous_user_data_sha256: str | None = None
    """Empty: there was none. None: it was never changed."""
    pending: tuple[str, ...] = ()
    """What was changed and waits for the next start."""
    running: Running | None = None
    started_by: str = ""
    """How it was started last: one of `StartedBy`; empty when it never was."""
    console: ConsoleKind = ConsoleKind.SERIAL
    nics: tuple[VmNic, ...] = ()
    """Its interfaces beside the first, which has the address that is its key."""
    kernel_options: str = ""
    watchdog: Watchdog = Watchdog.NONE
    watchdog_action: WatchdogAction = WatchdogAction.RESET
    netboot: Netboot = Netboot.NEVER
    """`started_by` tells whether it has booted before."""
    role_credential_expires_at: datetime | None = None
    """When the credential ends that it was created with, and that those of its role are renewed with. None: it has
    none of its own, and its node vouches for it."""
    role_problem: str = ""
    """Why the credentials of its role could not be renewed; empty: they could."""
    role_cloud: str = ""
    """Whether its role has credentials of a public cloud, or why not; empty: nothing was asked for yet."""
    remarks: tuple[str, ...] = ()
    """What is as it was asked for, and may not be what was meant."""
    published: tuple[Publication, ...] = ()
    """Ports of its node that lead to it."""
    kept: tuple[Kept, ...] = ()
    """What becomes of its root and its volumes when it stops: follows from what they are."""
    suspended: Suspension | None = None
    """While it is suspended, or on its way to that or back."""
    shares: tuple[ShareMount, ...] = ()
    """Folders of the node that it has."""

    @property
    def all_nics(self) -> tuple[VmNic, ...]:
        """The first one, and those beside it."""
        return (VmNic(self.ip, self.mac, self.subnet, self.ip6), *self.nics)

    @property
    def extra_subnets(self) -> tuple[str, ...]:
        return tuple(nic.subnet for nic in self.nics)

    @property
    def is_paused(self) -> bool:
        """Whether it runs, and is held up for want of room."""
        return self.state is VmState.RUNNING and self.reason.startswith(PAUSED)

    @property
    def is_on_disk(self) -> bool:
        """Whether it is suspended to disk: nothing of it is in the node's memory."""
        on_disk = self.suspended is not None and self.suspended.to is SuspendTo.DISK
        return on_disk and self.state is VmState.SUSPENDED

    @property
    def root_mib(self) -> int | None:
        """How much it may change of its image; None where its root is in its memory."""
        roots = (volume.size_mib for volume in self.volumes if volume.name == ROOT and not volume.in_memory)
        return next(roots, None)


def check_extra_subnets(first: str | None, others: tuple[str, ...]) -> None:
    if len(others) > MAX_EXTRA_SUBNETS:
        raise Invalid("extra_subnets", f"{len(others)} subnets", f"must be at most {MAX_EXTRA_SUBNETS}")
    for subnet in others:
        check_name("extra_subnets", subnet)
        if subnet == first or others.count(subnet) > 1:
            raise Invalid(
                "extra_subnets",
                subnet,
                "is named twice",
                hint="a VM has one interface in each of its subnets",
            )


def check_policies(restart: RestartPolicy, destroy_on_power_down: bool) -> None:
    if restart is RestartPolicy.ALWAYS and destroy_on_power_down:
        raise Invalid(
            "restart",
            str(restart),
            "makes no sense for a VM that is destroyed when its guest powers off",
            hint=f"choose {RestartPolicy.ON_CRASH}, or do not destroy it on power-down",
        )


def check_console(console: ConsoleKind, machine_type: MachineType) -> None:
    if console is ConsoleKind.VNC and machine_type is MachineType.MICROVM:
        raise Invalid(
            "console", str(console), "machine type microvm has no screen", hint=f"choose {MachineType.Q35}"
        )


def check_folders(shares: tuple[ShareMount, ...], machine_type: MachineType) -> None:
    if shares and machine_type is MachineType.MICROVM:
        raise Invalid(
            "share",
            str(shares[0]),
            "machine type microvm has no shared folders",
            hint=f"choose {MachineType.Q35}",
        )


def check_watchdog(watchdog: Watchdog, machine_type: MachineType) -> None:
    if watchdog is not Watchdog.NONE and machine_type is MachineType.MICROVM:
        raise Invalid(
            "watchdog",
            str(watchdog),
            "machine type microvm has no place for one",
            hint=f"choose {MachineType.Q35}",
        )


def check_netboot(vm: VmSpec | VM) -> None:
    """Refuse what cannot boot from the network, or would have nothing to boot from afterwards."""
    if vm.netboot is Netboot.NEVER:
        return
    if vm.machine_type is MachineType.MICROVM:
        raise Invalid(
            "netboot",
            str(vm.netboot),
            "machine type microvm cannot boot from the network",
            hint=f"choose {MachineType.Q35}",
        )
    if vm.kernel_options:
        raise Invalid(
            "kernel_options",
            vm.kernel_options,
            "are for the image's kernel, which a VM that boots from the network does not start with",
            hint="put them into its boot script",
        )
    if vm.netboot is Netboot.FIRST and all(volume.type is VolumeType.MEMORY for volume in vm.volumes):
        raise Invalid(
            "netboot",
            str(vm.netboot),
            "needs a volume to boot from afterwards",
            hint="for example: --volume size=1GiB",
        )


def check_role(role: str) -> str:
    check_name("role", role)
    if len(role) > MAX_ROLE:
        raise Invalid("role", role, f"is longer than {MAX_ROLE} characters")
    return role


def check_wait_for(field: str, value: str) -> str:
    shape = "started, dhcp, metadata or port:N with N from 1 to 65535"
    return check_pattern(field, value, WAIT_PATTERN, shape, hint="wait for a port such as port:80")


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
