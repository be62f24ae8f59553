"""What a service shows of itself over TLS and whom it believes, kept fresh while it runs.

Effects: reads certificates, keys and revocation lists; replaces the service's certificate when half of its life
is over. What touches the disk happens in threads.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path

from msgspec import Struct

from atoll.errors import AtollError, HostFailure, Malformed
from atoll.identity.enrolment import ca_of
from atoll.identity.peer import PeerReader
from atoll.identity.renewal import AuthorityRenewer, Renewer, renewed
from atoll.identity.revocations import Revocations
from atoll.identity.tls import ServerCertificate, server_context
from atoll.identity.trust import read_cas
from atoll.system import clock, files

log = logging.getLogger(__name__)

LOOK_EVERY_S = 10.0
LISTS_EVERY_S = 1.0
RETRY_LOOKS = 6
"""A renewal that failed is tried again after so many looks, then after twice as many, and so on."""
MAX_RETRY_LOOKS = 360
REMIND_LOOKS = 8640

Sleep = Callable[[float], Awaitable[None]]


class Pki(Struct, frozen=True, forbid_unknown_fields=True):
    """Files: whom the service believes, and what it shows of itself."""

    ca: Path
    """A bundle: the roots and intermediate CAs whose client certificates are taken."""
    certificate: Path
    """The service's own, followed by those of its intermediate CAs if it has any."""
    key: Path
    crls: tuple[Path, ...] = ()
    """Revocation lists, PEM or DER; a file may hold several. Each is that of one CA of the bundle."""
    without_crl: tuple[str, ...] = ()
    """Names of CAs that publish no list. Any other CA without a list is an error."""
    authority: Path | None = None
    """The directory of the CA that issued `certificate`, if it is on this machine: it renews it. Otherwise whoever
    issued it replaces the files, and they are taken up."""


class Tls:
    """The TLS side of a service: make it, serve with `context`, ask `peers`, run the two `keep_…` for ever."""

    def __init__(self, pki: Pki) -> None:
        try:
            cas = read_cas(pki.ca.read_bytes())
        except (OSError, Malformed) as error:
            why = error.brief if isinstance(error, Malformed) else (error.strerror or str(error)).lower()
            raise HostFailure(
                f"reading the CAs in {pki.ca}: {why}",
                hint="pki.ca names a PEM file with the CAs whose callers are taken",
            ) from error
        self.revocations = Revocations(pki.crls, cas, pki.without_crl)
        self.peers = PeerReader(cas, self.revocations)
        self.context: ssl.SSLContext = server_context(pki.certificate, pki.key, pki.ca, self.peers.learn)
        self.certificate = ServerCertificate(self.context, pki.certificate, pki.key)
        self.ca_pem = ca_of(self.certificate.pair.cert_pem, pki.ca.read_bytes())
        """The CA of that certificate; empty where it is not known here."""
        self._renewer = AuthorityRenewer(pki.authority) if pki.authority is not None else None

    async def keep_certificate(self) -> None:
        """For ever."""
        await keep_certificate(self.certificate, self._renewer)

    async def keep_revocations(self) -> None:
        """For ever: take up new revocation lists."""
        while True:
            await asyncio.to_thread(self.revocations.look_again)
            await asyncio.sleep(LISTS_EVERY_S)


async def keep_certificate(
    certificate: ServerCertificate,
    renewer: Renewer | None,
    *,
    now: Callable[[], datetime] = clock.now,
    sleep: Sleep = asyncio.sleep,
) -> None:
    """For ever: take up what is new on disk, renew what is past half of its life.

    What can go wrong with files and renewers is logged and tried again; the certificate that is in use serves on.
    """
    keeper = _Keeper(certificate, renewer, now)
    while True:
        await keeper.look()
        await sleep(LOOK_EVERY_S)


class _Keeper:
    def __init__(
        self, certificate: ServerCertificate, renewer: Renewer | None, now: Callable[[], datetime]
    ) -> None:
        self._certificate = certificate
        self._renewer = renewer
        self._now = now
        self._failures = 0
        self._looks_to_skip = 0
        self._unusable = ""
        """What is wrong with the files, as it was last logged."""

    async def look(self) -> None:
        if await self._take_up() and self._is_due():
            await self._renew()

    async def _take_up(self) -> bool:
        """Whether the files on disk are what is served with."""
        try:
            fresh = await asyncio.to_thread(self._certificate.read_if_changed)
        except HostFailure as error:
            if error.brief != self._unusable:
                self._unusable = error.brief
                log.warning("%s; %s", error.brief, error.hint)
            return False
        self._unusable = ""
        if fresh is not None:
            self._certificate.take_up(fresh)
            until = fresh.validity.not_after
            log.info("serving with certificate %s, which ends at %s", self._certificate.cert_path, until)
        return True

    def _is_due(self) -> bool:
        if not self._certificate.validity.past_half(self._now()):
            self._failures = self._looks_to_skip = 0
            return False
        if self._looks_to_skip > 0:
            self._looks_to_skip -= 1
            return False
        return True

    async def _renew(self) -> None:
        if self._renewer is None:
            self._looks_to_skip = REMIND_LOOKS
            self._complain("nobody renews it here: its issuer replaces the files")
            return
        try:
            fresh = await renewed(self._renewer, self._certificate.pair)
            await asyncio.to_thread(
                files.write_durably, self._certificate.cert_path, fresh.cert_pem, mode=0o644
            )
        except AtollError as error:
            self._looks_to_skip = min(RETRY_LOOKS << self._failures, MAX_RETRY_LOOKS)
            self._failures = min(self._failures + 1, 16)
            self._complain(f"renewing it failed: {error.brief}")
            return
        log.info("renewed certificate %s until %s", self._certificate.cert_path, fresh.validity.not_after)
        await self._take_up()

    def _complain(self, why: str) -> None:
        ends = self._certificate.validity.not_after
        level = (
            logging.ERROR if ends - self._now() < self._certificate.validity.lifetime / 4 else logging.WARNING
        )
        log.log(level, "certificate %s ends at %s, and %s", self._certificate.cert_path, ends, why)
