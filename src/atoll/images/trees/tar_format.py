"""The tar format: headers to values, and back. Pure.

Read are ustar, GNU's long names and large numbers, and the records of POSIX.1-2001 ("pax"). Written is ustar, with such
records where something does not fit: the same member gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal, InvalidOperation

from msgspec import Struct

from atoll.errors import Malformed

BLOCK = 512
LONGEST_EXTRA = 1 << 20
"""Bytes of all extra headers of a member: long names, records. Attributes are the largest of them, 64 KiB at most."""

REGULAR, OLD_REGULAR, CONTIGUOUS = b"0", b"\0", b"7"
LINK, SYMLINK, CHARACTER, BLOCK_DEVICE, DIRECTORY, FIFO = b"1", b"2", b"3", b"4", b"5", b"6"
LONG_NAME, LONG_TARGET = b"L", b"K"
RECORDS, GLOBAL_RECORDS = b"x", b"g"
EXTRA = (LONG_NAME, LONG_TARGET, RECORDS, GLOBAL_RECORDS)
"""Headers that say more about the member that follows."""
GNU_SPARSE = b"S"

XATTR = "SCHILY.xattr."
SPARSE = "GNU.sparse."

_NAME, _MODE, _UID, _GID, _SIZE, _MTIME, _SUM = 0, 100, 108, 116, 124, 136, 148
_TYPE, _TARGET, _MAGIC, _MAJOR, _MINOR, _PREFIX = 156, 157, 257, 329, 337, 345


class Member(Struct, frozen=True, kw_only=True):
    """What a header says."""

    type: bytes
    name: bytes
    target: bytes = b""
    size: int = 0
    mode: int = 0
    uid: int = 0
    gid: int = 0
    mtime_ns: int = 0
    major: int = 0
    minor: int = 0
    xattrs: dict[str, bytes] = {}


def padded(size: int) -> int:
    """The bytes that so many take in an archive."""
    return -(-size // BLOCK) * BLOCK


def parse(block: bytes) -> Member:
    """A header, as it stands in the archive. Malformed when it is none."""
    if len(block) != BLOCK:
        raise Malformed("reading an archive: it is cut short", hint="fetch it again")
    total = sum(block[:_SUM]) + sum(block[_SUM + 8 :]) + 8 * 32
    if _number(block, _SUM, 8) != total:
        raise Malformed("reading an archive: a header has another sum than it says", hint="fetch it again")
    name = _text(block, _NAME, 100)
    kind = block[_TYPE : _TYPE + 1]
    if block[_MAGIC : _MAGIC + 6] == b"ustar\0" and (prefix := _text(block, _PREFIX, 155)):
        name = prefix + b"/" + name
    return Member(
        type=kind,
        name=name,
        target=_text(block, _TARGET, 100),
        size=_number(block, _SIZE, 12),
        mode=_number(block, _MODE, 8) & 0o7777,
        uid=_number(block, _UID, 8),
        gid=_number(block, _GID, 8),
        mtime_ns=_number(block, _MTIME, 12, signed=True) * 10**9,
        major=_number(block, _MAJOR, 8),
        minor=_number(block, _MINOR, 8),
    )


def parse_records(data: bytes) -> dict[str, bytes]:
    """The records of an extra header: `<length> <key>=<value>` and a line feed each."""
    records: dict[str, bytes] = {}
    at = 0
    while at < len(data) and data[at] != 0:
        blank = data.find(b" ", at, at + 12)
        digits = data[at:blank] if blank > 0 else b""
        end = at + int(digits) if digits.isdigit() else 0
        key, equals, value = data[blank + 1 : end - 1].partition(b"=")
        if end <= blank + 1 or end > len(data) or data[end - 1 : end] != b"\n" or not equals:
            raise Malformed("reading an archive: its records are damaged", hint="fetch it again")
        records[key.decode(errors="replace")] = value
        at = end
    return records


def with_records(member: Member, records: dict[str, bytes]) -> Member:
    """A member with what its records say instead of its header. Malformed where that is no number."""
    return Member(
        type=member.type,
        name=records.get("path", member.name),
        target=records.get("linkpath", member.target),
        size=_whole(records, "size", member.size),
        mode=member.mode,
        uid=_whole(records, "uid", member.uid),
        gid=_whole(records, "gid", member.gid),
        mtime_ns=_time(records, member.mtime_ns),
        major=_whole(records, "SCHILY.devmajor", member.major),
        minor=_whole(records, "SCHILY.devminor", member.minor),
        xattrs={key.removeprefix(XATTR): value for key, value in records.items() if key.startswith(XATTR)},
    )


def build(member: Member) -> bytes:
    """The headers of a member: one block, with records before it where it needs them."""
    records = dict(_needed_records(member))
    header = _header(
        member.type,
        _fitting(member.name, 100),
        _fitting(member.target, 100),
        0 if "size" in records else member.size,
        member.mode,
        0 if "uid" in records else member.uid,
        0 if "gid" in records else member.gid,
        max(0, member.mtime_ns // 10**9) if member.mtime_ns // 10**9 < 8**11 else 0,
        (member.major, member.minor),
    )
    if not records:
        return header
    data = b"".join(_record(key.encode(), records[key]) for key in sorted(records))
    extra = _header(
        RECORDS, b"./PaxHeaders/" + _fitting(member.name, 80), b"", len(data), 0o644, 0, 0, 0, (0, 0)
    )
    return extra + data + bytes(padded(len(data)) - len(data)) + header


def end() -> bytes:
    """What ends an archive."""
    return bytes(2 * BLOCK)


def _needed_records(member: Member) -> Iterator[tuple[str, bytes]]:
    if len(member.name) > 100 or not member.name.isascii():
        yield "path", member.name
    if len(member.target) > 100 or not member.target.isascii():
        yield "linkpath", member.target
    for key, number, most in (
        ("size", member.size, 8**11),
        ("uid", member.uid, 8**7),
        ("gid", member.gid, 8**7),
    ):
        if number >= most:
            yield key, str(number).encode()
    seconds, rest = divmod(member.mtime_ns, 10**9)
    if rest or not 0 <= seconds < 8**11:
        yield "mtime", _decimal(member.mtime_ns)
    for name, value in member.xattrs.items():
        yield XATTR + name, value


def _decimal(nanoseconds: int) -> bytes:
    sign, whole = ("-", -nanoseconds) if nanoseconds < 0 else ("", nanoseconds)
    return f"{sign}{whole // 10**9}.{whole % 10**9:09}".rstrip("0").rstrip(".").encode()


def _header(
    kind: bytes,
    name: bytes,
    target: bytes,
    size: int,
    mode: int,
    uid: int,
    gid: int,
    mtime: int,
    device: tuple[int, int],
) -> bytes:
    block = bytearray(BLOCK)
    block[_NAME : _NAME + len(name)] = name
    for at, width, value in (
        (_MODE, 8, mode),
        (_UID, 8, uid),
        (_GID, 8, gid),
        (_SIZE, 12, size),
        (_MTIME, 12, mtime),
        (_MAJOR, 8, device[0]),
        (_MINOR, 8, device[1]),
    ):
        block[at : at + width] = b"%0*o\0" % (width - 1, value)
    block[_TYPE : _TYPE + 1] = kind
    block[_TARGET : _TARGET + len(target)] = target
    block[_MAGIC : _MAGIC + 8] = b"ustar\x0000"
    block[_SUM : _SUM + 8] = b" " * 8
    block[_SUM : _SUM + 8] = b"%06o\0 " % sum(block)
    return bytes(block)


def _record(key: bytes, value: bytes) -> bytes:
    rest = len(key) + len(value) + 3
    length = rest + len(str(rest))
    if len(str(length)) > len(str(rest)):
        length += 1
    return b"%d %s=%s\n" % (length, key, value)


def _fitting(text: bytes, most: int) -> bytes:
    return text if len(text) <= most and text.isascii() else text[:most].decode("ascii", "ignore").encode()


def _text(block: bytes, at: int, width: int) -> bytes:
    return block[at : at + width].partition(b"\0")[0]


def _number(block: bytes, at: int, width: int, *, signed: bool = False) -> int:
    field = block[at : at + width]
    if field[0] & 0x80:  # GNU's: big-endian, all but the first bit
        if field[0] == 0xFF and signed:
            return int.from_bytes(field, "big", signed=True)
        return int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
    digits = field.replace(b"\0", b" ").strip()
    if digits and not all(0x30 <= digit <= 0x37 for digit in digits):
        raise Malformed("reading an archive: a header has a number that is none", hint="fetch it again")
    return int(digits or b"0", 8)


def _whole(records: dict[str, bytes], key: str, otherwise: int) -> int:
    value = records.get(key)
    if value is None:
        return otherwise
    if not value.isdigit() or len(value) > 20:
        raise Malformed(f"reading an archive: the record {key} is no number", hint="fetch it again")
    return int(value)


def _time(records: dict[str, bytes], otherwise: int) -> int:
    value = records.get("mtime")
    if value is None:
        return otherwise
    try:
        if len(value) > 40:
            raise InvalidOperation
        seconds = Decimal(value.decode("ascii"))
        if not seconds.is_finite() or abs(seconds) > 2**40:
            raise InvalidOperation
    except (InvalidOperation, UnicodeDecodeError):
        raise Malformed("reading an archive: the record mtime is no time", hint="fetch it again") from None
    return int((seconds * 10**9).to_integral_value(rounding="ROUND_FLOOR"))
