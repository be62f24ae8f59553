"""What the first bytes of a disk tell about it. Pure.

Content comes from users and guests, so nothing in it is believed that could make a tool of ours open anything else:
a qcow2 file that names another file is refused.
"""

from __future__ import annotations

import struct

from msgspec import Struct

from atoll.errors import Invalid

QCOW2_HEADER = 104
EXT_SUPERBLOCK = 2048
"""So many bytes from the start hold the superblock of an ext file system."""

_QCOW2_MAGIC = 0x514649FB
_INCOMPATIBLE_DIRTY = 1 << 0
_INCOMPATIBLE_CORRUPT = 1 << 1
_INCOMPATIBLE_COMPRESSION = 1 << 3
_INCOMPATIBLE_EXTENDED_L2 = 1 << 4
_HARMLESS = _INCOMPATIBLE_DIRTY | _INCOMPATIBLE_COMPRESSION | _INCOMPATIBLE_EXTENDED_L2
_EXT_MAGIC = 0xEF53
_MIB = 1 << 20


class Ext(Struct, frozen=True):
    """An ext2, ext3 or ext4 file system."""

    block_bytes: int
    blocks: int


def qcow2_size_mib(header: bytes) -> int:
    """The size of the disk in a qcow2 file, in whole MiB; Invalid if it is none that stands by itself."""
    if len(header) < QCOW2_HEADER or struct.unpack_from(">I", header)[0] != _QCOW2_MAGIC:
        raise Invalid("content", header, "is not a qcow2 file", hint="say format=raw if it is a raw disk")
    version, backing, _, cluster_bits, size, encryption = struct.unpack_from(">IQIIQI", header, 4)
    if version not in (2, 3):
        raise Invalid("content", f"qcow2 version {version}", "must be version 2 or 3")
    incompatible = struct.unpack_from(">Q", header, 72)[0] if version == 3 else 0
    if backing or incompatible & (1 << 2):
        raise Invalid(
            "content",
            header,
            "names another file",
            hint="flatten it first: qemu-img convert -O qcow2 OLD NEW",
        )
    if encryption:
        raise Invalid("content", header, "is encrypted", hint="decrypt it first: qemu-img convert")
    if incompatible & _INCOMPATIBLE_CORRUPT or incompatible & ~_HARMLESS:
        raise Invalid("content", header, "is marked corrupt, or has features that are not known here")
    if not 9 <= cluster_bits <= 21:
        raise Invalid("content", f"clusters of 2^{cluster_bits} bytes", "must be from 2^9 to 2^21")
    return in_mib(size)


def in_mib(size: int) -> int:
    """Whole MiB that hold so many bytes."""
    return max(1, -(-size // _MIB))


def ext_of(start: bytes) -> Ext | None:
    """The ext file system that a disk begins with, if it does."""
    if len(start) < EXT_SUPERBLOCK or struct.unpack_from("<H", start, 1024 + 0x38)[0] != _EXT_MAGIC:
        return None
    (blocks,) = struct.unpack_from("<I", start, 1024 + 0x04)
    (shift,) = struct.unpack_from("<I", start, 1024 + 0x18)
    return Ext(1024 << shift, blocks) if shift <= 6 else None


def least_blocks(said: str) -> int:
    """What `resize2fs -P` said is the least that the file system can be cut to."""
    _, _, number = said.rpartition(":")
    return int(number.strip())
