"""The credentials of VMs that have a role: issued when they are first needed, new at half of their life.

The issuer is asked with the node's own right, or, for a VM that was created with a long-lived credential of its role,
with that one alone. Effects: asks an issuer and a broker. Keys are in memory only: another agent makes others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import datetime
from typing import Protocol

from msgspec import Struct, structs

from atoll.errors import AtollError, Conflict, Denied
from atoll.identity.brokers import Broker
from atoll.identity.issuers import RoleIssuer, ShowsCredentials, issue
from atoll.identity.long_lived import show
from atoll.identity.roles import Algorithm, CloudCredential, KeyPair, RoleCredentials, make_keys
from atoll.model.long_lived import LongLivedCredential
from atoll.model.vm import VM
from atoll.system import clock, steps

log = logging.getLogger(__name__)

LOOK_EVERY_S = 5.0
SETTLE_S = 8.0
"""The longest that a guest's request waits for credentials that are being issued."""
RETRY_S = 10.0
MAX_RETRY_S = 300.0


SERVED = "served"
REFUSED = "none: role-problem says why"
NO_BROKER = "none: the node has no broker of a public cloud ([roles.broker] in its configuration)"

Tell = Callable[[VM, str, str], Awaitable[object]]
"""Is told why a VM's credentials could not be renewed (empty: they could), and whether it has some of a cloud."""


class OwnCredentials(Protocol):
    """The long-lived credentials that VMs were created with."""

    async def read(self, vm: VM) -> LongLivedCredential:
        """That of this VM, or HostFailure."""
        ...


class _Holding(Struct):
    """What is kept of one VM."""

    keys: Mapping[Algorithm, KeyPair] | None = None
    credentials: RoleCredentials | None = None
    work: asyncio.Task[None] | None = None
    failures: int = 0
    not_before_s: float = 0.0
    """No new attempt before this moment of the monotonic clock."""
    problem: str = ""
    """Why the last attempt failed."""


class Credentials:
    """Keeps what the VMs of this node show for their roles."""

    def __init__(
        self,
        issuer: RoleIssuer,
        broker: Broker | None,
        vms: Callable[[], Iterable[VM]],
        now: Callable[[], datetime] = clock.now,
        own: OwnCredentials | None = None,
        tell: Tell | None = None,
    ) -> None:
        self._own = own
        self._tell = tell
        self._issuer = issuer
        self._broker = broker
        self._vms = vms
        self._now = now
        self._held: dict[str, _Holding] = {}
        # Each attempt costs a tenth of a second of CPU; VMs of a node that restarts take turns.
        self._turns = asyncio.Semaphore(2)

    @property
    def takes_own(self) -> bool:
        """Whether the issuer can be asked with the credential that a VM was created with."""
        return isinstance(self._issuer, ShowsCredentials)

    async def keep(self) -> None:
        """For ever: look, so that nothing that a guest holds ever ends."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_EVERY_S)

    def look(self) -> tuple[asyncio.Task[None], ...]:
        """Begin what is due for VMs that have a role, forget those that are gone; what is under way."""
        wanted = {vm.instance_id: vm for vm in self._vms() if vm.role is not None}
        for instance_id in self._held.keys() - wanted.keys():
            self._drop(self._held.pop(instance_id))
        due = (self._refresh_if_due(vm) for vm in wanted.values() if is_whole(vm))
        return tuple(work for work in due if work is not None)

    def of(self, vm: VM) -> RoleCredentials | None:
        """What this VM can show now."""
        holding = self._held.get(vm.instance_id)
        if vm.role is None or holding is None or holding.credentials is None:
            return None
        return without_the_ended(holding.credentials, self._now())

    async def settle(self, vm: VM) -> None:
        """Wait, for a while, until a first attempt for this VM is over."""
        if vm.role is None or self.of(vm) is not None:
            return
        work = self._refresh_if_due(vm)
        if work is not None:
            await asyncio.wait([work], timeout=SETTLE_S)

    def close(self) -> None:
        for holding in self._held.values():
            self._drop(holding)
        self._held.clear()

    def _drop(self, holding: _Holding) -> None:
        if holding.work is not None:
            holding.work.cancel()

    def _refresh_if_due(self, vm: VM) -> asyncio.Task[None] | None:
        holding = self._held.setdefault(vm.instance_id, _Holding())
        if holding.work is None and clock.monotonic() >= holding.not_before_s:
            due = is_due(holding.credentials, self._broker is not None, self._now())
            if due:
                holding.work = asyncio.get_running_loop().create_task(self._refresh(vm, holding))
        return holding.work

    async def _refresh(self, vm: VM, holding: _Holding) -> None:
        try:
            problem = ""
            try:
                async with self._turns:
                    await self._renew(vm, holding)
                holding.failures = 0
            except Exception as error:
                # Whatever it was: a VM that nobody tries again for would lose its role unnoticed.
                holding.failures += 1
                delay_s = min(RETRY_S * 2 ** (holding.failures - 1), MAX_RETRY_S)
                holding.not_before_s = clock.monotonic() + delay_s
                problem = error.brief if isinstance(error, AtollError) else type(error).__name__
            await self._note(vm, holding, problem)
        finally:
            holding.work = None

    async def _note(self, vm: VM, holding: _Holding, problem: str) -> None:
        """Say it where it is looked for: once in the log, and in the VM until it is over."""
        if problem and problem != holding.problem:
            log.error("credentials of VM %s for role %s: %s", vm.ip, vm.role, problem)
        holding.problem = problem
        cloud = cloud_told(self.of(vm), brokered=self._broker is not None)
        if self._tell is not None and (problem, cloud) != (vm.role_problem, vm.role_cloud):
            try:
                await self._tell(vm, problem, cloud)
            except AtollError as error:  # such as a full disk; or the VM has gone meanwhile
                log.warning("VM %s: noting that its credentials are not renewed: %s", vm.ip, error.brief)

    async def _issuer_for(self, vm: VM, now: datetime) -> RoleIssuer:
        """Whom to ask. The node's own right is never used for a VM that came with a credential of its own."""
        ends_at = vm.role_credential_expires_at
        if ends_at is None:
            return self._issuer
        if ends_at <= now:
            raise Denied(f"the credential that the VM was created with ended at {show(ends_at)}")
        if self._own is None or not isinstance(self._issuer, ShowsCredentials):
            raise Conflict("the node's issuer takes no credential of a VM, and this VM came with one")
        return self._issuer.showing(await self._own.read(vm))

    async def _renew(self, vm: VM, holding: _Holding) -> None:
        assert vm.role is not None
        old, now = holding.credentials, self._now()
        if old is None or past_half(old, now):
            issuer = await self._issuer_for(vm, now)
            if holding.keys is None:
                holding.keys = await asyncio.to_thread(make_keys)
            holder = f"{vm.ip} {vm.instance_id}"
            fresh = await issue(issuer, vm.role, holder, holding.keys, now)
            steps.step("credentials.issued")
            holding.credentials = structs.replace(fresh, cloud=old.cloud if old is not None else None)
            log.info("VM %s has certificates of role %s until %s", vm.ip, vm.role, fresh.expires_at)
        held = holding.credentials
        assert held is not None
        if self._broker is not None and (held.cloud is None or past_half(held.cloud, now)):
            holding.credentials = structs.replace(held, cloud=await self._broker.exchange(held, now))


def is_whole(vm: VM) -> bool:
    """Its credential is on disk, if it came with one: a VM that is still being made may not have it yet."""
    return vm.role_credential_expires_at is None or vm.started_by != ""


def past_half(credential: RoleCredentials | CloudCredential, now: datetime) -> bool:
    """Half of its life is over: time for a new one, with as much time left for that to fail."""
    return now - credential.issued_at >= credential.expires_at - now


def is_due(held: RoleCredentials | None, brokered: bool, now: datetime) -> bool:
    """Whether something is missing, or past half of its life."""
    if held is None or past_half(held, now):
        return True
    return brokered and (held.cloud is None or past_half(held.cloud, now))


def cloud_told(held: RoleCredentials | None, *, brokered: bool) -> str:
    """What the owner of a VM is told of its credentials of a public cloud."""
    if held is not None and held.cloud is not None:
        return SERVED
    return REFUSED if brokered else NO_BROKER


def without_the_ended(held: RoleCredentials, now: datetime) -> RoleCredentials | None:
    """What of it is still good."""
    if held.expires_at <= now:
        return None
    if held.cloud is not None and held.cloud.expires_at <= now:
        return structs.replace(held, cloud=None)
    return held
