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

from atoll.model.node import DriverInfo
from atoll.model.vm import MachineType


class Nic(Struct, frozen=True):
    """The network interface of a machine: a link that the driver makes and plugs into a bridge."""

    link: str
    bridge: str
    mac: str
    mtu: int


class Machine(Struct, frozen=True):
    """All that a driver needs to run one VM. `directory` is the VM's own, `cgroup` exists already."""

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
    rootfs: Path | None = None
    """The image's root file system as a tar archive, for kinds that share the host's kernel."""
    image_digest: str = ""
    milli_cpus: int = 1000


class Exit(StrEnum):
    """Why a machine is not running any more."""

    POWERED_OFF = "powered-off"
    """The guest shut itself down, or did so when asked."""
    CRASHED = "crashed"
    """Anything else: the process died, the guest panicked."""


class Seen(Struct, frozen=True):
    """A machine as found on this host. `exit` is None while it runs."""

    ip: str
    pid: int
    exit: Exit | None = None


OnExit = Callable[[str, Exit], None]
"""Called in the event loop, once, with the IP of a machine that stopped running."""


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
        """The truth on this host by IP, also after a restart of the agent; what runs is watched from then on."""
        ...

    async def close(self) -> None:
        """Let go of connections; machines run on."""
        ...


@runtime_checkable
class HasConsole(Protocol):
    """The kind has a serial line. Its output is also kept in `console.log` of the VM's directory."""

    async def console(self, machine: Machine) -> Console: ...


CAPABILITIES: dict[str, type] = {"console": HasConsole}


def capabilities_of(driver: MachineDriver) -> tuple[str, ...]:
    """The support matrix, derived from what a driver implements."""
    return tuple(name for name, kind in CAPABILITIES.items() if isinstance(driver, kind))
