"""Where a node gets the certificates of `atoll vm ssh`. Effects: a signer process; reads public keys.

The node gives public keys and gets certificates: the keys of the CAs are read by the signer alone.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Protocol

import msgspec

from atoll.identity.issuers import ask_signer
from atoll.identity.ssh_authority import SshCa
from atoll.identity.ssh_signing import AskTrust, HostKey, Login, SshSigned, SshTrust

LOGIN = timedelta(minutes=5)
"""How long a certificate opens a VM. A session that began in time goes on."""


class SshIssuer(Protocol):
    """Every method may be called again: certificates are new each time."""

    async def trust(self) -> SshTrust:
        """The public keys of the CAs, which are made if there are none."""
        ...

    async def login(self, instance: str, holder: str, key: str) -> SshSigned:
        """A certificate that opens this instance to the holder of a key."""
        ...

    async def host(self, instance: str, holder: str, key: str) -> SshSigned:
        """A certificate for the key of the SSH server of this instance."""
        ...


class AuthoritySshIssuer:
    """The small CA on this machine."""

    def __init__(self, directory: Path, lifetime: timedelta = LOGIN) -> None:
        self._directory = directory
        self._lifetime = lifetime

    async def trust(self) -> SshTrust:
        try:
            # Public, and the same for ever: without a signer, every time but the first.
            login, host = ((self._directory / f"{ca}.pub").read_text() for ca in (SshCa.LOGINS, SshCa.HOSTS))
            return SshTrust(login, host)
        except OSError:
            return (await self._ask(AskTrust())).trust

    async def login(self, instance: str, holder: str, key: str) -> SshSigned:
        return await self._ask(Login(instance, holder, key, int(self._lifetime.total_seconds())))

    async def host(self, instance: str, holder: str, key: str) -> SshSigned:
        return await self._ask(HostKey(instance, holder, key))

    async def _ask(self, request: Login | HostKey | AskTrust) -> SshSigned:
        return msgspec.json.decode(await ask_signer(self._directory, request), type=SshSigned)
