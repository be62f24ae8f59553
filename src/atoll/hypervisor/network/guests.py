"""From an address to the guest that calls from it, with all that it may read. Effects: reads user data."""

from __future__ import annotations

from collections.abc import Callable

from atoll.guestnet.metadata.guest import Guest, Place
from atoll.hypervisor.credentials import Credentials
from atoll.model.network import Subnet, link_local
from atoll.model.vm import VM, VmNic


class Guests:
    """Knows the VMs of a node as callers of its metadata service."""

    def __init__(
        self,
        find: Callable[[str], VM | None],
        subnet_of: Callable[[VM | VmNic], Subnet],
        user_data: Callable[[str], bytes],
        credentials: Credentials | None = None,
        place: Place | None = None,
    ) -> None:
        self._find = find
        self._subnet_of = subnet_of
        self._user_data = user_data
        self._credentials = credentials
        self._place = place or Place()

    def find(self, ip: str) -> Guest | None:
        """Nobody, where the subnet of this address has the service switched off."""
        vm = self._find(ip)
        if vm is None:
            return None
        caller = next((nic for nic in vm.nics if ip in (nic.ip, nic.ip6, link_local(nic.mac))), vm)
        if not self._subnet_of(caller).metadata:
            return None
        return Guest(
            vm,
            (lambda: self._user_data(vm.ip)) if vm.user_data_sha256 else None,
            self._subnet_of(vm),
            self._credentials.of(vm) if self._credentials else None,
            self._place,
            tuple(self._subnet_of(nic) for nic in vm.nics),
        )

    async def settle(self, ip: str) -> None:
        """Wait for credentials of this guest that are just being issued."""
        vm = self._find(ip)
        if vm is not None and self._credentials is not None:
            await self._credentials.settle(vm)
