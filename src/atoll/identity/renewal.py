"""Who renews the certificate that a service shows. Effects: a signer process.

A renewed certificate says the same for the same key: one file is replaced at once, and a crash at any moment
leaves a pair that belongs together.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import msgspec

from atoll.errors import HostFailure
from atoll.identity.issuers import ask_signer
from atoll.identity.signer import Renewal, Renewed
from atoll.identity.tls import Pair


class Renewer(Protocol):
    """May be asked again: each answer is a new certificate."""

    async def renew(self, cert_pem: bytes) -> bytes:
        """A certificate with the same contents and key, and a whole life ahead; or an AtollError."""
        ...


class AuthorityRenewer:
    """The small CA on this machine. Its key is read by a signer process, never by this one."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def renew(self, cert_pem: bytes) -> bytes:
        answer = await ask_signer(self._directory, Renewal(cert_pem.decode()))
        return msgspec.json.decode(answer, type=Renewed).certificate.encode()


async def renewed(renewer: Renewer, held: Pair) -> Pair:
    """What a renewer gives, after a look at it: for our key, and good for longer."""
    fresh = Pair(await renewer.renew(held.cert_pem), held.key_pem)
    fresh.check()
    if fresh.validity.not_after <= held.validity.not_after:
        raise HostFailure(
            f"a renewed certificate would end at {fresh.validity.not_after:%Y-%m-%d %H:%M}Z, no later than before",
            hint="a certificate never outlives its CA; see when that ends with: atoll ca show",
        )
    return fresh
