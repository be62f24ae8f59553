"""What compressed an archive, found out from its first bytes, and undone as it is read. Reads what it is given.

No more is unpacked at a time than was asked for, and not much more altogether than what came in: who sends a little
that becomes a lot is refused.
"""

from __future__ import annotations

import lzma
import zlib
from collections.abc import Callable
from typing import Any, Protocol, cast

import zstandard

from atoll.errors import Malformed, TooLarge

CHUNK = 1 << 18
MOST_RATIO = 200
"""Text compresses to a twentieth, and the zeros of a disk more: hence this much, and only beyond FREE_BYTES."""
FREE_BYTES = 256 << 20
MOST_XZ_BYTES = 80 << 20
"""Of memory: xz -9 needs 65 MiB."""
MOST_ZSTD_BYTES = 128 << 20
"""Of its window: what zstd itself takes without being told to."""


class Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


class _Decompressor(Protocol):
    """What zlib and lzma have in common, as we use them."""

    def decompress(self, data: bytes, max_length: int) -> bytes: ...

    @property
    def eof(self) -> bool: ...

    @property
    def needs_input(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...


class Plain:
    """The archive in a stream, whatever it was compressed with. Malformed where it is damaged, TooLarge for a bomb."""

    def __init__(self, stream: Readable, most_bytes: int) -> None:
        self._counted = _Counted(stream)
        self._most = most_bytes
        self.total = 0
        first = self._counted.peek(6)
        self._source: Readable
        if first.startswith(b"\x1f\x8b"):
            self._source = _Stages(self._counted, _Gzip)
        elif first.startswith(b"\xfd7zXZ\0"):
            self._source = _Stages(self._counted, _xz)
        elif first.startswith(b"\x28\xb5\x2f\xfd"):
            limits = zstandard.ZstdDecompressor(max_window_size=MOST_ZSTD_BYTES)
            self._source = limits.stream_reader(cast(Any, self._counted), CHUNK, read_across_frames=True)
        else:
            self._source = self._counted

    def read(self, size: int) -> bytes:
        """As many bytes as there are, up to so many; less only at the end."""
        parts = []
        while size > 0:
            part = self._some(min(size, CHUNK))
            if not part:
                break
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def _some(self, size: int) -> bytes:
        try:
            part = self._source.read(size)
        except (zlib.error, lzma.LZMAError, zstandard.ZstdError, EOFError) as error:
            raise Malformed(
                f"reading an archive: its compression is damaged: {error}", hint="fetch it again"
            ) from None
        self.total += len(part)
        if self.total > self._most:
            raise TooLarge(f"reading an archive: it unpacks to more than {self._most} bytes")
        if self.total > FREE_BYTES and self.total > MOST_RATIO * self._counted.total:
            raise TooLarge(f"reading an archive: it unpacks to {MOST_RATIO} times its size and more")
        return part


class _Counted:
    """Knows how much came in."""

    def __init__(self, stream: Readable) -> None:
        self._stream = stream
        self._ahead = b""
        self.total = 0

    def peek(self, size: int) -> bytes:
        while len(self._ahead) < size and (more := self._stream.read(size - len(self._ahead))):
            self._ahead += more
        return self._ahead

    def read(self, size: int) -> bytes:
        data, self._ahead = self._ahead[:size], self._ahead[size:]
        data = data or self._stream.read(size)
        self.total += len(data)
        return data


class _Gzip:
    """zlib's decompressor in the shape of lzma's."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(31)

    def decompress(self, data: bytes, max_length: int) -> bytes:
        return self._inner.decompress(self._inner.unconsumed_tail + data, max_length)

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def needs_input(self) -> bool:
        return not self._inner.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data


def _xz() -> _Decompressor:
    return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MOST_XZ_BYTES)


class _Stages:
    """One compressed stream after the other, as gzip and xz allow."""

    def __init__(self, source: _Counted, make: Callable[[], _Decompressor]) -> None:
        self._source = source
        self._make = make
        self._stage = make()

    def read(self, size: int) -> bytes:
        while True:
            data = b""
            if self._stage.eof:
                data = self._stage.unused_data or self._source.read(CHUNK)
                # Zeros fill up what is kept in blocks.
                if not data.strip(b"\0"):
                    return b""
                self._stage = self._make()
            elif self._stage.needs_input:
                data = self._source.read(CHUNK)
                if not data:
                    raise EOFError("it is cut short")
            part = self._stage.decompress(data, size)
            if part:
                return part
