"""Who calls the servers of a bridge: the one way from what is seen on a wire to the machine that it is.

    a frame's MAC ───────► lease     DHCP, router advertisements
    a caller's address ──► guest     metadata
                      ├──► client    TFTP, HTTP for firmware
                      └──► names     DNS

Each bridge has a view of its own: a MAC or an address is looked for among the ports of its subnets alone.

Effects: reads user data; notes what callers did, in the node.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from atoll.errors import Conflict
from atoll.guestnet.dhcp.answer import Lease
from atoll.guestnet.dns.names import Directory, Known, View
from atoll.guestnet.metadata.guest import Guest, Place
from atoll.guestnet.netboot.library import Client
from atoll.hypervisor.credentials import Credentials
from atoll.hypervisor.network.leases import Leases
from atoll.hypervisor.ssh import SshCertificates
from atoll.model.lease import LeaseState, Reservation
from atoll.model.vm import VM
from atoll.plan.addresses import Given


class Census(Struct, frozen=True):
    """What is asked of the node."""

    given: Callable[[], Given]
    """Its subnets."""
    leases: Leases
    find_port: Callable[[str, str], tuple[VM, int] | None]
    """The VM that has a MAC or an address in a subnet, and the place of that interface among its own."""
    vms: Callable[[], tuple[VM, ...]]
    """All of them: each can be asked for by its name."""
    reached: Callable[[str, str], None]
    """Told the own address of a VM, and how far it has come: dhcp or metadata."""


class Callers:
    """All callers of a node. They are counted once the node is made, and before its network serves."""

    def __init__(
        self,
        user_data: Callable[[str], bytes],
        credentials: Credentials | None = None,
        place: Place | None = None,
        ssh: SshCertificates | None = None,
    ) -> None:
        self._user_data = user_data
        self._credentials = credentials
        self._place = place or Place()
        self._ssh = ssh
        self._census: Census | None = None

    def count(self, census: Census) -> None:
        """From here on these are the callers."""
        self._census = census
        self.names = Directory(lambda: Known(census.given().subnets, census.vms(), census.given().leases))

    def on(self, bridge: str) -> BridgeCallers:
        """Those of one bridge."""
        assert self._census is not None, "a network serves when its node is made"
        return BridgeCallers(self, self._census, bridge)

    def guest(self, census: Census, vm: VM) -> Guest:
        """All that a VM may read about itself."""
        first, *others = (census.given().subnet(nic.subnet) for nic in vm.all_nics)
        return Guest(
            vm,
            (lambda: self._user_data(vm.ip)) if vm.user_data_sha256 else None,
            first,
            self._credentials.of(vm) if self._credentials else None,
            self._place,
            tuple(others),
            self._ssh.user_ca if self._ssh else "",
        )

    async def settle(self, vm: VM) -> None:
        """Wait for credentials of this VM that are just being issued."""
        if self._credentials is not None:
            await self._credentials.settle(vm)

    async def certify_host(self, vm: VM, key: str) -> str:
        """A certificate for the key of this VM's SSH server."""
        if self._ssh is None:
            raise Conflict(f"VM {vm.name}: its node signs no SSH certificates")
        return await self._ssh.certify(vm, key)


class BridgeCallers:
    """Those of one bridge: what its servers are given (atoll.guestnet.callers)."""

    def __init__(self, all_: Callers, census: Census, bridge: str) -> None:
        self._all = all_
        self._census = census
        self._leases = census.leases
        self._bridge = bridge

    def lease(self, mac: str) -> Lease | None:
        match self._find(mac):
            case Reservation() as machine:
                return self._leases.of_machine(machine)
            case (vm, index):
                return self._leases.of_vm(vm, index)
        return None

    def leases(self, subnet: str) -> list[Lease]:
        return self._leases.all_of(subnet)

    def used(self, mac: str, state: LeaseState) -> None:
        match self._find(mac):
            case Reservation() as machine:
                self._leases.note(machine.subnet, mac, state)
            case (vm, index):
                self._leases.note(vm.all_nics[index].subnet, mac, state)
                # What a VM does on its first interface tells how far it is.
                if state is LeaseState.BOUND and index == 0:
                    self._census.reached(vm.ip, "dhcp")

    def guest(self, ip: str) -> Guest | None:
        """Nobody, where the subnet of this address has the service switched off."""
        match self._find(ip):
            case (vm, index) if self._given.subnet(vm.all_nics[index].subnet).metadata:
                return self._all.guest(self._census, vm)
        return None

    def read(self, guest: Guest, path: str) -> None:
        self._census.reached(guest.vm.ip, "metadata")

    async def settle(self, guest: Guest) -> None:
        await self._all.settle(guest.vm)

    async def certify_host(self, guest: Guest, key: str) -> str:
        return await self._all.certify_host(guest.vm, key)

    def client(self, ip: str) -> Client | None:
        """A VM boots from its first interface."""
        match self._find(ip):
            case Reservation() as machine:
                return Client(machine.ip, machine.mac, machine.boot.image)
            case (vm, 0):
                return Client(vm.ip, vm.mac, vm.image, vm.image_digest)
        return None

    def names(self, ip: str) -> View | None:
        """The names that the caller at this address may know."""
        return self._all.names.view([subnet.id for subnet in self._given.on_bridge(self._bridge)], ip)

    @property
    def _given(self) -> Given:
        return self._census.given()

    def _find(self, mark: str) -> tuple[VM, int] | Reservation | None:
        for subnet in self._given.on_bridge(self._bridge):
            at = self._census.find_port(subnet.id, mark) or self._leases.find_machine(subnet.id, mark)
            if at is not None:
                return at
        return None
