"""Brokers: who turns a role into credentials of a public cloud. Effects: HTTPS.

A broker is shown the role's own short-lived certificate; which role of the cloud that is, it decides.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec import Struct

from atoll.errors import Malformed
from atoll.identity import tls
from atoll.identity.https import fetch
from atoll.identity.roles import Algorithm, CloudCredential, RoleCredentials
from atoll.model.vm import check_role


class Broker(Protocol):
    """May be called again: credentials are new each time."""

    async def exchange(self, credentials: RoleCredentials, now: datetime) -> CloudCredential: ...


class StaticBroker:
    """Always the same: for tests, and for clouds that know no roles."""

    def __init__(self, credential: CloudCredential) -> None:
        self._credential = credential

    async def exchange(self, credentials: RoleCredentials, now: datetime) -> CloudCredential:
        return self._credential


class _Sts(Struct, frozen=True):
    """What AWS calls a set of session credentials."""

    access_key_id: str = msgspec.field(name="AccessKeyId")
    secret_access_key: str = msgspec.field(name="SecretAccessKey")
    expiration: datetime = msgspec.field(name="Expiration")
    token: str = msgspec.field(name="Token", default="")
    session_token: str = msgspec.field(name="SessionToken", default="")


class HttpsBroker:
    """`GET <url>/<role>` with the role's certificate; the answer is JSON as AWS writes it."""

    def __init__(self, url: str, ca: Path) -> None:
        self._url = url.rstrip("/")
        self._ca = ca

    async def exchange(self, credentials: RoleCredentials, now: datetime) -> CloudCredential:
        what = f"asking {self._url} for cloud credentials of role {credentials.role}"
        context = tls.memory_client_context(
            self._ca,
            credentials.certificates[Algorithm.RSA].x509.encode(),
            credentials.keys[Algorithm.RSA].private_pem,
        )
        answer = await fetch(what, context, "GET", f"{self._url}/{check_role(credentials.role)}")
        sts = _read(what, answer)
        if sts.expiration <= now:
            raise Malformed(f"{what}: they have ended at {sts.expiration}", hint="check the clocks")
        token = sts.token or sts.session_token
        return CloudCredential(sts.access_key_id, sts.secret_access_key, token, now, sts.expiration)


def _read(what: str, answer: bytes) -> _Sts:
    try:
        sts = msgspec.json.decode(answer, type=_Sts)
    except msgspec.MsgspecError:
        # Not what it says: the answer may hold half of a secret.
        raise Malformed(f"{what}: the answer is not a set of AWS credentials") from None
    if sts.expiration.tzinfo is None:
        raise Malformed(f"{what}: the time at which they end has no time zone")
    return sts
