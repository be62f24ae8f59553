"""Who gets which address by DHCP: VMs and other machines alike, and what became of it. No effects.

A lease is for good, so what is known of its use is kept in memory only: it is told anew after a restart.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from datetime import datetime, timedelta

from msgspec import Struct, structs

from atoll.guestnet.dhcp import answer
from atoll.model.lease import Boot, Holder, Lease, LeaseState, Reservation
from atoll.model.network import METADATA_IP
from atoll.model.vm import VM
from atoll.plan.addresses import Given

Key = tuple[str, str]
"""A lease by its subnet and the MAC that it is for."""


class _Use(Struct, frozen=True):
    state: LeaseState
    at: datetime


class Leases:
    """`vms` and `given` are the node's; `now` tells the time."""

    def __init__(
        self, vms: Callable[[], Iterable[VM]], given: Callable[[], Given], now: Callable[[], datetime]
    ) -> None:
        self._vms = vms
        self._given = given
        self._now = now
        self._uses: dict[Key, _Use] = {}
        self._news = asyncio.Event()

    def of_vm(self, vm: VM, index: int) -> answer.Lease:
        """What DHCP tells a VM on the interface at this place. Its way out is the first one."""
        nic = vm.all_nics[index]
        subnet = self._given().subnet(nic.subnet)
        return answer.Lease(
            ip=nic.ip, mac=nic.mac, hostname=vm.name, subnet=subnet, is_default_route=index == 0
        )

    def of_machine(self, lease: Reservation) -> answer.Lease:
        """What DHCP tells a machine that is not a VM."""
        subnet = self._given().subnet(lease.subnet)
        return answer.Lease(
            ip=lease.ip,
            mac=lease.mac,
            hostname=lease.hostname,
            subnet=subnet,
            boot=lease.boot,
            server=subnet.service_ip or METADATA_IP,
        )

    def all_of(self, subnet: str) -> list[answer.Lease]:
        """Those in a subnet, as DHCP tells them."""
        vms = (
            self.of_vm(vm, index)
            for vm in self._vms()
            for index, nic in enumerate(vm.all_nics)
            if nic.subnet == subnet
        )
        machines = (self.of_machine(lease) for lease in self._given().leases if lease.subnet == subnet)
        return [*vms, *machines]

    def find_machine(self, subnet: str, mark: str) -> Reservation | None:
        """The machine that is not a VM and has this MAC or address in a subnet."""
        here = (lease for lease in self._given().leases if lease.subnet == subnet)
        return next((lease for lease in here if mark in (lease.mac, lease.ip)), None)

    def note(self, subnet: str, mac: str, state: LeaseState) -> None:
        """What a machine did with its lease."""
        self._uses[subnet, mac] = _Use(state, self._now())
        self.wake()

    def forget(self, subnet: str, mac: str) -> None:
        """The lease is no more; the next one for this MAC begins anew."""
        self._uses.pop((subnet, mac), None)
        self.wake()

    def wake(self) -> None:
        """There may be more leases than before, or fewer."""
        self._news.set()
        self._news = asyncio.Event()

    def list(self) -> tuple[Lease, ...]:
        vms = [
            self._lease(nic.ip, nic.mac, vm.name, nic.subnet, Holder.VM, None)
            for vm in sorted(self._vms(), key=lambda vm: vm.created_at)
            for nic in vm.all_nics
        ]
        machines = [
            self._lease(each.ip, each.mac, each.hostname, each.subnet, Holder.MACHINE, each.boot)
            for each in self._given().leases
        ]
        return (*vms, *machines)

    async def read(self, follow: bool) -> AsyncGenerator[Lease, None]:
        """All leases, then each one that changes, comes or goes."""
        known: dict[Key, Lease] = {}
        while True:
            news = self._news
            now = {(lease.subnet, lease.mac): lease for lease in self.list()}
            for key, lease in known.items():
                if key not in now:
                    gone_at = self._now()
                    yield structs.replace(lease, state=LeaseState.GONE, changed_at=gone_at, expires_at=None)
            for key, lease in now.items():
                if known.get(key) != lease:
                    yield lease
            known = now
            if not follow:
                return
            await news.wait()

    def _lease(
        self, ip: str, mac: str, hostname: str, subnet: str, holder: Holder, boot: Boot | None
    ) -> Lease:
        use = self._uses.get((subnet, mac))
        bound = use is not None and use.state is LeaseState.BOUND
        return Lease(
            ip=ip,
            mac=mac,
            hostname=hostname,
            subnet=subnet,
            holder=holder,
            state=use.state if use else LeaseState.UNUSED,
            changed_at=use.at if use else None,
            expires_at=use.at + timedelta(seconds=answer.LEASE_S) if use and bound else None,
            boot=boot,
        )
