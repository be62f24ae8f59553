"""The little of ELF that images need: a section of a kernel module, whether a program is static. Pure."""

from __future__ import annotations

import struct

_MAGIC_64_BIT = b"\x7fELF\x02"
_PROGRAM_INTERPRETER = 3
_NO_BITS = 8


class NotElf(ValueError):
    """Not a 64-bit little-endian ELF file, or a damaged one."""


def is_elf(data: bytes) -> bool:
    return data.startswith(_MAGIC_64_BIT)


def section(data: bytes, wanted: str) -> bytes | None:
    """The content of a section by its name, or None when there is none."""
    (table,) = _unpack("<Q", data, 0x28)
    size, count, names_index = _unpack("<HHH", data, 0x3A)
    heads = [_unpack("<IIQQQQ", data, table + index * size) for index in range(count)]
    if names_index >= len(heads):
        raise NotElf("no names of sections")
    names = _content(data, heads[names_index])
    for head in heads:
        if names[head[0] :].partition(b"\0")[0] == wanted.encode():
            return _content(data, head)
    return None


def is_static(data: bytes) -> bool:
    """Whether the program runs without a loader and libraries."""
    (table,) = _unpack("<Q", data, 0x20)
    size, count = _unpack("<HH", data, 0x36)
    kinds = [_unpack("<I52x", data, table + index * size)[0] for index in range(count)]
    return _PROGRAM_INTERPRETER not in kinds


def _unpack(layout: str, data: bytes, offset: int) -> tuple[int, ...]:
    if not is_elf(data):
        raise NotElf("no ELF header")
    if offset + struct.calcsize(layout) > len(data):
        raise NotElf("cut short")
    return struct.unpack_from(layout, data, offset)


def _content(data: bytes, head: tuple[int, ...]) -> bytes:
    _name, kind, _flags, _address, offset, size = head
    if kind == _NO_BITS:
        return b""
    if offset + size > len(data):
        raise NotElf("cut short")
    return data[offset : offset + size]
