"""Whose leases the servers of one bridge tell, as they ask for them. A contract; the node implements it.

A server knows of a machine what it sees on its own wire: the MAC of a frame. Who that is on this bridge is the node's
to say: the same MAC may be somebody else's on another one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from atoll.guestnet.dhcp.answer import Lease
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
