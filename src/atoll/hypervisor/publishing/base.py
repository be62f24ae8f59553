"""The contract of what carries connections to guests."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from typing import Protocol

from msgspec import Struct

from atoll.model.publishing import Publication
from atoll.plan.publishing import Entry, Rules


class Carried(Struct, frozen=True):
    """One port that is carried, as it is, and what was counted of it."""

    entry: Entry
    open: int = 0
    connections: int = 0
    refused: int = 0
    failed: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0


class Relay(Protocol):
    """Carries on whatever becomes of who told it to. HostFailure when it cannot be told."""

    def on_end(self, tell: Callable[[], None]) -> None:
        """Have somebody told, from the running loop, when it has ended by itself."""
        ...

    async def carried(self) -> Mapping[str, Carried]:
        """All that it carries, by key; nothing when it does not run."""
        ...

    async def carry(self, entry: Entry, listening: socket.socket) -> None:
        """Take what comes to a socket to a guest. Starts it, if it does not run."""
        ...

    async def point(self, entry: Entry) -> None:
        """To another guest port, or address, or nowhere. Connections to where it was before end."""
        ...

    async def drop(self, key: str) -> None:
        """Nobody can connect there any more, and connections end. Not there is success."""
        ...

    async def end(self) -> None:
        """End it, with all that it carries: by force where it does not listen. Gone is success."""
        ...


Listen = Callable[[Publication], socket.socket]
"""Opens the port of the node. OSError where that cannot be."""


class Place(Struct, frozen=True):
    """How a node publishes."""

    relay: Relay
    listen: Listen
    rules: Rules = Rules()
    api_port: int = 0
