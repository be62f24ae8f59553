"""Invitations of a CA: a certificate for whoever brings the secret first, with a key of their own. Touches its files.

    DIRECTORY/invitations/<id>.json    one that nobody has used: what the certificate will say, and a hash of the secret

Who they are for is written here, by whoever owns the CA; those who bring a secret cannot change it. Using one removes
it. Wrong, used, withdrawn and expired ones are not told apart.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from datetime import datetime, timedelta
from pathlib import Path

import msgspec
from msgspec import Struct

from atoll.api.joining import ID_PATTERN
from atoll.errors import AtollError, Conflict, Denied, HostFailure, Invalid
from atoll.identity.certificates import check_leaf_lifetime
from atoll.identity.claims import Claims
from atoll.system import files

MAX_OPEN = 1000
MAX_VALID_FOR = timedelta(days=7)
MAX_RECORD = 64 << 10
ID_BYTES, SECRET_BYTES = 8, 24


class Invitation(Struct, frozen=True):
    id: str
    secret_sha256: str
    claims: Claims
    lifetime_s: int
    """Of the certificate."""
    made_at: datetime
    expires_at: datetime


class Invitations:
    """Those of the CA in a directory. Whoever adds or takes one holds the lock of that directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory / "invitations"

    def add(
        self, claims: Claims, lifetime: timedelta, valid_for: timedelta, now: datetime
    ) -> tuple[Invitation, bytes]:
        """A new one, and its secret, which is kept nowhere."""
        if not timedelta(0) < valid_for <= MAX_VALID_FOR:
            raise Invalid("for", str(valid_for), f"must be more than 0 and at most {MAX_VALID_FOR.days} days")
        check_leaf_lifetime(lifetime)
        files.make_dirs(self._directory)
        if len(self.all(now)) >= MAX_OPEN:
            raise Conflict(
                f"inviting {claims.subject}: {MAX_OPEN} invitations are open already",
                hint="they end by themselves; or withdraw some with: atoll remote withdraw",
            )
        secret = secrets.token_bytes(SECRET_BYTES)
        made = Invitation(
            secrets.token_hex(ID_BYTES),
            _hash(secret),
            claims,
            int(lifetime.total_seconds()),
            now,
            now + valid_for,
        )
        files.write_durably(self._path(made.id), msgspec.json.encode(made))
        return made, secret

    def check(self, invitation_id: str, secret: bytes, now: datetime) -> Invitation:
        """The one that this is the secret of; or Denied, whatever is wrong with it."""
        found = self._read(self._path(invitation_id)) if re.fullmatch(ID_PATTERN, invitation_id) else None
        is_right = hmac.compare_digest(_hash(secret), found.secret_sha256 if found is not None else "")
        if found is None or not is_right or now >= found.expires_at:
            raise not_valid()
        return found

    def take(self, invitation_id: str, secret: bytes, now: datetime) -> Invitation:
        """`check`, and from now on it is used, whatever happens next."""
        found = self.check(invitation_id, secret, now)
        self._remove(found.id)
        return found

    def all(self, now: datetime) -> list[Invitation]:
        """Those that can be used, in the order in which they end. What is over is removed."""
        found: list[Invitation] = []
        for path in self._directory.glob("*.json"):
            invitation = self._read(path)
            if invitation is not None and invitation.expires_at > now:
                found.append(invitation)
            else:
                path.unlink(missing_ok=True)
        return sorted(found, key=lambda invitation: (invitation.expires_at, invitation.id))

    def withdraw(self, invitation_id: str) -> None:
        """Gone is fine."""
        if re.fullmatch(ID_PATTERN, invitation_id):
            self._remove(invitation_id)

    def _remove(self, invitation_id: str) -> None:
        self._path(invitation_id).unlink(missing_ok=True)
        if self._directory.exists():
            files.sync_dir(self._directory)

    def _path(self, invitation_id: str) -> Path:
        return self._directory / f"{invitation_id}.json"

    def _read(self, path: Path) -> Invitation | None:
        try:
            return msgspec.json.decode(files.read_limited(path, MAX_RECORD), type=Invitation)
        except FileNotFoundError:
            return None
        except (msgspec.MsgspecError, AtollError):
            return None  # half of one, or one of another version: nobody can use it
        except OSError as error:
            raise HostFailure(f"reading {path}: {(error.strerror or str(error)).lower()}") from None


def not_valid() -> Denied:
    return Denied(
        "the token is not valid: it is wrong, was used already, or its time is over",
        hint="ask for another one: atoll remote invite, on the machine of the cloud",
    )


def _hash(secret: bytes) -> str:
    return hashlib.sha256(secret).hexdigest()
