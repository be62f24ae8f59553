from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import Invalid
from atoll.plan.disk_content import Ext, ext_of, in_mib, least_blocks, qcow2_size_mib


def header(
    *, magic: int = 0x514649FB, version: int = 3, backing: int = 0, bits: int = 16, size: int = 1 << 30,
    encryption: int = 0, incompatible: int = 0,
) -> bytes:  # fmt: skip
    start = struct.pack(">IIQIIQI", magic, version, backing, 0, bits, size, encryption)
    return start.ljust(72, b"\0") + struct.pack(">Q", incompatible) + b"\0" * 24


@pytest.mark.parametrize("version", [2, 3])
def test_the_size_of_the_disk_in_a_qcow2_file_is_read(version: int):
    assert qcow2_size_mib(header(version=version)) == 1024
    assert qcow2_size_mib(header(version=version, size=(1 << 20) + 1)) == 2


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is not a qcow2 file"),
        (b"\0" * 512, "is not a qcow2 file"),
        (header()[:50], "is not a qcow2 file"),
        (header(version=4), "must be version 2 or 3"),
        (header(backing=0x200), "names another file"),
        (header(incompatible=1 << 2), "names another file"),
        (header(encryption=1), "is encrypted"),
        (header(incompatible=1 << 1), "is marked corrupt"),
        (header(incompatible=1 << 40), "features that are not known here"),
        (header(bits=60), "clusters of"),
    ],
)
def test_a_file_that_could_lead_elsewhere_or_is_none_is_refused(content: bytes, says: str):
    with pytest.raises(Invalid, match=says):
        qcow2_size_mib(content)


@given(st.binary(max_size=200))
def test_no_bytes_make_it_fail_in_another_way(content: bytes):
    for data in (content, header()[:8] + content.ljust(96, b"\0")):
        try:
            assert qcow2_size_mib(data) >= 1
        except Invalid:
            pass
    ext_of(content * 20)


def superblock(magic: int = 0xEF53, shift: int = 2, blocks: int = 4096) -> bytes:
    block = bytearray(1024)
    struct.pack_into("<I", block, 4, blocks)
    struct.pack_into("<I", block, 0x18, shift)
    struct.pack_into("<H", block, 0x38, magic)
    return bytes(1024) + bytes(block)


def test_an_ext_file_system_is_known_by_its_superblock():
    assert ext_of(superblock()) == Ext(block_bytes=4096, blocks=4096)
    assert ext_of(superblock(magic=0)) is None
    assert ext_of(superblock(shift=40)) is None
    assert ext_of(superblock()[:1500]) is None


def test_the_least_size_is_read_from_what_resize2fs_says():
    assert least_blocks("Estimated minimum size of the filesystem: 1234\n") == 1234


def test_bytes_are_rounded_up_to_mib():
    assert [in_mib(size) for size in (0, 1, 1 << 20, (1 << 20) + 1)] == [1, 1, 1, 2]
