"""Just enough DER for lists of names and a certificate's dates. Pure; standard library only.

Not `cryptography`: importing that costs a command more time than all of its own work.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from atoll.errors import Malformed

INTEGER = 0x02
UTF8_STRING = 0x0C
NUMERIC_STRING = 0x12
PRINTABLE_STRING = 0x13
IA5_STRING = 0x16
UTC_TIME = 0x17
GENERALIZED_TIME = 0x18
VISIBLE_STRING = 0x1A
BMP_STRING = 0x1E
SEQUENCE = 0x30


class Element(NamedTuple):
    """One tag-length-value: its contents are bytes start to end of what it was read from."""

    tag: int
    start: int
    end: int


def encode(tag: int, content: bytes) -> bytes:
    size = len(content)
    if size < 0x80:
        return bytes((tag, size)) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes((tag, 0x80 | len(length))) + length + content


def element(der: bytes, at: int, end: int) -> Element:
    """The element at `at`, wholly inside `end`, its length in the one form that DER allows."""
    if end - at < 2:
        raise Malformed(f"reading DER: truncated at byte {at}")
    tag, size = der[at], der[at + 1]
    if tag & 0x1F == 0x1F:
        raise Malformed(f"reading DER: a tag of several bytes at byte {at}")
    start = at + 2
    if size >= 0x80:
        width = size & 0x7F
        if not 1 <= width <= 4:
            raise Malformed(f"reading DER: a length of {width} bytes at byte {at}")
        if end - start < width:
            raise Malformed(f"reading DER: truncated at byte {at}")
        size = int.from_bytes(der[start : start + width], "big")
        start += width
        if size < 0x80 or size >> (8 * (width - 1)) == 0:
            raise Malformed(f"reading DER: a length that is not in its shortest form at byte {at}")
    if size > end - start:
        raise Malformed(f"reading DER: an element at byte {at} goes past its end")
    return Element(tag, start, start + size)


def children(der: bytes, parent: Element) -> Iterator[Element]:
    at = parent.start
    while at < parent.end:
        child = element(der, at, parent.end)
        yield child
        at = child.end


def whole(der: bytes, tag: int) -> Element:
    """The one element that these bytes are, with nothing after it."""
    found = element(der, 0, len(der))
    if found.tag != tag:
        raise Malformed(f"reading DER: tag {found.tag:#04x} where {tag:#04x} belongs")
    if found.end != len(der):
        raise Malformed(f"reading DER: {len(der) - found.end} extra bytes at the end")
    return found
