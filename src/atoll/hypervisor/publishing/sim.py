"""A relay that carries nothing, for services under test: what it was told is all that there is of it."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping

from atoll.hypervisor.publishing.base import Carried
from atoll.plan.publishing import Entry


class SimRelay:
    """Outlives agents, as a real one does."""

    def __init__(self) -> None:
        self.ports: dict[str, Entry] = {}
        self._told: Callable[[], None] = lambda: None

    def on_end(self, tell: Callable[[], None]) -> None:
        self._told = tell

    async def carried(self) -> Mapping[str, Carried]:
        return {key: Carried(entry) for key, entry in self.ports.items()}

    async def carry(self, entry: Entry, listening: socket.socket) -> None:
        assert entry.key not in self.ports
        self.ports[entry.key] = entry

    async def point(self, entry: Entry) -> None:
        assert entry.key in self.ports
        self.ports[entry.key] = entry

    async def drop(self, key: str) -> None:
        self.ports.pop(key, None)

    async def end(self) -> None:
        self.ports.clear()

    def crash(self) -> None:
        """It ends by itself, and all that it carried with it."""
        self.ports.clear()
        self._told()
