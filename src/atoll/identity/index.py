"""What an authority has issued and revoked: `issued.jsonl`, one record a line, only ever added to.

Reads and writes that file. Each addition replaces the file at once, so that there is never half a line.
"""

from __future__ import annotations

from datetime import datetime
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
    revoked_at: datetime | None = None


class RevokedRecord(Struct, frozen=True, tag="revoked", tag_field="event"):
    """`not_after` is the certificate's: from then on the revocation list need not name it."""

    serial: str
    revoked_at: datetime
    not_after: datetime


Record = IssuedRecord | RevokedRecord

_DECODER: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)


def format_serial(serial: int) -> str:
    digits = f"{serial:x}"
    return digits if len(digits) % 2 == 0 else f"0{digits}"


def fold(records: list[Record]) -> tuple[dict[str, IssuedRecord], dict[str, RevokedRecord]]:
    """By serial: what was issued, marked where it was revoked, and all revocations."""
    issued = {record.serial: record for record in records if isinstance(record, IssuedRecord)}
    revoked = {record.serial: record for record in records if isinstance(record, RevokedRecord)}
    for serial, record in revoked.items():
        if serial in issued:
            issued[serial] = msgspec.structs.replace(issued[serial], revoked_at=record.revoked_at)
    return issued, revoked


class Index:
    """The file. Callers hold the authority's lock while they add."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def records(self) -> list[Record]:
        found: list[Record] = []
        for number, line in enumerate(self._content().splitlines(), start=1):
            try:
                found.append(_DECODER.decode(line))
            except msgspec.DecodeError as error:
                raise HostFailure(
                    f"reading {self.path}: line {number} is not a record",
                    hint="restore the file from a backup, or remove that line",
                ) from error
        return found

    def add(self, *records: Record) -> None:
        lines = b"".join(msgspec.json.encode(record) + b"\n" for record in records)
        files.write_durably(self.path, self._content() + lines)

    def _content(self) -> bytes:
        try:
            return self.path.read_bytes()
        except FileNotFoundError:
            return b""
