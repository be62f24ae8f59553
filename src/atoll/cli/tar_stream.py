"""Tar archives as they come from a guest, which may be hostile: entries with their content, in order. Pure.

Understood are the forms that GNU tar and busybox write: ustar, GNU's long names, and of pax the path and link path.
Nothing is kept that could be long: names are bounded, content is passed on in pieces.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from atoll.errors import Malformed

BLOCK = 512
MOST_NAME = 4096
MOST_EXTRA = 64 << 10
"""Bytes of what an archive says about one entry beside its header."""

FILE, HARD_LINK, SYMLINK, DIRECTORY = "file", "hard link", "symlink", "directory"
_KINDS = {b"0": FILE, b"\0": FILE, b"7": FILE, b"1": HARD_LINK, b"2": SYMLINK, b"5": DIRECTORY}
_SPECIAL = {b"3": "character device", b"4": "block device", b"6": "fifo"}


class Entry(Struct, frozen=True):
    """What an archive says; nothing of it is believed to be harmless."""

    kind: str
    name: bytes
    mode: int
    size: int
    mtime: int
    target: bytes = b""


class Reader:
    """Fed with pieces of any size; gives entries, and for files their content as bytes after them."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._content = 0
        """Bytes of the entry's content that are still to come, and then its padding."""
        self._padding = 0
        self._extra: tuple[bytes, int] | None = None
        self._name = b""
        self._target = b""
        self.ended = False

    def feed(self, data: bytes) -> Iterator[Entry | bytes]:
        self._bytes += data
        while not self.ended:
            if self._content:
                piece = bytes(self._bytes[: self._content])
                del self._bytes[: len(piece)]
                self._content -= len(piece)
                if piece:
                    yield piece
                if self._content:
                    return
            if self._padding:
                skipped = min(self._padding, len(self._bytes))
                del self._bytes[:skipped]
                self._padding -= skipped
                if self._padding:
                    return
            if self._extra is not None and not self._take_extra():
                return
            if len(self._bytes) < BLOCK:
                return
            header = bytes(self._bytes[:BLOCK])
            del self._bytes[:BLOCK]
            entry = self._entry(header)
            if entry is not None:
                yield entry
        # What follows the end is padding.
        self._bytes.clear()

    def _take_extra(self) -> bool:
        assert self._extra is not None
        kind, size = self._extra
        whole = size + -size % BLOCK
        if len(self._bytes) < whole:
            return False
        data = bytes(self._bytes[:size])
        del self._bytes[:whole]
        self._extra = None
        if kind == b"L":
            self._name = data.rstrip(b"\0")
        elif kind == b"K":
            self._target = data.rstrip(b"\0")
        elif kind == b"x":
            records = pax_records(data)
            self._name = records.get(b"path", self._name)
            self._target = records.get(b"linkpath", self._target)
        return True

    def _entry(self, header: bytes) -> Entry | None:
        if header.count(0) == BLOCK:
            self.ended = True
            return None
        check_sum(header)
        kind, size = header[156:157], number(header[124:136])
        if kind in (b"L", b"K", b"x", b"g"):
            if size > MOST_EXTRA:
                raise Malformed("the archive has a name that is too long")
            self._extra = (kind, size)
            return None
        name, target = self._name or _name(header), self._target or _text(header[157:257])
        self._name = self._target = b""
        if len(name) > MOST_NAME or len(target) > MOST_NAME:
            raise Malformed("the archive has a name that is too long")
        if kind not in _KINDS and kind not in _SPECIAL:
            raise Malformed(f"the archive has an entry of no known kind: {kind!r}")
        known = _KINDS.get(kind, "") or _SPECIAL[kind]
        if known == FILE:
            self._content, self._padding = size, -size % BLOCK
        else:
            # Others have none; a size that is said all the same is of content that is not there.
            size = 0
        mode, mtime = number(header[100:108]), number(header[136:148])
        return Entry(known, name, mode & 0o7777, size, min(mtime, 2**40), target)


def check_sum(header: bytes) -> None:
    told = number(header[148:156])
    if told != sum(header[:148]) + sum(header[156:]) + 8 * 32:
        raise Malformed("the archive is damaged: a header has another sum")


def number(field: bytes) -> int:
    """Octal, or where that is too short, GNU's binary with its highest bit set."""
    if field[:1] == b"\x80":
        value = int.from_bytes(field[1:], "big")
        if value >= 2**60:
            raise Malformed("the archive has a number that is too large")
        return value
    text = field.split(b"\0", 1)[0].strip()
    if not text:
        return 0
    if not all(48 <= byte <= 55 for byte in text):
        raise Malformed("the archive has a number that is none")
    return int(text, 8)


def pax_records(data: bytes) -> dict[bytes, bytes]:
    records: dict[bytes, bytes] = {}
    while data:
        length, _, _ = data.partition(b" ")
        if not length.isdigit() or not 0 < int(length[:9]) <= len(data):
            raise Malformed("the archive has an attribute that is none")
        record, data = data[: int(length)], data[int(length) :]
        key, _, value = record[len(length) + 1 :].rstrip(b"\n").partition(b"=")
        records[key] = value
    return records


def _name(header: bytes) -> bytes:
    name, prefix = _text(header[:100]), _text(header[345:500])
    is_ustar = header[257:263] == b"ustar\0"
    return prefix + b"/" + name if is_ustar and prefix else name


def _text(field: bytes) -> bytes:
    return field.split(b"\0", 1)[0]
