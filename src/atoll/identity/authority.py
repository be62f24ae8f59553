"""The small CA: a directory with its key, what it issued and what it revoked.

Touches its directory (0700, key 0600) and the clock. The signing key is read to sign and never handed out.
A lock makes processes wait for each other.

    ca.pem          the certificate; exists only when the authority is complete
    ca.key          the signing key
    crl.pem         the revocation list that servers read
    issued.jsonl    every certificate issued
    revoked.jsonl   every revocation; kept apart, so that asking for one does not read all that was issued
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ed25519
from msgspec import Struct

from atoll.errors import Conflict, Denied, HostFailure, NotFound
from atoll.identity import certificates, revocation_list
from atoll.identity.certificates import Key, KeyKind
from atoll.identity.claims import Claims, Kind, server_claims, service_claims, user_claims
from atoll.identity.contents import Contents
from atoll.identity.index import Index, IssuedRecord, RevokedRecord, encode, fold, format_serial
from atoll.system import clock, files

_LOCK_WAIT_S = 10.0
_LOCK_POLL_S = 0.02

Clock = Callable[[], datetime]


class Certified(Struct, frozen=True):
    cert_pem: bytes
    serial: str
    not_after: datetime


class Issued(Certified, frozen=True):
    """A certificate with its new private key, which exists nowhere else."""

    key_pem: bytes

    def __repr__(self) -> str:
        return f"Issued(serial={self.serial!r}, not_after={self.not_after!r})"


class Authority:
    """One CA on disk. `create`, `open` and `ensure` are the ways to get one."""

    def __init__(self, directory: Path, certificate: x509.Certificate, now: Clock) -> None:
        self.directory = directory
        self.certificate = certificate
        self._now = now
        self._issued = Index(directory / "issued.jsonl")
        self._revoked = Index(directory / "revoked.jsonl")

    @classmethod
    def create(
        cls,
        directory: Path,
        name: str,
        *,
        key_kind: KeyKind = KeyKind.P256,
        lifetime: timedelta = certificates.CA_LIFETIME,
        now: Clock = clock.now,
    ) -> Self:
        """A new CA. What an earlier attempt that died left behind is replaced; a whole CA never is."""
        key = certificates.make_key(key_kind)
        certificate = certificates.issue_ca(
            name, key, serial=x509.random_serial_number(), now=now(), lifetime=lifetime
        )
        files.make_dirs(directory)
        with locked(directory):
            if _cert_path(directory).exists():
                raise Conflict(
                    f"creating a CA in {directory}: there is one already",
                    hint="choose another directory; a CA in use cannot be replaced",
                )
            authority = cls(directory, certificate, now)
            files.write_durably(authority._key_path, certificates.key_to_pem(key))
            files.write_durably(authority._revoked.path, b"")
            authority._write_crl(key, {})
            files.write_durably(authority.cert_path, certificates.to_pem(certificate), mode=0o644)
        return authority

    @classmethod
    def open(cls, directory: Path, *, now: Clock = clock.now) -> Self:
        """The CA that is there. Finishes a revocation that was recorded and not yet published."""
        try:
            certificate = certificates.from_pem(_cert_path(directory).read_bytes())
        except FileNotFoundError:
            raise NotFound(f"opening the CA in {directory}: there is none", hint="atoll ca init") from None
        except OSError as error:
            raise HostFailure(
                f"opening the CA in {directory}: {error.strerror}", hint="run as the user that owns it"
            ) from error
        authority = cls(directory, certificate, now)
        authority._separate_revocations()
        authority._publish_what_is_missing()
        return authority

    @classmethod
    def ensure(cls, directory: Path, name: str, *, now: Clock = clock.now) -> Self:
        """The CA that is there, or a new one."""
        with contextlib.suppress(NotFound):
            return cls.open(directory, now=now)
        try:
            return cls.create(directory, name, now=now)
        except Conflict:
            return cls.open(directory, now=now)  # another process was faster

    @property
    def cert_path(self) -> Path:
        return _cert_path(self.directory)

    @property
    def crl_path(self) -> Path:
        return self.directory / "crl.pem"

    @property
    def _key_path(self) -> Path:
        return self.directory / "ca.key"

    @property
    def cert_pem(self) -> bytes:
        return certificates.to_pem(self.certificate)

    def crl_pem(self) -> bytes:
        return self.crl_path.read_bytes()

    def issue_user(
        self,
        user: str,
        groups: Sequence[str] = (),
        methods: Sequence[str] = (),
        lifetime: timedelta = certificates.USER_LIFETIME,
        key_kind: KeyKind = KeyKind.P256,
        limit: Sequence[str] | None = None,
    ) -> Issued:
        only = None if limit is None else tuple(limit)
        return self.issue(user_claims(user, tuple(groups), tuple(methods), only), lifetime, key_kind)

    def issue_server(
        self,
        names: Sequence[str],
        lifetime: timedelta = certificates.SERVER_LIFETIME,
        key_kind: KeyKind = KeyKind.P256,
    ) -> Issued:
        return self.issue(server_claims(tuple(names)), lifetime, key_kind)

    def issue_service(
        self,
        service: str,
        names: Sequence[str] = (),
        groups: Sequence[str] = (),
        methods: Sequence[str] = (),
        lifetime: timedelta = certificates.SERVICE_LIFETIME,
        key_kind: KeyKind = KeyKind.P256,
    ) -> Issued:
        claims = service_claims(service, tuple(names), tuple(groups), tuple(methods))
        return self.issue(claims, lifetime, key_kind)

    def issue(self, claims: Claims, lifetime: timedelta, key_kind: KeyKind = KeyKind.P256) -> Issued:
        key = certificates.make_key(key_kind)
        done = self.certify(claims, key.public_key(), lifetime)
        return Issued(done.cert_pem, done.serial, done.not_after, certificates.key_to_pem(key))

    def renew(self, cert_pem: bytes) -> Certified:
        """The same claims for the same key and as long a life, from now.

        The key stays, so that its holder replaces one file and never has a certificate and a key that differ.
        """
        old = certificates.from_pem(cert_pem)
        return self.certify(*self._to_state_again(old, certificates.public_key(old)))

    def renew_with_new_key(self, cert_pem: bytes) -> Issued:
        """The same claims and as long a life, from now, for a new key."""
        old = certificates.from_pem(cert_pem)
        is_ed25519 = isinstance(certificates.public_key(old), ed25519.Ed25519PublicKey)
        key = certificates.make_key(KeyKind.ED25519 if is_ed25519 else KeyKind.P256)
        done = self.certify(*self._to_state_again(old, key.public_key()))
        return Issued(done.cert_pem, done.serial, done.not_after, certificates.key_to_pem(key))

    def _to_state_again(
        self, old: x509.Certificate, key: certificates.PublicKey
    ) -> tuple[Claims, certificates.PublicKey, timedelta]:
        """What a renewal states: no more than the old certificate did, for no longer than is allowed now."""
        contents = Contents(old)
        self._check_ours(old, contents.subject)
        if self.is_revoked(old.serial_number):
            raise Denied(
                f"renewing the certificate {format_serial(old.serial_number)} of {contents.subject}: it was revoked",
                hint="issue a new one with: atoll ca issue",
            )
        if unknown := contents.not_understood:
            raise Denied(
                f"renewing the certificate of {contents.subject}: its critical extension {unknown} is not understood",
                hint="a newer version of atoll issued it: renew it with that",
            )
        lifetime = old.not_valid_after_utc - old.not_valid_before_utc - certificates.BACKDATE
        return contents.claims(), key, min(lifetime, certificates.MAX_LEAF_LIFETIME)

    def revoke(self, serial: int | str) -> IssuedRecord:
        """Again is fine. The serial is a number, or hexadecimal digits as `list_issued` shows them."""
        text = format_serial(serial) if isinstance(serial, int) else serial.lower().replace(":", "")
        with locked(self.directory):
            issued, _ = self._fold()
            if text not in issued:
                raise NotFound(
                    f"revoking certificate {text[:64]}: not issued by this CA", hint="see: atoll ca list"
                )
            self._revoke([(text, issued[text].not_after)])
            return self._fold()[0][text]

    def revoke_certificate(self, cert_pem: bytes) -> str:
        """Revoke by the certificate itself, also when the index has lost it. Returns its serial."""
        certificate = certificates.from_pem(cert_pem)
        self._check_ours(certificate, Contents(certificate).subject)
        serial = format_serial(certificate.serial_number)
        with locked(self.directory):
            self._revoke([(serial, certificate.not_valid_after_utc)])
        return serial

    def revoke_subject(self, subject: str) -> tuple[IssuedRecord, ...]:
        """Everything that still holds for this user, service or server."""
        with locked(self.directory):
            now = self._now()
            of_subject = [record for record in self._fold()[0].values() if record.subject == subject]
            if not of_subject:
                raise NotFound(f"revoking certificates of {subject}: none issued", hint="see: atoll ca list")
            holding = [r for r in of_subject if r.revoked_at is None and r.not_after > now]
            self._revoke([(record.serial, record.not_after) for record in holding])
            issued, _ = self._fold()
            return tuple(issued[record.serial] for record in holding)

    def list_issued(self, *, subject: str | None = None) -> tuple[IssuedRecord, ...]:
        """In the order of issue."""
        records = self._fold()[0].values()
        return tuple(record for record in records if subject is None or record.subject == subject)

    def is_revoked(self, serial: int) -> bool:
        return format_serial(serial) in self._revocations()

    def certify(self, claims: Claims, public_key: certificates.PublicKey, lifetime: timedelta) -> Certified:
        """A certificate for a key that somebody else holds."""
        with locked(self.directory):
            certificate = certificates.issue(
                claims,
                public_key,
                self.certificate,
                self._signing_key(),
                serial=x509.random_serial_number(),
                now=self._now(),
                lifetime=lifetime,
            )
            serial, not_after = format_serial(certificate.serial_number), certificate.not_valid_after_utc
            # Recorded first: a certificate that is not in the index could not be revoked by name.
            self._issued.prune(self._now())
            self._issued.add(
                IssuedRecord(
                    serial=serial,
                    kind=claims.kind,
                    subject=claims.subject,
                    not_before=certificate.not_valid_before_utc,
                    not_after=not_after,
                    names=claims.names,
                    groups=claims.groups,
                    methods=claims.methods,
                    limit=claims.limit,
                )
            )
        return Certified(certificates.to_pem(certificate), serial, not_after)

    def _signing_key(self) -> Key:
        try:
            return certificates.key_from_pem(self._key_path.read_bytes())
        except OSError as error:
            raise HostFailure(
                f"reading the signing key of the CA in {self.directory}: {error.strerror}",
                hint="run as the user that owns it",
            ) from error

    def _check_ours(self, certificate: x509.Certificate, subject: str) -> None:
        if not certificates.issued_by(certificate, self.certificate):
            raise Denied(
                f"the certificate of {subject or 'nobody'} is not one of the CA in {self.directory}",
                hint="use the CA that issued it",
            )
        if Contents(certificate).kind is Kind.CA:
            raise Denied("a CA can neither renew nor revoke itself", hint="make a new CA instead")

    def _fold(self) -> tuple[dict[str, IssuedRecord], dict[str, RevokedRecord]]:
        return fold([*self._issued.records(), *self._revoked.records()])

    def _revocations(self) -> dict[str, RevokedRecord]:
        return fold(self._revoked.records())[1]

    def _revoke(self, certificates_to_revoke: list[tuple[str, datetime]]) -> None:
        revoked = self._revocations()
        now = self._now()
        fresh = [RevokedRecord(s, now, until) for s, until in certificates_to_revoke if s not in revoked]
        if fresh:
            # The index first: `open` publishes what the list lacks, if we die in between.
            self._revoked.add(*fresh)
        if fresh or self._unpublished():
            self._write_crl(self._signing_key(), self._revocations())

    def _separate_revocations(self) -> None:
        """A CA of an earlier version has its revocations among what it issued."""
        if not self._revoked.path.exists():
            with locked(self.directory):
                if not self._revoked.path.exists():
                    found = fold(self._issued.records())[1].values()
                    files.write_durably(self._revoked.path, encode(found))

    def _publish_what_is_missing(self) -> None:
        if self._unpublished():
            with locked(self.directory):
                if self._unpublished():
                    self._write_crl(self._signing_key(), self._revocations())

    def _unpublished(self) -> bool:
        try:
            listed = revocation_list.read(self.crl_pem(), self.certificate)
        except (FileNotFoundError, revocation_list.BadList):
            return True
        wanted = revocation_list.worth_listing(self._revocations(), self._now())
        return not wanted.keys() <= {format_serial(serial) for serial in listed.serials}

    def _write_crl(self, key: Key, revoked: dict[str, RevokedRecord]) -> None:
        try:
            number = revocation_list.read(self.crl_pem(), self.certificate).number + 1
        except (FileNotFoundError, revocation_list.BadList):
            number = int(self._now().timestamp())  # larger than any that servers have seen
        pem = revocation_list.make(self.certificate, key, revoked, number=number, now=self._now())
        files.write_durably(self.crl_path, pem, mode=0o644)


def _cert_path(directory: Path) -> Path:
    return directory / "ca.pem"


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Alone in this directory, after waiting for those before."""
    deadline = time.monotonic() + _LOCK_WAIT_S
    with contextlib.ExitStack() as stack:
        while True:
            try:
                stack.enter_context(files.exclusive(directory / "lock"))
                break
            except Conflict:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_LOCK_POLL_S)
        yield
