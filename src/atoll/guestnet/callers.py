"""Those whom the servers of one bridge answer, as the servers ask for them. Contracts; the node implements them.

A server knows of a caller what it sees on its own wire: the MAC of a frame, or the address that anti-spoofing vouches
for. Who that is on this bridge is the node's to say: the same MAC or address may be somebody else's on another one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from atoll.guestnet.dhcp.answer import Lease
from atoll.guestnet.metadata.guest import Guest
from atoll.guestnet.netboot.library import Client
from atoll.model.lease import LeaseState


class Leases(Protocol):
    """What DHCP and router advertisements ask."""

    def lease(self, mac: str) -> Lease | None:
        """That of the machine with this MAC."""
        ...

    def leases(self, subnet: str) -> Iterable[Lease]:
        """All that there are in a subnet of this bridge."""
        ...

    def used(self, mac: str, state: LeaseState) -> None:
        """Told what the machine with this MAC did with its lease."""
        ...


class Guests(Protocol):
    """What the metadata server asks."""

    def guest(self, ip: str) -> Guest | None:
        """The one that calls from this address."""
        ...

    def read(self, guest: Guest, path: str) -> None:
        """Told what a guest read about itself."""
        ...

    async def settle(self, guest: Guest) -> None:
        """Wait until what has to be issued to this guest first has been."""
        ...


class Clients(Protocol):
    """What TFTP and the HTTP server for firmware ask."""

    def client(self, ip: str) -> Client | None:
        """The machine that boots from this address."""
        ...


class Callers(Leases, Guests, Clients, Protocol):
    """All of it: who is on one bridge."""
