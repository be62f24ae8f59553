"""Whom the metadata server of one bridge answers, as it asks for them. A contract; the node implements it.

A server knows of a guest the address that it calls from, which anti-spoofing vouches for. Who that is on this bridge is
the node's to say: the same address may be somebody else's on another one.
"""

from __future__ import annotations

from typing import Protocol

from atoll.guestnet.metadata.guest import Guest


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

    async def certify_host(self, guest: Guest, key: str) -> str:
        """A certificate for this key as that of the guest's SSH server; or why there is none."""
        ...
