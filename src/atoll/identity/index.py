"""What an authority has issued and revoked: files of one record a line. Reads and writes those files.

A record is added at the end, so that the ten thousandth costs what the first did. Half a line, which a crash
leaves, is no record: nobody was given what it is about.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path

import msgspec
from msgspec import Struct

from atoll.errors import HostFailure
from atoll.identity.claims import Kind
from atoll.system import files


class IssuedRecord(Struct, frozen=True, tag="issued", tag_field="event"):
    """One certificate. Its serial is in hexadecimal, as `openssl x509` shows it."""

    serial: str
    kind: Kind
    subject: str
    not_before: datetime
    not_after: datetime
    names: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    limit: tuple[str, ...] | None = None
    revoked_at: datetime | None = None


class RevokedRecord(Struct, frozen=True, tag="revoked", tag_field="event"):
    """`not_after` is the certificate's: from then on the revocation list need not name it."""

    serial: str
    revoked_at: datetime
    not_after: datetime


Record = IssuedRecord | RevokedRecord

KEPT_FOR = timedelta(days=90)
"""How long the end of a certificate is remembered."""
PRUNED_ABOVE_BYTES = 4 << 20

_DECODER: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)


def format_serial(serial: int) -> str:
    digits = f"{serial:x}"
    return digits if len(digits) % 2 == 0 else f"0{digits}"


def fold(records: Iterable[Record]) -> tuple[dict[str, IssuedRecord], dict[str, RevokedRecord]]:
    """By serial: what was issued, marked where it was revoked, and all revocations."""
    issued: dict[str, IssuedRecord] = {}
    revoked: dict[str, RevokedRecord] = {}
    for record in records:
        if isinstance(record, IssuedRecord):
            issued[record.serial] = record
        else:
            revoked.setdefault(record.serial, record)
    for serial, record in revoked.items():
        if serial in issued:
            issued[serial] = msgspec.structs.replace(issued[serial], revoked_at=record.revoked_at)
    return issued, revoked


def encode(records: Iterable[Record]) -> bytes:
    return b"".join(msgspec.json.encode(record) + b"\n" for record in records)


class Index:
    """One file. Callers hold the authority's lock while they add or prune."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def records(self) -> list[Record]:
        found: list[Record] = []
        for number, line in enumerate(self._lines(), start=1):
            try:
                found.append(_DECODER.decode(line))
            except msgspec.DecodeError as error:
                raise HostFailure(
                    f"reading {self.path}: line {number} is not a record",
                    hint="restore the file from a backup, or remove that line",
                ) from error
        return found

    def add(self, *records: Record) -> None:
        files.append_lines(self.path, encode(records))

    def prune(self, now: datetime) -> bool:
        """Forget certificates that ended long ago, once they are about half of a large file. Whether it did."""
        if not self._is_half_past(now):
            return False
        kept = [line for line in self._lines() if not _is_past(line, now)]
        files.write_durably(self.path, b"".join(kept))
        return True

    def _is_half_past(self, now: datetime) -> bool:
        """Records are in the order of issue: the one in the middle speaks for those before it."""
        try:
            size = self.path.stat().st_size
            if size < PRUNED_ABOVE_BYTES:
                return False
            with self.path.open("rb") as file:
                file.seek(size // 2)
                file.readline()
                return _is_past(file.readline(), now)
        except FileNotFoundError:
            return False

    def _lines(self) -> list[bytes]:
        """Whole ones, with their ends."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return []
        return content[: content.rfind(b"\n") + 1].splitlines(keepends=True)


def _is_past(line: bytes, now: datetime) -> bool:
    try:
        return _DECODER.decode(line).not_after < now - KEPT_FOR
    except msgspec.DecodeError:
        return False
