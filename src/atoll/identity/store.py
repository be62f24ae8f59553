"""A certificate and its key on disk, kept fresh: the administrator's, the agent's. Touches those files.

Checking costs a command a millisecond; `cryptography` is loaded only when something has to be issued.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from atoll.errors import AtollError, Invalid, Malformed, Unauthenticated
from atoll.identity import validity
from atoll.system import files

if TYPE_CHECKING:
    from atoll.identity.authority import Authority, Issued
    from atoll.identity.certificates import Key
    from atoll.identity.claims import Claims


class Outcome(StrEnum):
    KEPT = "kept"
    RENEWED = "renewed"
    """A new certificate for the same key."""
    ISSUED = "issued"
    """A certificate that is not just a newer one; the key is new where there was none, or it was revoked."""


class Credential(Struct, frozen=True):
    """Where a certificate, its key and the CA to trust are."""

    cert: Path
    key: Path
    ca: Path


def client_credential(directory: Path) -> Credential:
    return Credential(directory / "user.pem", directory / "user.key", directory / "ca.pem")


def server_credential(directory: Path) -> Credential:
    return Credential(directory / "server.pem", directory / "server.key", directory / "ca.pem")


def ensure(
    credential: Credential, authority: Authority, claims: Claims, lifetime: timedelta, now: datetime
) -> Outcome:
    """Afterwards there is a certificate of this CA with these claims and at least half of its life ahead.

    A key that is good stays: then one file is replaced, and a crash leaves a pair that belongs together.
    """
    files.make_dirs(credential.cert.parent)
    if _read(credential.ca) != authority.cert_pem:
        files.write_durably(credential.ca, authority.cert_pem, mode=0o644)
    if not _fits(credential, authority, claims, now):
        _issue(credential, authority, claims, lifetime)
        return Outcome.ISSUED
    return renew_if_past_half_life(credential, lambda: authority, now)


def renew_if_past_half_life(
    credential: Credential, open_authority: Callable[[], Authority], now: datetime
) -> Outcome:
    """For every command: the CA is opened only when it is time. Only the certificate's file is replaced.

    Where the CA is out of reach, a certificate that still holds is good enough. One that has expired is an
    error here, because a server only hangs up on it.
    """
    try:
        pem = credential.cert.read_bytes()
    except OSError as error:
        raise Unauthenticated(
            f"reading the certificate {credential.cert}: {error.strerror}",
            hint="atoll up makes one; run as the user that owns it",
        ) from error
    held = validity.of_pem(pem)
    if not held.past_half(now):
        return Outcome.KEPT
    try:
        renewed = open_authority().renew(pem)
    except AtollError as error:
        if held.over(now):
            raise Unauthenticated(
                f"the certificate {credential.cert} expired at {held.not_after:%Y-%m-%d %H:%M}Z"
                f" and could not be renewed: {error.brief}",
                hint=error.hint or "ask an operator for a new one: atoll ca issue user",
            ) from error
        return Outcome.KEPT
    files.write_durably(credential.cert, renewed.cert_pem, mode=0o644)
    return Outcome.RENEWED


def replace(credential: Credential, issued: Issued) -> None:
    """A new certificate and its new key in the place of the old ones, which are good until the new ones are whole.

    Two files cannot be replaced at once. The new key is written beside the old one, then the certificate is replaced,
    then the key: whoever finds them in between has all that is needed to go on, see `finish_replacing`.
    """
    _write_like(credential.key, _next(credential.key), issued.key_pem, 0o600)
    _write_like(credential.cert, _next(credential.cert), issued.cert_pem, 0o644)
    _next(credential.cert).replace(credential.cert)
    files.sync_dir(credential.cert.parent)
    finish_replacing(credential)


def finish_replacing(credential: Credential) -> bool:
    """Go on with a replacement that was broken off, or take it back. Whether there was one. Again is fine."""
    key, fresh = credential.key, _next(credential.key)
    if not fresh.exists():
        return False
    if belong_together(credential.cert, fresh):
        fresh.replace(key)
    else:
        fresh.unlink()
    with contextlib.suppress(FileNotFoundError):
        _next(credential.cert).unlink()
    files.sync_dir(key.parent)
    return True


def _next(path: Path) -> Path:
    return path.with_name(f"{path.name}.next")


def _write_like(old: Path, path: Path, data: bytes, mode: int) -> None:
    """A file that belongs to whom the old one belongs, also where root writes it."""
    files.write_durably(path, data, mode=mode)
    owner = old.stat()
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        written = os.fstat(descriptor)
        # The directory may be somebody else's, who could put another file in its place.
        ours = stat.S_ISREG(written.st_mode) and written.st_nlink == 1 and written.st_uid == os.geteuid()
        if ours and (owner.st_uid, owner.st_gid) != (written.st_uid, written.st_gid):
            os.fchown(descriptor, owner.st_uid, owner.st_gid)
    finally:
        os.close(descriptor)


def belong_together(cert: Path, key: Path) -> bool:
    from atoll.identity.tls import Pair

    try:
        Pair(_read(cert), _read(key)).check()
    except AtollError:
        return False
    return True


def _issue(credential: Credential, authority: Authority, claims: Claims, lifetime: timedelta) -> None:
    key = _key_to_keep(credential, authority)
    if key is not None:
        certified = authority.certify(claims, key.public_key(), lifetime)
        files.write_durably(credential.cert, certified.cert_pem, mode=0o644)
        return
    issued = authority.issue(claims, lifetime)
    files.write_durably(credential.key, issued.key_pem)
    files.write_durably(credential.cert, issued.cert_pem, mode=0o644)


def _key_to_keep(credential: Credential, authority: Authority) -> Key | None:
    from atoll.identity import certificates

    try:
        key = certificates.key_from_pem(_read(credential.key))
    except Malformed:
        return None
    try:
        certificate = certificates.from_pem(_read(credential.cert))
    except Malformed:
        return key
    ours = certificates.issued_by(certificate, authority.certificate)
    return None if ours and authority.is_revoked(certificate.serial_number) else key


def _fits(credential: Credential, authority: Authority, claims: Claims, now: datetime) -> bool:
    from atoll.identity import certificates
    from atoll.identity.contents import Contents

    cert_pem, key_pem = _read(credential.cert), _read(credential.key)
    try:
        certificate = certificates.from_pem(cert_pem)
        return (
            certificates.key_from_pem(key_pem).public_key() == certificates.public_key(certificate)
            and certificates.issued_by(certificate, authority.certificate)
            and not authority.is_revoked(certificate.serial_number)
            and Contents(certificate).claims() == claims
            and now <= certificate.not_valid_after_utc
        )
    except (Malformed, Invalid):
        return False


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
