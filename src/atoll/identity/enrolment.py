"""How somebody who was invited gets a certificate through a service. Effects: reads invitations; a signer process.

The service looks first whether an invitation is any good, which costs nothing; only then the signer is started, which
looks again, takes the invitation and signs. The CA's key is read by the signer, never by the service.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import msgspec

from atoll.errors import Conflict, NotFound
from atoll.identity import certificates, requests
from atoll.identity.invitations import Invitations, not_valid
from atoll.identity.issuers import ask_signer
from atoll.identity.signer import Redeemed, Redemption
from atoll.system import clock

AT_ONCE = 2
"""Signers, each of which takes a tenth of a second of CPU and more."""


class Enrolment:
    """What a service shows of its CA, and its way to it if the CA is on this machine."""

    def __init__(
        self, ca_pem: bytes = b"", authority: Path | None = None, now: Callable[[], datetime] = clock.now
    ) -> None:
        self._ca_pem = ca_pem
        self._authority = authority
        self._now = now
        self._turns = asyncio.Semaphore(AT_ONCE)

    def ca_pem(self) -> str:
        if not self._ca_pem:
            raise NotFound("the CA of this service is not known here", hint="ask its operator for the file")
        return self._ca_pem.decode()

    async def redeem(self, invitation_id: str, secret: str, request: str) -> Redeemed:
        """A certificate; or Denied, without a word on what is wrong with the secret."""
        if self._authority is None:
            raise Conflict("nobody can be invited here: the CA is elsewhere", hint="ask its operator")
        # Before the secret is looked at, so that a broken request tells nothing, and costs no invitation.
        await asyncio.to_thread(requests.public_key, request.encode())
        invitations = Invitations(self._authority)
        await asyncio.to_thread(invitations.check, invitation_id, bytes.fromhex(secret), self._now())
        async with self._turns:
            answer = await ask_signer(self._authority, Redemption(invitation_id, secret, request))
        redeemed = msgspec.json.decode(answer, type=Redeemed)
        if not redeemed.certificate:
            raise not_valid()  # somebody else was faster
        return redeemed


def ca_of(certificate_pem: bytes, bundle_pem: bytes) -> bytes:
    """The CA in a bundle, or behind the certificate itself, that issued it; empty: none of them did. Pure."""
    leaf, *chain = certificates.all_from_pem(certificate_pem)
    for ca in (*certificates.all_from_pem(bundle_pem), *chain):
        if certificates.issued_by(leaf, ca):
            return certificates.to_pem(ca)
    return b""
