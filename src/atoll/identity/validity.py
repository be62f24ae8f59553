"""From when until when a certificate holds. Pure; without `cryptography`, so that commands start fast."""

from __future__ import annotations

import binascii
import re
from datetime import datetime, timedelta

from msgspec import Struct

from atoll.errors import Malformed
from atoll.identity import der

_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----\s(.*?)-----END CERTIFICATE-----", re.DOTALL)
_VERSION = 0xA0


class Validity(Struct, frozen=True):
    not_before: datetime
    not_after: datetime

    @property
    def lifetime(self) -> timedelta:
        return self.not_after - self.not_before

    def past_half(self, now: datetime) -> bool:
        """More than half of its life is over: time to renew, with as much time left for that to fail."""
        return now - self.not_before > self.not_after - now

    def over(self, now: datetime) -> bool:
        return now > self.not_after


def of_pem(pem: bytes) -> Validity:
    """The validity of the first certificate in these bytes."""
    found = _PEM.search(pem)
    if not found:
        raise Malformed("reading a certificate: no PEM certificate in it")
    try:
        return of_der(binascii.a2b_base64(found[1]))
    except binascii.Error as error:
        raise Malformed(f"reading a certificate: {error}".lower()) from None


def of_der(certificate: bytes) -> Validity:
    body = next(der.children(certificate, der.whole(certificate, der.SEQUENCE)), None)
    fields = list(der.children(certificate, body)) if body and body.tag == der.SEQUENCE else []
    if fields and fields[0].tag == _VERSION:
        del fields[0]
    if len(fields) < 4 or fields[3].tag != der.SEQUENCE:
        raise Malformed("reading a certificate: it has no validity")
    times = [_time(certificate, field) for field in der.children(certificate, fields[3])]
    if len(times) != 2:
        raise Malformed("reading a certificate: its validity is not two times")
    return Validity(times[0], times[1])


def _time(data: bytes, field: der.Element) -> datetime:
    text = data[field.start : field.end].decode("ascii", errors="replace")
    if field.tag == der.UTC_TIME and len(text) == 13:
        # RFC 5280: two-digit years from 50 are of the last century.
        text = ("19" if text[:2] >= "50" else "20") + text
    elif field.tag != der.GENERALIZED_TIME:
        raise Malformed("reading a certificate: its validity holds something else than times")
    if not re.fullmatch(r"[0-9]{14}Z", text):
        raise Malformed(f"reading a certificate: {text[:30]!r} is not a time")
    try:
        # Not strptime, which is a module of its own to load.
        return datetime.fromisoformat(f"{text[:8]}T{text[8:]}")
    except ValueError:
        raise Malformed(f"reading a certificate: {text[:30]!r} is not a time") from None
