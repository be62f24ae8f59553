"""Who boots over the network from one bridge, as its servers ask for them. A contract; the node implements it."""

from __future__ import annotations

from typing import Protocol

from atoll.guestnet.netboot.library import Client


class Clients(Protocol):
    """What TFTP and the HTTP server for firmware ask."""

    def client(self, ip: str) -> Client | None:
        """The machine that boots from this address."""
        ...
