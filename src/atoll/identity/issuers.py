"""Where a node gets certificates for the roles of its VMs. Effects: a signer process, or HTTPS.

Issuers are given public keys and give certificates back. What a node shows them for that right stays with the
node: no guest sees it.
"""

from __future__ import annotations

import asyncio
import ssl
import sys
from collections.abc import Mapping
from copy import copy
from datetime import datetime, timedelta
from pathlib import Path
from typing import Protocol, runtime_checkable

import aiohttp
import msgspec
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    SSHCertificate,
    load_ssh_public_identity,
)
from msgspec import Struct

from atoll.errors import Denied, HostFailure, Malformed
from atoll.identity import certificates, contents, tls
from atoll.identity.https import TIMEOUT_S, fetch
from atoll.identity.roles import (
    LIFETIME,
    Algorithm,
    Certificates,
    KeyPair,
    PublicKeys,
    RoleCallers,
    RoleCredentials,
)
from atoll.identity.signer import Answer, Asked, Request
from atoll.model.long_lived import LongLivedCredential
from atoll.model.vm import check_role
from atoll.system import processes


class RoleIssuer(Protocol):
    """Every method may be called again: certificates are new each time."""

    async def issue(self, role: str, holder: str, keys: Mapping[Algorithm, PublicKeys]) -> Answer:
        """Certificates of a role for keys that `holder`, a VM, is given."""
        ...


@runtime_checkable
class ShowsCredentials(Protocol):
    """An issuer that can be asked with a role's own credential."""

    def showing(self, credential: LongLivedCredential) -> RoleIssuer:
        """The same issuer, which is shown this and nothing of the node's."""
        ...


class AuthorityIssuer:
    """The small CA on this machine. Its key is read by a signer process, never by this one."""

    def __init__(self, directory: Path, lifetime: timedelta = LIFETIME) -> None:
        self._directory = directory
        self._lifetime = lifetime

    async def issue(self, role: str, holder: str, keys: Mapping[Algorithm, PublicKeys]) -> Answer:
        request = Request(role, holder, dict(keys), int(self._lifetime.total_seconds()))
        return msgspec.json.decode(await ask_signer(self._directory, request), type=Answer)


async def ask_signer(directory: Path, request: Asked) -> bytes:
    """What a signer process makes of it, with the CA in a directory of this machine."""
    done = await processes.run(
        (sys.executable, "-m", "atoll.identity.signer", str(directory)),
        stdin=msgspec.json.encode(request),
        timeout_s=TIMEOUT_S,
    )
    return done.stdout


class HttpsService(Struct, frozen=True):
    """Where to ask, whom to believe, and what to show. `{role}` in a path stands for the role."""

    url: str
    ca: Path
    certificate: Path | None = None
    key: Path | None = None


class HttpsIssuer:
    """Keymaster, or what speaks like it: `POST /certgen/<role>?type=x509|ssh`, the public key as a file.

    It gives roles names of its own. A VM gets none by which this node would take it for a person.
    """

    def __init__(self, service: HttpsService, callers: RoleCallers) -> None:
        self._service = service
        self._callers = callers
        self._shown: LongLivedCredential | None = None

    def showing(self, credential: LongLivedCredential) -> HttpsIssuer:
        issuer = copy(self)
        issuer._shown = credential
        return issuer

    async def issue(self, role: str, holder: str, keys: Mapping[Algorithm, PublicKeys]) -> Answer:
        made = {
            algorithm: Certificates(
                await self._ask(role, {"type": "x509", "addGroups": "true"}, public.pem),
                await self._ask(role, {"type": "ssh"}, public.ssh),
            )
            for algorithm, public in keys.items()
        }
        for each in made.values():
            self._check_is_role(role, contents.subject(certificates.from_pem(each.x509.encode())))
        return Answer(made, ca="", ssh_ca="")

    def _check_is_role(self, role: str, user: str) -> None:
        if self._callers.role_of(user) is None:
            raise Denied(
                f"{self._service.url} gave role {role} the name {user[:64]!r}, which is not one of a role here",
                hint="name it, or a pattern of such names, in the setting role_callers.users",
            )

    async def _ask(self, role: str, query: dict[str, str], public: str) -> str:
        service = self._service
        what = f"asking {service.url} for a certificate of role {role}"
        if self._shown is not None:
            what += " with the credential that the VM was given"
        form = aiohttp.FormData()
        form.add_field("pubkeyfile", public.encode(), filename="key.pub")
        answer = await fetch(
            what,
            await asyncio.to_thread(self._context, role),
            "POST",
            f"{service.url.rstrip('/')}/certgen/{check_role(role)}",
            query=query,
            form=form,
        )
        return answer.decode(errors="replace")

    def _context(self, role: str) -> ssl.SSLContext:
        """What is shown. Read anew each time: whoever renews the node's certificate replaces its file."""
        service, shown = self._service, self._shown
        if shown is not None:
            return tls.memory_client_context(service.ca, shown.certificate.encode(), shown.key.encode())
        return tls.client_context(
            service.ca, _for_role(service.certificate, role), _for_role(service.key, role)
        )


async def issue(
    issuer: RoleIssuer, role: str, holder: str, keys: Mapping[Algorithm, KeyPair], now: datetime
) -> RoleCredentials:
    """What an issuer gives, after a look at it: for our keys, and good now."""
    answer = await issuer.issue(role, holder, {algorithm: pair.public for algorithm, pair in keys.items()})
    ends = [
        _end(algorithm, answer.certificates.get(algorithm), pair.public, now)
        for algorithm, pair in keys.items()
    ]
    return RoleCredentials(
        role, keys, answer.certificates, now, min(ends), ca=answer.ca, ssh_ca=answer.ssh_ca
    )


def _end(algorithm: Algorithm, made: Certificates | None, public: PublicKeys, now: datetime) -> datetime:
    """When the first of these certificates ends."""
    if made is None:
        raise HostFailure(f"the issuer gave no {algorithm} certificates")
    x509 = certificates.from_pem(made.x509.encode())
    pem = certificates.public_key(x509).public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    ssh = ssh_certificate(made.ssh)
    line = ssh.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    if pem.decode() != public.pem or line != public.ssh:
        raise HostFailure(f"the issuer gave {algorithm} certificates for another key")
    end = min(x509.not_valid_after_utc, _moment(ssh.valid_before, x509.not_valid_after_utc))
    if end <= now:
        raise HostFailure(
            f"the issuer gave {algorithm} certificates that have ended", hint="check the clocks"
        )
    return end


def ssh_certificate(line: str) -> SSHCertificate:
    try:
        found = load_ssh_public_identity(line.encode())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise Malformed("reading an SSH certificate: not one line of an OpenSSH certificate") from error
    if not isinstance(found, SSHCertificate):
        raise Malformed("reading an SSH certificate: it is a bare key")
    return found


def _moment(seconds: int, latest: datetime) -> datetime:
    """SSH writes "for ever" as a number that is no date."""
    if seconds >= int(latest.timestamp()):
        return latest
    return datetime.fromtimestamp(seconds, latest.tzinfo)


def _for_role(path: Path | None, role: str) -> Path | None:
    return Path(str(path).replace("{role}", check_role(role))) if path is not None else None
