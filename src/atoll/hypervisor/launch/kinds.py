"""The kinds of machine that a node runs: the driver of each, and what it told of itself. Starts nothing."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from atoll.drivers.machine.base import (
    CanHotplug,
    CanResizeMemory,
    CanShare,
    HasDisplay,
    HasHardware,
    KeepsRoot,
    MachineDriver,
    MapsUsers,
)
from atoll.errors import NotFound
from atoll.model.node import DriverInfo
from atoll.plan.ids import Space

MAX_PROCESSES = 128


class Kinds(Struct, frozen=True):
    """Drivers by name. One that nothing is told of runs nothing on the host."""

    drivers: Mapping[str, MachineDriver]
    described: Mapping[str, DriverInfo]

    @classmethod
    async def of(cls, drivers: Mapping[str, MachineDriver]) -> Kinds:
        """The kinds of these drivers, each asked once."""
        return cls(drivers, {name: await driver.describe() for name, driver in drivers.items()})

    def driver(self, name: str) -> MachineDriver:
        if name not in self.drivers:
            known = ", ".join(sorted(self.drivers))
            raise NotFound(f"driver {name!r}: not on this node", hint=f"there are: {known}")
        return self.drivers[name]

    def overhead_mib(self, name: str) -> int | None:
        """Memory of a machine beside its guest's own. None: this kind runs nothing on the host."""
        return self.described[name].overhead_mib if name in self.described else None

    def max_processes(self, name: str) -> int:
        return self.described[name].max_processes if name in self.described else MAX_PROCESSES

    def id_space(self, name: str) -> Space:
        """What a machine of this kind runs as: one user, or many."""
        return Space.RANGES if isinstance(self.drivers.get(name), MapsUsers) else Space.USERS

    def id_spaces(self) -> frozenset[Space]:
        return frozenset(self.id_space(name) for name in self.drivers)

    def with_disks(self) -> frozenset[str]:
        """The kinds that take disks."""
        return frozenset(name for name, driver in self.drivers.items() if isinstance(driver, CanHotplug))

    def with_screens(self) -> frozenset[str]:
        """The kinds that can have a screen."""
        return frozenset(name for name, driver in self.drivers.items() if isinstance(driver, HasDisplay))

    def with_hardware(self) -> frozenset[str]:
        """The kinds that have a kernel and devices of their own."""
        return frozenset(name for name, driver in self.drivers.items() if isinstance(driver, HasHardware))

    def with_live_memory(self) -> frozenset[str]:
        """The kinds whose memory can change while they run."""
        return frozenset(name for name, driver in self.drivers.items() if isinstance(driver, CanResizeMemory))

    def with_roots(self) -> frozenset[str]:
        """The kinds that keep roots on the node's disk."""
        return frozenset(name for name, driver in self.drivers.items() if isinstance(driver, KeepsRoot))

    def with_shares(self) -> dict[str, str]:
        """The kinds that can have folders of the host, each with why not on this one; empty: they can."""
        return {
            name: driver.share_problem()
            for name, driver in self.drivers.items()
            if isinstance(driver, CanShare)
        }
