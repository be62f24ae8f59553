"""Callers for a guestnet server that runs without a node: those that a test names, and what they did."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from atoll.errors import Conflict
from atoll.guestnet.dhcp.answer import Lease
from atoll.guestnet.metadata.guest import Guest
from atoll.guestnet.netboot.library import Client
from atoll.hypervisor.credentials import Credentials
from atoll.model.lease import LeaseState


class KnownCallers:
    """All that is on one bridge."""

    def __init__(
        self,
        *leases: Lease,
        guests: Mapping[str, Guest] | Callable[[str], Guest | None] = {},  # noqa: B006 - never changed
        credentials: Credentials | None = None,
    ) -> None:
        self._leases = {lease.mac: lease for lease in leases}
        self._guest_at = guests if callable(guests) else guests.get
        self._credentials = credentials
        self.uses: list[tuple[str, LeaseState]] = []
        """MACs, and what became of their leases."""
        self.reads: list[tuple[str, str]] = []
        """The own addresses of VMs, and the paths that they read."""

    def lease(self, mac: str) -> Lease | None:
        return self._leases.get(mac)

    def leases(self, subnet: str) -> Iterable[Lease]:
        return self._leases.values()

    def used(self, mac: str, state: LeaseState) -> None:
        self.uses.append((mac, state))

    def guest(self, ip: str) -> Guest | None:
        return self._guest_at(ip)

    def read(self, guest: Guest, path: str) -> None:
        self.reads.append((guest.vm.ip, path))

    async def settle(self, guest: Guest) -> None:
        if self._credentials is not None:
            await self._credentials.settle(guest.vm)

    async def certify_host(self, guest: Guest, key: str) -> str:
        raise Conflict("no SSH CA")

    def client(self, ip: str) -> Client | None:
        return next((Client(one.ip, one.mac) for one in self._leases.values() if one.ip == ip), None)
