"""Certificates for `atoll vm ssh`: of owners who log in, and of the SSH servers of guests. Effects: asks an issuer.

A certificate is for one instance: its id is the principal, which no other VM has had or will have.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from msgspec import Struct

from atoll.api.ssh import SshAccess
from atoll.errors import AtollError, Conflict, TooMany
from atoll.identity.issuers import ssh_certificate
from atoll.identity.ssh_authority import public_key
from atoll.identity.ssh_issuer import SshIssuer
from atoll.identity.ssh_signing import SshTrust
from atoll.model.vm import VM
from atoll.system import clock, steps

log = logging.getLogger(__name__)

AT_ONCE = 2
"""Signers for logins, and as many for servers; each takes some tenths of a second of CPU."""
OTHER_KEY_S = 30
"""How soon a guest may come with another key for its server."""


class Admitted(Struct, frozen=True):
    access: SshAccess
    serial: int
    """By which the log of the guest's SSH server names the certificate."""


class _Server(Struct):
    """The SSH server of one guest."""

    key: str
    again_s: float
    """No other key before this moment of the monotonic clock."""
    certificate: str = ""


class SshCertificates:
    """What a node has signed for SSH. Without an issuer, nothing: guests are told of no CA then."""

    def __init__(self, issuer: SshIssuer | None, vms: Callable[[], Iterable[VM]]) -> None:
        self._issuer = issuer
        self._vms = vms
        self._trust: SshTrust | None = None
        self._servers: dict[str, _Server] = {}
        self._login_turns = asyncio.Semaphore(AT_ONCE)
        # Guests wait for guests, never owners for guests.
        self._server_turns = asyncio.Semaphore(AT_ONCE)

    async def prepare(self) -> None:
        """Know the CAs, before guests ask for them. A CA that does not answer is no reason not to serve."""
        if self._issuer is not None:
            try:
                self._trust = await self._issuer.trust()
            except AtollError as error:
                log.error("the SSH CA: %s", error.brief)

    @property
    def user_ca(self) -> str:
        """Whom guests are to trust; empty: nobody."""
        return self._trust.login_ca if self._trust is not None else ""

    async def admit(self, vm: VM, user: str, key: str) -> Admitted:
        """A certificate that opens this VM to the key, for minutes."""
        public_key(key)
        async with self._login_turns:
            signed = await self._signing().login(vm.instance_id, f"{user} to {vm.name}", key)
        steps.step("ssh.admitted")
        self._trust = signed.trust
        made = ssh_certificate(signed.certificate)
        expires_at = datetime.fromtimestamp(made.valid_before, UTC)
        access = SshAccess(signed.certificate, expires_at, vm.instance_id, signed.trust.host_ca)
        return Admitted(access, made.serial)

    async def certify(self, vm: VM, key: str) -> str:
        """A certificate for the key of this guest's SSH server. Asked again with the same key, it is the same."""
        public_key(key)
        key, now_s = " ".join(key.split()[:2]), clock.monotonic()
        held = self._servers.get(vm.instance_id)
        if held is not None and held.certificate and held.key == key:
            return held.certificate
        if held is not None and now_s < held.again_s:
            raise TooMany(
                f"VM {vm.name} had a key signed just now", retry_after_s=int(held.again_s - now_s) + 1
            )
        there = {one.instance_id for one in self._vms()}
        self._servers = {name: server for name, server in self._servers.items() if name in there}
        server = self._servers[vm.instance_id] = _Server(key, now_s + OTHER_KEY_S)
        async with self._server_turns:
            signed = await self._signing().host(vm.instance_id, f"VM {vm.name}", key)
        steps.step("ssh.certified")
        server.certificate = signed.certificate
        return signed.certificate

    def _signing(self) -> SshIssuer:
        if self._issuer is None:
            raise Conflict(
                "vm ssh: this node has no CA that signs SSH certificates", hint="use: atoll vm shell"
            )
        return self._issuer
