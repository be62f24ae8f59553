"""The contract of machine drivers. Small; extras are capability protocols that callers ask for.

A driver keeps nothing in memory that it cannot find again on the host: the agent may be killed at any
moment, and the next one calls `inspect`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Protocol, runtime_checkable

from msgspec import Struct

from atoll.errors import HostFailure
from atoll.model.command import Command, Size
from atoll.model.hardware import BootFrom, Watchdog, WatchdogAction
from atoll.model.node import DriverInfo
from atoll.model.vm import MachineType
from atoll.model.volume import DiskInterface

ROOT_FILE = "root.ext4"
"""What a kind that keeps a root as a file calls it in its directory, so that its space is counted."""


class Nic(Struct, frozen=True):
    """A network interface of a machine: a link that the driver makes and plugs into a bridge."""

    link: str
    bridge: str
    mac: str
    mtu: int
    address: str = ""
    """The machine's own with its prefix, as 10.1.0.5/24: for kinds that are given it from outside."""
    gateway: str = ""
    """Empty for those beside the first: a machine has one way out."""
    dns: tuple[str, ...] = ()
    domain: str = ""


class Disk(Struct, frozen=True):
    """A disk of a machine, known to the guest by its name: a file, or, without a path, one made in memory."""

    name: str
    size_mib: int
    format: str = "raw"
    path: Path | None = None
    ext4: bool = False
    """Made in memory: with an empty file system."""
    interface: DiskInterface = DiskInterface.VIRTIO

    @property
    def most_bytes(self) -> int:
        """The most that its file can become. A qcow2 file is a little larger than the disk in it."""
        size = self.size_mib << 20
        return size if self.format == "raw" else size + (size >> 6) + (64 << 20)


class SharedFolder(Struct, frozen=True):
    """A folder of the host that a machine has at a place in its guest."""

    name: str
    source: Path
    target: str
    read_only: bool
    uid: int
    gid: int
    """Who the guest's root is there, and its group."""
    node: tuple[int, int]
    """What the folder is, by device and inode: what is at `source` when it is used must be the same."""


class Machine(Struct, frozen=True):
    """All that a driver needs to run one VM. `directory` is the VM's own, `cgroup` exists already.

    `console.log` is in the VM's directory itself, whatever kind writes it. All else that a driver keeps is in a
    directory there that has the driver's name, and the cgroup is one of that kind: no kind trips over another's.
    """

    ip: str
    name: str
    instance_id: str
    machine_type: MachineType
    memory_mib: int
    vcpus: int
    kernel: Path
    initrd: Path
    cmdline: str
    nic: Nic
    directory: Path
    cgroup: str
    uid: int
    """The user and group that it runs as, which no other machine of the host does; the first of several."""
    rootfs: Path | None = None
    """The image's root file system as a tar archive, for kinds that share the host's kernel."""
    image_digest: str = ""
    milli_cpus: int = 1000
    serial: str = ""
    """The serial number that the firmware shows; left empty, the instance id."""
    disks: tuple[Disk, ...] = ()
    screen: bool = False
    """With a screen, keyboard and pointer: only for kinds that have a display."""
    watchdog: Watchdog = Watchdog.NONE
    watchdog_action: WatchdogAction = WatchdogAction.RESET
    boot_from: BootFrom = BootFrom.IMAGE
    """Kernel and initrd count for an image only."""
    extra_nics: tuple[Nic, ...] = ()
    """Those beside the first, in the order in which the guest finds them."""

    ids: int = 1
    """How many users and groups are its own, from `uid` on: more than one for kinds that map users."""

    root_mib: int = 0
    """How much it may change of its image, for kinds that keep that on disk."""

    folders: tuple[SharedFolder, ...] = ()
    """Only what is to be started has them."""

    @property
    def nics(self) -> tuple[Nic, ...]:
        return (self.nic, *self.extra_nics)


class Exit(StrEnum):
    """Why a machine is not running any more."""

    POWERED_OFF = "powered-off"
    """The guest shut itself down, or did so when asked."""
    CRASHED = "crashed"
    """Anything else: the process died, the guest panicked."""
    OVERFULL = "overfull"
    """It changed more of its image than its root is large, and was ended for that."""


class Seen(Struct, frozen=True):
    """A machine as found on this host. `exit` is None while it runs."""

    ip: str
    pid: int
    exit: Exit | None = None
    lost: tuple[str, ...] = ()
    """Links of it that somebody removed while it runs: it has none in their place."""
    lost_folders: tuple[str, ...] = ()
    """Folders that it was started with, and has no longer."""
    stalled: bool = False
    """It is paused, since there is no room for what its guest writes."""
    frozen: bool = False
    """It is held still, and goes on when it is told to."""


OnExit = Callable[[str, Exit], None]
"""Called in the event loop, once, with the IP of a machine that stopped running."""


OnStall = Callable[[str, bool], None]
"""Called in the event loop with the IP of a machine that was paused since there is no room for what its guest
writes (True), or that goes on (False)."""


OnLost = Callable[[str], None]
"""Called in the event loop with the IP of a machine that may have lost a folder: `inspect` says it."""


class Console(Protocol):
    """A byte stream to the serial line of a machine."""

    async def read(self) -> bytes:
        """What the guest wrote since the last read; empty at the end of the stream."""
        ...

    async def write(self, data: bytes) -> None: ...

    async def close(self) -> None: ...


class MachineDriver(Protocol):
    """A way of running machines. Every method may be called again with the same arguments."""

    @property
    def name(self) -> str: ...

    async def describe(self) -> DriverInfo:
        """Capabilities, accelerator and confinement, for `atoll node show`."""
        ...

    async def start(self, machine: Machine) -> None:
        """Run it, detached. Running already is success. A failure leaves nothing of it behind."""
        ...

    async def power_down(self, machine: Machine) -> None:
        """Ask the guest to shut down. Returns at once; the exit is reported when it happens."""
        ...

    async def kill(self, machine: Machine) -> None:
        """End it now. Returns when it is gone; already gone is success. Reports no exit."""
        ...

    async def reset(self, machine: Machine) -> None:
        """Restart the guest as its reset button would."""
        ...

    async def inspect(self, machines: Sequence[Machine]) -> Mapping[str, Seen]:
        """The truth on this host by IP, also after a restart of the agent; what runs is watched from then."""
        ...

    async def close(self) -> None:
        """Let go of connections; machines run on."""
        ...


@runtime_checkable
class HasConsole(Protocol):
    """The kind has a serial line. Its output is also kept in `console.log` of the VM's directory."""

    async def console(self, machine: Machine) -> Console: ...


class Output(Struct, frozen=True):
    """Something that a command wrote."""

    stream: int
    """1: standard output, or its terminal; 2: standard error."""
    data: bytes


class Process(Protocol):
    """A command that runs in a guest."""

    async def read(self) -> Output | int:
        """What it wrote next, as it comes; at the end its exit status, 128 and its number for a signal.

        Nothing more is taken from the guest than is read here. Conflict when the machine has stopped.
        """
        ...

    async def write(self, data: bytes) -> None:
        """To its standard input; returns when the guest has taken it. One that reads no more is fine."""
        ...

    async def end_input(self) -> None:
        """It reads the end of its standard input. On a terminal, what Ctrl-D means there."""
        ...

    async def resize(self, size: Size) -> None: ...

    async def send_signal(self, number: int) -> None:
        """To it and to what is in its process group, where the kind can. Gone is fine."""
        ...

    async def close(self) -> None:
        """Let go of it. One that still runs is sent SIGHUP, and SIGKILL when that does not end it soon."""
        ...


HANG_UP_S = 2.0
"""How long a command that is let go of has between SIGHUP and SIGKILL."""


@runtime_checkable
class CanExec(Protocol):
    """Commands can be run in guests, whether these have a network or not."""

    @property
    def needs_agent(self) -> bool:
        """Only in guests of images that have our agent in them."""
        ...

    async def exec(self, machine: Machine, command: Command) -> Process:
        """Run a command in a machine. Conflict when that cannot be: it does not run, or its guest has no agent.

        A program that is not there ends with 127, one that cannot be run with 126; then it says why on stream 2.
        An agent that ends takes its commands with it, where the kind can see to that.
        """
        ...


@runtime_checkable
class LimitsLog(Protocol):
    """The kernel holds `console.log` to a size, whether an agent runs or not."""

    def let_log_grow(self, machine: Machine) -> None:
        """Its front was given back: so much may be written again. From any thread. Not running is fine."""
        ...


@runtime_checkable
class HasDisplay(Protocol):
    """The kind can have a screen."""

    async def display(self, machine: Machine) -> Console:
        """A new connection to the screen of a machine, which speaks RFB (VNC). Many can be open at a time."""
        ...


@runtime_checkable
class HasHardware(Protocol):
    """The kind has a kernel and devices of its own: machines can have kernel options and a watchdog,
    and boot from the network or a disk."""

    def watchdogs(self, machine_type: MachineType) -> tuple[Watchdog, ...]:
        """Those that a machine of this type can have."""
        ...


@runtime_checkable
class CanHotplug(Protocol):
    """The kind takes disks: those of the machine when it starts, and others while it runs."""

    async def can_attach(self, machine: Machine, disk: Disk) -> bool:
        """Whether this machine, as it runs now, can get this disk as well."""
        ...

    async def can_detach(self, machine: Machine, name: str) -> bool:
        """Whether this machine, as it runs now, can be rid of this disk."""
        ...

    async def attach(self, machine: Machine, disk: Disk) -> None:
        """Give a running machine a disk. Has it already is success. A failure leaves it without."""
        ...

    async def detach(self, machine: Machine, name: str) -> None:
        """Take a disk from a running machine; returns when the guest has let go of it. Gone is success.

        Conflict when the guest keeps it.
        """
        ...


@runtime_checkable
class CanGrowDisks(Protocol):
    """Disks of machines that run can become larger."""

    def grows_while_used(self, disk: Disk) -> bool:
        """Whether a guest that has this disk can learn that it has grown."""
        ...

    async def grow_disk(self, machine: Machine, disk: Disk) -> None:
        """Make a disk that a running machine has as large as it says, and its guest know it. So large already is
        success."""
        ...


@runtime_checkable
class GivesAddress(Protocol):
    """The kind gives machines their address from outside: one that has started has it, and asks nobody."""

    def given_address(self, machine: Machine) -> str: ...


@runtime_checkable
class MapsUsers(Protocol):
    """The kind runs machines in user namespaces: their users are users of the host, a range for each machine."""

    @property
    def ids_per_machine(self) -> int: ...


@runtime_checkable
class CanStall(Protocol):
    """A machine that finds no room for what its guest writes is paused, and loses nothing of it."""

    async def resume(self, machine: Machine) -> None:
        """Let a machine that is paused go on; if there is still no room, it is paused again. Not paused is success."""
        ...


@runtime_checkable
class CanFreeze(Protocol):
    """Machines can be held still: they keep their memory, their links and their places, and use no CPU."""

    async def freeze(self, machine: Machine) -> None:
        """Hold a running machine still. Held already is success. Conflict when it does not run."""
        ...

    async def thaw(self, machine: Machine) -> None:
        """Let it go on. Not held is success. Conflict when it does not run."""
        ...


@runtime_checkable
class CanSave(CanFreeze, Protocol):
    """The memory of a machine can be kept in its VM's directory, and a machine go on from it later."""

    def check_savable(self, machine: Machine) -> None:
        """Conflict when this machine cannot."""
        ...

    async def save(self, machine: Machine) -> None:
        """Keep what a machine that is held still has in memory, whole and for good. It must not go on afterwards,
        unless `forget_saved` has been called. A failure leaves nothing kept."""
        ...

    async def restore(self, machine: Machine) -> None:
        """As `start`, with the memory that was kept; held still. It is kept on. Conflict when it does not fit any
        longer, or there is none."""
        ...

    async def forget_saved(self, machine: Machine) -> None:
        """Keep it no longer. None kept is success."""
        ...


@runtime_checkable
class KeepsRoot(Protocol):
    """The kind keeps on disk what a machine changes of its image, and holds the machine to its `root_mib`."""

    async def root_limit(self) -> str:
        """How it is held to that, in words."""
        ...


@runtime_checkable
class CanShare(Protocol):
    """Machines can have folders of the host: those that they are started with, until they end.

    In a folder the root of a guest has the rights of the folder's owner, no other, and its users have what everybody
    has. Programs in it get no rights from their files, and devices in it are none. A folder that is gone, or another
    one by now, is a Conflict, and the machine is not started.
    """

    def share_problem(self) -> str:
        """Why machines of this kind have none on this host; empty: they can have them."""
        ...


class BadTemplate(HostFailure):
    """A fork failed for what is in its template, and not for what the host lacks just now."""


@runtime_checkable
class KeepsElsewhere(Protocol):
    """The kind keeps something of a machine that does not run outside of its VM's directory, such as its root."""

    async def discard(self, machine: Machine) -> None:
        """As `kill`, and leave nothing of the machine anywhere: its VM is no more. Gone is success."""
        ...


@runtime_checkable
class CanResizeMemory(Protocol):
    """Memory is a limit in this kind: machines that run can be given more or less."""

    async def resize_memory(self, machine: Machine) -> None:
        """Hold a running machine to its `memory_mib` from now on. Conflict when it uses more than that."""
        ...


@runtime_checkable
class CanFork(Protocol):
    """Machines can be copied from a template: a guest that waits for its identity, frozen, in a directory.

    What is in the directory is the driver's. Only guests that know how to wait can become one.
    """

    def template_basis(self, machine: Machine) -> Mapping[str, str]:
        """All that a template of this machine depends on beside its image: with another one it is of no use."""
        ...

    async def make_template(self, machine: Machine, directory: Path) -> None:
        """Run the machine until its guest waits, and keep that, ready for forks. It is gone afterwards.

        A failure leaves nothing.
        """
        ...

    async def load_template(self, directory: Path) -> None:
        """Make a template that an earlier agent made ready for forks. Ready already is success."""
        ...

    def forget_template(self, directory: Path) -> None:
        """Give up what forks of it need in memory; machines that were forked run on. Not ready is success."""
        ...

    async def fork(self, machine: Machine, directory: Path) -> None:
        """As `start`, but as a copy of the template. The guest waits for its identity.

        BadTemplate when the template cannot be restored.
        """
        ...

    async def identify(self, machine: Machine) -> None:
        """Tell a guest that waits its MAC, name and time, and give it entropy of its own. It goes on then.

        BadTemplate when the guest is there and does not do as it is told.
        """
        ...


@runtime_checkable
class CanRehearse(CanFork, Protocol):
    """A forked guest can go through all that it will do with its identity before, and is faster then."""

    async def rehearse(self, machine: Machine) -> None:
        """As `identify`, but to be taken back."""
        ...

    async def park(self, machine: Machine) -> None:
        """Let the guest forget its rehearsal. Returns when it waits for its identity again."""
        ...


CAPABILITIES: dict[str, type] = {
    "console": HasConsole,
    "exec": CanExec,
    "display": HasDisplay,
    "hardware": HasHardware,
    "disks": CanHotplug,
    "grow-disks": CanGrowDisks,
    "shares": CanShare,
    "suspend": CanFreeze,
    "suspend-to-disk": CanSave,
    "address": GivesAddress,
    "resize-memory": CanResizeMemory,
    "fork": CanFork,
    "rehearse": CanRehearse,
}


def capabilities_of(driver: MachineDriver) -> tuple[str, ...]:
    """The support matrix, derived from what a driver implements."""
    return tuple(name for name, kind in CAPABILITIES.items() if isinstance(driver, kind))
